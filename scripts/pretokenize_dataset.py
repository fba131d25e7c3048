"""Make X.npy beside X.txt, as the memory-mapping guide does it.

    python scripts/pretokenize_dataset.py Datasets/c4_subset_large.txt

It is the command `tokenmill pretokenize`, which takes the same arguments.
"""

from __future__ import annotations

import sys

from tokenmill.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretokenize", *sys.argv[1:]]))
