"""Other programs' own packages read what tokenmill exports, and tokenmill reads what they write.

    python benchmarks/peers.py [--documents 2000] [--environment FOLDER]

Makes an environment with megatron-core, datatrove, mosaicml-streaming, litdata and array_record
(without most of what they depend on: they are asked for their files alone, and take NumPy and torch
from here), and in it writes and reads the same documents with each. Says for every format and width
of ids whether ids and documents came out the same; the exit status is 1 if any did not.
"""

from __future__ import annotations

import argparse
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peer_files import READERS, ROW, WRITERS, Documents, load, save

import tokenmill

PACKAGES = (
    "megatron-core datatrove mosaicml-streaming litdata array_record absl-py etils importlib_resources "
    "zipp boto3 botocore s3transfer jmespath python-dateutil six urllib3 transformers safetensors "
    "regex pyyaml loguru multiprocess dill humanize fsspec catalogue brotli python-snappy cramjam "
    "zstd zstandard pillow lightning_utilities obstore tifffile matplotlib tqdm requests huggingface_hub "
    "google-cloud-storage oci azure-core azure-storage-blob azure-storage-file-datalake paramiko"
).split()
# What MosaicML streaming imports for pictures, of which there are none here.
STAND_IN = {
    "torchvision/__init__.py": "",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(x):\n    return x\n",
    "torchvision/datasets/__init__.py": "class VisionDataset:\n    pass\n",
}
WIDTHS = {"uint16": 50257, "uint32": 128256}


def make_environment(folder: Path) -> Path:
    """An environment with the packages; returns its Python."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for package in PACKAGES:
        words = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", package]
        if subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode:
            print(f"cannot install {package}")
    for name, text in STAND_IN.items():
        path = packages / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return python


def run(python: Path, what: str, peer: str, folder: Path, documents: Path) -> str | None:
    """Let a peer write or read; returns what went wrong."""
    script = Path(__file__).with_name("peer_files.py")
    words = [str(python), "-W", "ignore", str(script), what, peer, str(folder), str(documents)]
    told = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    lines = told.stderr.strip().splitlines()
    return None if told.returncode == 0 else (lines[-1][:120] if lines else "it failed")


def make_documents(count: int, dtype: str) -> Documents:
    """Documents of many lengths, with a number of ids that rows divide."""
    rng = np.random.default_rng(7)
    lengths = [*rng.integers(1, 900, count).tolist(), 1, 255, 256, 65536]
    lengths.append(ROW - sum(lengths) % ROW)
    return [rng.integers(0, WIDTHS[dtype], length).astype(dtype) for length in lengths]


def compare(found: Documents, wanted: Documents) -> str:
    """Whether documents are the same, or at least all ids in a row."""
    if not np.array_equal(np.concatenate(found), np.concatenate(wanted)):
        return "IDS DIFFER"
    if [len(one) for one in found] == [len(one) for one in wanted]:
        return "ids and documents equal"
    return "ids equal" if len(found) == 1 else "DOCUMENTS DIFFER"


def read_here(folder: Path, peer: str, dtype: str) -> Documents:
    """What tokenmill reads of what a peer wrote."""
    options: dict[str, Any] = {"dtype": dtype} if peer == "array_record" else {}
    tokens = tokenmill.open(folder, **options)["train"]
    assert tokens.documents is not None
    return [tokens[one.start : one.start + one.length] for one in tokens.documents]


def try_peer(python: Path, peer: str, wanted: Documents, dtype: str, place: Path) -> list[str]:
    """What came of a peer's writing and reading."""
    told = []
    given, written, exported = place / "given.npz", place / "written", place / "exported"
    save(given, wanted)
    written.mkdir()
    failed = run(python, "write", peer, written, given)
    told.append(
        f"tokenmill reads {peer}'s: {failed or compare(read_here(written, peer, dtype), wanted)}"
    )
    if peer in READERS:
        source = place / "source"
        source.mkdir()
        if not (failed := run(python, "write", "megatron", source, given)):
            size = WIDTHS[dtype]
            tokenmill.export(source / "train", peer, exported, vocab_size=size)
            failed = run(python, "read", peer, exported, place / "found.npz")
        told.append(
            f"{peer} reads tokenmill's: {failed or compare(load(place / 'found.npz'), wanted)}"
        )
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--environment", type=Path)
    chosen = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        python = make_environment(chosen.environment or Path(temporary) / "environment")
        for dtype in WIDTHS:
            wanted = make_documents(chosen.documents, dtype)
            for peer in WRITERS:
                place = Path(temporary) / f"{peer}-{dtype}"
                place.mkdir()
                for line in try_peer(python, peer, wanted, dtype, place):
                    print(f"{dtype:8}{line}", flush=True)
                    good = good and line.endswith("equal")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
