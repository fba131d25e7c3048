"""Write datasets with NumPy and json alone: an independent writer for the library's reader."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

from tokenmill.tokenizers import load_tokenizer

RECORD = [
    ("key", "<u8", (2,)),
    ("first", "<u8"),
    ("length", "<u8"),
    ("source", "<u8"),
    ("offset", "<u8"),
]
EOT = 256

TEXTS = {
    "train": ["Hello, world!\n", "Ünïcödé 🙂 text", "", "a", "The end.\n" * 3],
    "val": ["Kept apart.", "Also kept apart."],
}


def key_of(text: bytes) -> tuple[int, int]:
    number = xxhash.xxh3_128_intdigest(text)
    return number >> 64, number & (2**64 - 1)


def seal(body: dict[str, Any]) -> bytes:
    """A manifest as bytes: JSON that ends with the checksum of all bytes before it."""
    body = {name: value for name, value in body.items() if name != "xxh3_128"}
    head = json.dumps(body, indent=2, ensure_ascii=False).removesuffix("\n}").encode() + b",\n  "
    return head + f'"xxh3_128": "{xxhash.xxh3_128_hexdigest(head)}"\n}}\n'.encode()


def seal_bytes(data: bytes) -> bytes:
    """A changed manifest with the checksum that it needs."""
    head = data[: data.rindex(b'"xxh3_128"')]
    return head + f'"xxh3_128": "{xxhash.xxh3_128_hexdigest(head)}"\n}}\n'.encode()


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and update its checksum, as an attacker would."""
    path = folder / "dataset_metadata.json"
    body = json.loads(path.read_bytes())
    edit(body)
    path.write_bytes(seal(body))


def write_sources(folder: Path, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write a table of sources; returns its entry in the manifest."""
    path = folder / "sources.jsonl"
    path.write_text("".join(json.dumps(source) + "\n" for source in sources))
    return {
        "path": path.name,
        "count": len(sources),
        "bytes": sum(source["bytes"] for source in sources),
        "xxh3_128": xxhash.xxh3_128_hexdigest(path.read_bytes()),
    }


def reseal(folder: Path) -> None:
    """Update all checksums, so that only other checks can find the damage."""

    def edit(body: dict[str, Any]) -> None:
        for split in body["splits"].values():
            for shard in split["shards"]:
                for path, checksum in (
                    ("path", "xxh3_128"),
                    ("documents_path", "documents_xxh3_128"),
                ):
                    data = (folder / shard[path]).read_bytes()
                    if path == "path" and "compressed" in shard:
                        shard["compressed"] = describe_file(data)
                    else:
                        shard[checksum] = xxhash.xxh3_128_hexdigest(data)

    edit_manifest(folder, edit)


def describe_file(data: bytes) -> dict[str, Any]:
    """The entry of a compressed file in the manifest."""
    return {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def compress(data: bytes, frame_bytes: int) -> bytes:
    """A file in zstd's seekable format, by its specification: frames, then a table of their sizes."""
    packer = zstandard.ZstdCompressor(level=3, write_checksum=True)
    parts = [data[at : at + frame_bytes] for at in range(0, len(data), frame_bytes)]
    frames = [packer.compress(part) for part in parts]
    entries = b"".join(
        struct.pack("<II", len(frame), len(part)) for frame, part in zip(frames, parts, strict=True)
    )
    head = struct.pack("<II", 0x184D2A5E, len(entries) + 9)
    return b"".join(frames) + head + entries + struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)


def build(
    folder: Path,
    texts: dict[str, Sequence[str | bytes]] | None = None,
    *,
    shard_tokens: int = 10,
    eot: str = "after",
    dtype: str = "uint16",
    frame_tokens: int | None = None,
) -> dict[str, np.ndarray]:
    """Write a dataset of byte tokens; returns each split's tokens as the oracle.

    With `frame_tokens`, shards are compressed in frames of so many tokens.
    """
    tokenizer = load_tokenizer("bytes")
    folder.mkdir(parents=True, exist_ok=True)
    oracle, splits, offset = {}, {}, 0
    for name, documents in (TEXTS if texts is None else texts).items():
        ids: list[int] = []
        records = []
        for text in documents:
            data = text.encode() if isinstance(text, str) else text
            start = len(ids)
            ids += [EOT] * (eot == "before") + list(data) + [EOT] * (eot == "after")
            if len(ids) > start:
                records.append((key_of(data), start, len(ids) - start, 0, offset))
            offset += len(data) + 1
        oracle[name] = np.array(ids, np.dtype(dtype))
        (folder / name).mkdir(exist_ok=True)
        shards = []
        for number, first in enumerate(range(0, len(ids), shard_tokens)):
            path = f"{name}/shard_{number:05d}.bin" + (".zst" if frame_tokens else "")
            table_path = f"{name}/shard_{number:05d}.docs.npy"
            part = ids[first : first + shard_tokens]
            plain = np.array(part, np.dtype(dtype).newbyteorder("<")).tobytes()
            data = (
                compress(plain, frame_tokens * np.dtype(dtype).itemsize) if frame_tokens else plain
            )
            (folder / path).write_bytes(data)
            table = [
                (key, start - first, *rest)
                for key, start, *rest in records
                if first <= start < first + len(part)
            ]
            np.save(folder / table_path, np.array(table, RECORD))
            shards.append(
                {
                    "path": path,
                    "tokens": len(part),
                    "documents": len(table),
                    "xxh3_128": xxhash.xxh3_128_hexdigest(plain),
                    "documents_path": table_path,
                    "documents_xxh3_128": xxhash.xxh3_128_hexdigest(
                        (folder / table_path).read_bytes()
                    ),
                    **({"compressed": describe_file(data)} if frame_tokens else {}),
                }
            )
        splits[name] = {"tokens": len(ids), "documents": len(records), "shards": shards}
    kept = sum(split["documents"] for split in splits.values())
    body = {
        "format": "tokenmill",
        "version": 4 if frame_tokens else 3,
        "dtype": dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {"name": tokenizer.name, "fingerprint": tokenizer.fingerprint},
        "eot": {"place": eot, "id": tokenizer.eot_id},
        "splits": splits,
        "settings": {"seed": 7, "dedup": "documents"},
        "ledger": {
            "documents_in": kept + 3,
            "bytes_in": offset + 30,
            "documents_kept": kept,
            "bytes_kept": offset,
            "dropped": {
                "duplicate": {"documents": 2, "bytes": 20},
                "too_short": {"documents": 1, "bytes": 10},
            },
            "text_bytes": offset,
            "characters": offset,
            "repaired_documents": 0,
            "duplicate_lines": 0,
            "set_aside": [],
            "tokens": sum(split["tokens"] for split in splits.values()),
        },
    }
    if frame_tokens:
        kind = {"name": "zstd", "level": 3, "tokens_per_frame": frame_tokens, "library": "1.5.7"}
        body["compression"] = kind
    sources = [{"path": "texts/a.txt", "bytes": offset + 30, "unit": "byte"}]
    body["sources"] = write_sources(folder, sources)
    (folder / "tokenizer_state.json").write_text(json.dumps(tokenizer.state(), indent=1))
    (folder / "dataset_metadata.json").write_bytes(seal(body))
    return oracle
