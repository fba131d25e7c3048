"""Only the tests here are for pytest: the other modules are imported as `tests.lab.fuzz`."""

from __future__ import annotations

collect_ignore_glob = ["[!t]*.py", "parsers/*"]
