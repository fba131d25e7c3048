"""Plant defects in copies of the source, and see whether the laboratory finds them.

    python -m tests.lab.planted                        all, and write the table of docs/reliability.md
    python -m tests.lab.planted "no lock is taken"     one

Each defect changes one place of the source. `python -m tests.lab PART` then runs in the copy on one core
with a fixed seed, until its first failure. The case that failed must fail again with the defect, and
succeed without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import results

RESULTS = Path(__file__).with_name("planted.json")
_SEED = 1
_MINUTES = 10.0
_TRIES = 20  # of a case that failed: some depend on timing


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A change of one place in the source, and the part of the laboratory that must find it."""

    part: str
    file: str  # in src/tokenmill
    before: str
    after: str

    def plant(self, root: Path) -> None:
        """Change the source below a folder; an error unless the text is there exactly once."""
        path = root / "src" / "tokenmill" / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{path} has this {text.count(self.before)} times:\n{self.before}")
        path.write_text(text.replace(self.before, self.after))


DEFECTS = {
    "a file is not synced": Defect(
        part="power",
        file="storage/files.py",
        before="            os.fsync(self._file.fileno())\n",
        after="",
    ),
    "the folder of a file is not synced": Defect(
        part="power",
        file="storage/files.py",
        before="        if self._durable:\n            sync_folder(self.path.parent)\n",
        after="",
    ),
    "a failed sync of a folder is ignored": Defect(
        part="faults",
        file="storage/files.py",
        before="        if error.errno not in _CANNOT_SYNC:\n",
        after="        if False:\n",
    ),
    "the checksum of a shard is not compared": Defect(
        part="kills",
        file="store/shard_receipts.py",
        before="            if hash_file(file) != shard.file_xxh3_128:\n",
        after="            if False:\n",
    ),
    "the checksum of a receipt is not compared": Defect(
        part="fuzz",
        file="storage/receipts.py",
        before="        if digest != xxhash.xxh3_128_hexdigest(content).encode():\n",
        after="        if False:\n",
    ),
    "the checksum of a checkpoint is not compared": Defect(
        part="fuzz",
        file="training/checkpoint_files.py",
        before="            if _check_arrays(arrays, expected) != file.xxh3_128.get(name):\n",
        after="            if not _check_arrays(arrays, expected):\n",
    ),
    "a page of Parquet may claim any size": Defect(
        part="fuzz",
        file="sources/parquet.py",
        before="    if (need := columns * pages.memory(rows)) > COPIES * hold_limit:\n",
        after="    if (need := columns * pages.memory(rows)) < 0:\n",
    ),
    "a document may name any source": Defect(
        part="fuzz",
        file="store/documents.py",
        before="            or source >= len(self._sources)\n",
        after="",
    ),
    "no lock is taken": Defect(
        part="concurrency",
        file="storage/lock.py",
        before="                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        after="                pass\n",
    ),
    "a file has no temporary name": Defect(
        part="kills",
        file="storage/files.py",
        before="else temporary_path(path)\n",
        after="else path\n",
    ),
    "a file is copied instead of renamed": Defect(
        part="kills",
        file="storage/files.py",
        before="            self._temporary.replace(self.path)\n",
        after="            shutil.copyfile(self._temporary, self.path)\n            self._temporary.unlink()\n",
    ),
    "the bytes of a cached piece are not hashed": Defect(
        part="fuzz",
        file="storage/cache.py",
        before="    digest.update(data)\n    return digest.digest()\n",
        after="    return digest.digest()\n",
    ),
    "the ETag of an object is not compared": Defect(
        part="fuzz",
        file="storage/object_store.py",
        before="        if (version and _find_version(meta) != version) or len(data)",
        after="        if len(data)",
    ),
    "a lack of memory is not recognized": Defect(
        part="memory",
        file="errors.py",
        before="    return isinstance(error, MemoryError)\n",
        after="    return False\n",
    ),
}


def copy_source(root: Path) -> None:
    """Copy every tracked file into a folder."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=results.ROOT, capture_output=True, check=True).stdout
    for name in map(os.fsdecode, listed.split(b"\0")[:-1]):
        if (results.ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(results.ROOT / name, root / name)


def find(name: str, minutes: float) -> dict[str, Any] | None:
    """Run the laboratory with a defect; returns what it found, or None."""
    defect = DEFECTS[name]
    with tempfile.TemporaryDirectory(prefix="tokenmill-planted-") as folder:
        sound, planted = Path(folder, "sound"), Path(folder, "planted")
        copy_source(sound)
        copy_source(planted)
        defect.plant(planted)
        command = f"python -m tests.lab {defect.part} --first --jobs 1 --seed {_SEED}"
        started = time.monotonic()
        with _start(planted, f"{command} --minutes {minutes}") as laboratory:
            assert laboratory.stdout is not None
            lines = iter(laboratory.stdout)
            failed = next((line.strip() for line in lines if line.startswith("FAILED ")), None)
            seconds = time.monotonic() - started
            case = next((line.strip() for line in lines if line.startswith("  python ")), "")
            laboratory.communicate()
        if failed is None:
            return None
        print(failed, flush=True)
        return {
            "part": defect.part,
            "seconds": round(seconds, 1),
            "case": case,
            "fails_again": any(_run(planted, case) for _ in range(_TRIES)),
            "succeeds_without": not _run(sound, case),
        }


def _start(root: Path, command: str) -> subprocess.Popen[str]:
    """Start a command of the laboratory in a copy of the source."""
    return subprocess.Popen(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "LAB_RESULTS": str(root / "results.json"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def _run(root: Path, command: str) -> int:
    with _start(root, command) as process:
        process.communicate()
    return process.returncode


def read() -> dict[str, dict[str, Any]]:
    """What was found when each defect was planted last."""
    return json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}  # type: ignore[no-any-return]


def make_table(found: dict[str, dict[str, Any]]) -> str:
    """The defects, and how they were found, in Markdown."""
    lines = ["| defect | found by | seconds |", "|---|---|---:|"]
    for name in DEFECTS:
        if name in found:
            one = found[name]
            case = one["case"].removeprefix("python -m ")
            lines.append(f"| {name} | {one['part']}: `{case}` | {one['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="defects; all by default")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for each defect")
    arguments = parser.parse_args()
    missed = 0
    for name in arguments.names or DEFECTS:
        one = find(name, arguments.minutes)
        is_found = one is not None and one["fails_again"] and one["succeeds_without"]
        missed += not is_found
        print(f"{'found' if is_found else 'NOT FOUND'}: {name}: {one}", flush=True)
        if is_found:
            found = {key: value for key, value in {**read(), name: one}.items() if key in DEFECTS}
            RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    results.write_between("planted", make_table(read()))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
