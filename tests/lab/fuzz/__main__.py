"""Run the fuzzer, or one case of it; see the package."""

from __future__ import annotations

import sys
from importlib import import_module

from . import limit_threads

if __name__ == "__main__":
    limit_threads()
    sys.exit(import_module(".command", __package__).main())
