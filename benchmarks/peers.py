"""Check that other programs' packages read tokenmill's exports, and that tokenmill reads their files.

    python benchmarks/peers.py [--documents 2000] [--environment FOLDER]

Makes an environment with Megatron-Core, datatrove, MosaicML Streaming, LitData and ArrayRecord, in
which each writes and reads the same documents. Most of their dependencies are omitted, because only
their file formats are used; NumPy and torch come from the current environment. With --environment, the
environment is kept in that folder and reused.

The table shows, for every format and width of ids, whether ids and documents are the same, and whether
a peer's files that tokenmill opens (for uint16 also imports) and exports again have the same bytes.
The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peer_files import READERS, ROW, WRITERS, Documents, load, save
from results import as_table

import tokenmill
from tokenmill.convert.export import RECORD

PACKAGES = (
    "megatron-core==0.16.1 datatrove==0.10.1 mosaicml-streaming==0.13.0 litdata==0.2.76 "
    "array_record boto3==1.44.0 botocore==1.44.0 s3transfer==0.19.3 jmespath==1.1.0 "
    "python-dateutil==2.9.0.post0 six urllib3 requests tqdm regex pyyaml fsspec lightning-utilities "
    "loguru==0.7.3 humanize==4.16.0 dill==0.4.1 brotli==1.2.1 python-snappy==0.7.3 cramjam==2.14.0 "
    "zstd==1.5.7.2 catalogue==2.0.10 pillow"
).split()
# Packages that MosaicML Streaming imports for images and texts, which are not used here.
STAND_IN = {
    "torchvision/__init__.py": "",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(x):\n    return x\n",
    "torchvision/datasets/__init__.py": "class VisionDataset:\n    pass\n",
    "transformers/__init__.py": "",
    "transformers/feature_extraction_utils.py": "class BatchFeature:\n    pass\n",
    "transformers/tokenization_utils_base.py": "class BatchEncoding:\n    pass\n",
    "transformers/models/__init__.py": "",
    "transformers/models/auto/__init__.py": "",
    "transformers/models/auto/tokenization_auto.py": "class AutoTokenizer:\n    pass\n",
}
WIDTHS = {"uint16": 50257, "uint32": 128256}
MANY, ONE = 100_000, 1 << 30  # tokens per file, for formats with several files


def make_environment(folder: Path) -> Path:
    """Make an environment with the packages unless a complete one exists; returns its Python."""
    python, made = folder / "bin" / "python", folder / "made.json"
    wanted = json.dumps([PACKAGES, STAND_IN, sys.version, site.getsitepackages()])
    if made.exists() and made.read_text() == wanted:
        return python
    if folder.exists() and any(folder.iterdir()) and not made.exists():
        sys.exit(f"{folder} holds other things; give a new folder.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made.touch()  # an unfinished environment of an earlier run
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for package in PACKAGES:
        words = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", package]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"cannot install {package}:\n{done.stderr}")
    for name, text in STAND_IN.items():
        path = packages / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    made.write_text(wanted)
    return python


def run(python: Path, *words: object) -> str | None:
    """Run a peer to write or read files; returns its error message."""
    script = Path(__file__).with_name("peer_files.py")
    command = [str(python), "-W", "ignore", str(script), *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else f"FAILED: {lines[-1][:120] if lines else 'no message'}"


def make_documents(count: int, dtype: str) -> Documents:
    """Make documents of many lengths, whose total is a multiple of the row length."""
    rng = np.random.default_rng(7)
    lengths = [*rng.integers(1, 900, count).tolist(), 1, 255, 256, 65535, 65536]
    lengths.append(ROW - sum(lengths) % ROW)
    return [rng.integers(0, WIDTHS[dtype], length).astype(dtype) for length in lengths]


def compare(found: Documents, wanted: Documents, *, documents: bool = True) -> str:
    """Whether the ids are the same, and the documents too if the reader returns them."""
    if not np.array_equal(np.concatenate(found), np.concatenate(wanted)):
        return "IDS DIFFER"
    if not documents:
        return "ids equal"
    same = [len(one) for one in found] == [len(one) for one in wanted]
    return "ids and documents equal" if same else "DOCUMENTS DIFFER"


def compare_files(found: Path, wanted: Path) -> str:
    """Whether two folders hold the same files, byte for byte."""
    mine, theirs = _contents(found), _contents(wanted)
    differ = sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))
    if differ:
        return f"BYTES DIFFER: {', '.join(differ)}"
    whole = sum(isinstance(one, bytes) for one in mine.values())
    lists = "" if whole == len(mine) else ", and the list in the index"
    return f"{whole} file{'s' if whole > 1 else ''} byte for byte{lists}"


def _contents(folder: Path) -> dict[str, Any]:
    """The bytes of each file; of LitData's index, which contains the time, only its list of files."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != RECORD:
            data = path.read_bytes()
            timed = path.name == "index.json" and b'"updated_at"' in data
            name = path.relative_to(folder).as_posix()
            found[name] = json.loads(data)["chunks"] if timed else data
    return found


def read_here(folder: Path, peer: str, dtype: str) -> Documents:
    """The documents that tokenmill reads from a peer's files."""
    options: dict[str, Any] = {"dtype": dtype} if peer == "array_record" else {}
    tokens = tokenmill.open(folder, **options)["train"]
    if tokens.documents is None:
        return [tokens[:]]
    return [tokens[one.start : one.start + one.length] for one in tokens.documents]


def try_peer(
    python: Path, peer: str, documents: Documents, dtype: str, place: Path
) -> dict[str, str]:
    """Test writing and reading with a peer; returns a row of the table."""
    place.mkdir()
    given, size = place / "given.npz", WIDTHS[dtype]
    save(given, documents)
    has_documents = peer != "npy"  # the format has no documents
    failed = run(python, "write", peer, place / "many", given, MANY)
    row = {
        "format": peer,
        "ids": dtype,
        "tokenmill reads the peer's": failed
        or compare(read_here(place / "many", peer, dtype), documents, documents=has_documents),
        "the peer reads tokenmill's": "—",
        "out of, into the peer's": "—",
    }
    if peer not in READERS or failed:
        return row
    # Readers of rows omit an incomplete row at the end of each file.
    length = ONE if peer in ("datatrove", "litdata") else MANY
    exported = place / "exported"
    tokenmill.export(place / "many", exported, to=peer, vocab_size=size, tokens_per_shard=length)
    failed = run(python, "read", peer, exported, place / "found.npz")
    row["the peer reads tokenmill's"] = failed or compare(
        load(place / "found.npz"), documents, documents=has_documents and peer != "litdata"
    )
    failed = run(python, "write", peer, place / "one", given, ONE)
    if not failed:
        source = place / "one"
        if dtype == "uint16" and has_documents:
            source = place / "imported"
            tokenmill.import_dataset(place / "one", source, tokenizer="gpt2")
        tokenmill.export(source, place / "again", to=peer, vocab_size=size, tokens_per_shard=ONE)
    row["out of, into the peer's"] = failed or compare_files(place / "again", place / "one")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--environment", type=Path)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        python = make_environment(chosen.environment or Path(temporary) / "environment")
        for dtype in WIDTHS:
            documents = make_documents(chosen.documents, dtype)
            for peer in WRITERS:
                place = Path(temporary) / f"{peer}-{dtype}"
                rows.append(try_peer(python, peer, documents, dtype, place))
                shutil.rmtree(place)
                print(f"{dtype} {peer}: {', '.join(list(rows[-1].values())[2:])}", flush=True)
    print(f"\n{as_table(rows)}")
    bad = ("DIFFER", "FAILED")
    return int(any(word in cell for row in rows for cell in row.values() for word in bad))


if __name__ == "__main__":
    sys.exit(main())
