"""Make X.npy next to X.txt, as in the memory-mapping guide.

    python scripts/pretokenize_dataset.py Datasets/c4_subset_large.txt

It runs `tokenmill pretokenize` with the same arguments.
"""

from __future__ import annotations

import sys

from tokenmill.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretokenize", *sys.argv[1:]]))
