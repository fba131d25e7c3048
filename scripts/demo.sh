#!/bin/sh
# Make a dataset out of the source code of Python's own standard library, and look at it.
set -eu
mkdir -p demo
if [ ! -d demo/text ]; then
    python - <<'PYTHON'
import shutil, sysconfig
from pathlib import Path

library = Path(sysconfig.get_paths()["stdlib"])
for path in sorted(library.rglob("*.py")):
    if "site-packages" not in path.parts:
        target = Path("demo/text") / path.relative_to(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
PYTHON
fi
show() { printf '\n$ %s\n' "$*"; "$@"; }
show tokenmill prepare demo/text --out demo/stdlib
show tokenmill info demo/stdlib
show tokenmill peek demo/stdlib --document 100 --length 120
show tokenmill verify demo/stdlib
