"""Write tokens in other formats byte by byte: writers that are independent of tokenmill's."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import zstandard


def llmc_bytes(ids, *, magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> bytes:
    header = struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0")
    return header + np.asarray(ids, dtype).tobytes()


def write_llmc(path: Path, ids, **kind) -> None:
    path.write_bytes(llmc_bytes(ids, **kind))


def write_llmc_folder(folder: Path, parts, name: str = "edu_fineweb_train_{:06}.bin") -> None:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(parts, start=1):
        write_llmc(folder / name.format(number), part)


def write_raw(path: Path, ids, dtype: str = "<u2") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(np.asarray(ids, dtype).tobytes())


def megatron_bytes(
    documents, *, dtype: str = "<u2", sequences=None, modes: bool = False
) -> tuple[bytes, bytes]:
    """The `.bin` and `.idx` of documents, each of `sequences` sequences."""
    codes = {"|u1": 1, "|i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
    width = np.dtype(dtype).itemsize
    lengths, borders = [], [0]
    for number, document in enumerate(documents):
        parts = np.array_split(np.asarray(document), sequences[number] if sequences else 1)
        lengths += [len(part) for part in parts]
        borders.append(len(lengths))
    pointers = [sum(lengths[:number]) * width for number in range(len(lengths))]
    index = b"MMIDIDX\0\0" + struct.pack("<QB", 1, codes[np.dtype(dtype).str])
    index += struct.pack("<QQ", len(lengths), len(borders))
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(pointers)}q", *pointers)
    index += struct.pack(f"<{len(borders)}q", *borders)
    index += bytes(len(lengths)) if modes else b""
    return flat(documents, dtype), index


def write_megatron(prefix: Path, documents, **kind) -> None:
    prefix.parent.mkdir(exist_ok=True)
    ids, index = megatron_bytes(documents, **kind)
    prefix.with_name(prefix.name + ".bin").write_bytes(ids)
    prefix.with_name(prefix.name + ".idx").write_bytes(index)


def flat(documents, dtype: str) -> bytes:
    return b"".join(np.asarray(document, dtype).tobytes() for document in documents)


def ends_of(documents) -> list[int]:
    return np.cumsum([len(document) for document in documents]).tolist()


def write_datatrove(
    path: Path,
    documents,
    *,
    dtype: str = "<u2",
    tokenizer: str = "gpt2",
    beside=("index", "metadata"),
) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(flat(documents, dtype))
    ends = ends_of(documents)
    if "index" in beside:
        path.with_name(f"{path.name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    if "metadata" in beside:
        metadata = f"{tokenizer}|{np.dtype(dtype).itemsize}\n{ends[-1]}\n{ends[-1]} T"
        path.with_name(f"{path.name}.metadata").write_text(metadata)


def olmo_table(documents) -> bytes:
    ends = ends_of(documents)
    lines = [
        f'{end - len(document)},{end},id-{end},"s3://a,b/c.gz",{number}\n'
        for number, (end, document) in enumerate(zip(ends, documents, strict=True))
    ]
    return gzip.compress("".join(lines).encode(), mtime=0)


def write_olmo(path: Path, documents, *, dtype: str = "<u2") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(flat(documents, dtype))
    path.with_suffix(".csv.gz").write_bytes(olmo_table(documents))


def litdata_files(
    chunks, *, dtype: str = "<u2", kind: str = "no_header_numpy:5"
) -> dict[str, bytes]:
    """The files of a LitData folder; each chunk is a list of items."""
    files, entries = {}, []
    for number, items in enumerate(chunks):
        begin = 4 * (len(items) + 2)
        places = [begin, *(begin + end * np.dtype(dtype).itemsize for end in ends_of(items))]
        name = f"chunk-0-{number}.bin"
        files[name] = struct.pack(f"<{len(places) + 1}I", len(items), *places) + flat(items, dtype)
        entries.append(
            {
                "chunk_bytes": len(files[name]),
                "chunk_size": len(items),
                "dim": ends_of(items)[-1],
                "filename": name,
            }
        )
    config = {"compression": None, "data_format": [kind], "encryption": None}
    config |= {"chunk_bytes": None, "chunk_size": 99, "item_loader": "TokensLoader"}
    index = {"chunks": entries, "config": config, "updated_at": "1.5"}
    return {**files, "index.json": json.dumps(index).encode()}


def write_litdata(folder: Path, chunks, **kind) -> None:
    write_files(folder, litdata_files(chunks, **kind))


def write_files(folder: Path, files) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def mds_files(
    shards,
    *,
    encoding: str = "ndarray:uint16",
    dtype: str = "<u2",
    compression=None,
    more=(),
    limit=1 << 26,
) -> dict[str, bytes]:
    """The files of an MDS folder; `more` are other columns: (name, encoding, size, data)."""
    fixed = encoding.count(":") == 2
    files, entries = {}, []
    for number, samples in enumerate(shards):
        width = len(samples[0]) * np.dtype(dtype).itemsize
        columns = sorted([("tokens", encoding, width if fixed else None, None), *more])
        config = {
            "column_encodings": [column[1] for column in columns],
            "column_names": [column[0] for column in columns],
            "column_sizes": [column[2] for column in columns],
            "compression": compression,
            "format": "mds",
            "hashes": [],
            "size_limit": limit,
            "version": 2,
        }
        written = [_mds_sample(sample, columns, dtype) for sample in samples]
        told_config = json.dumps(config, sort_keys=True).encode()
        begin = 4 * (len(samples) + 2) + len(told_config)
        places = [begin, *(begin + end for end in ends_of(written))]
        head = struct.pack(f"<{len(places) + 1}I", len(samples), *places)
        raw = head + told_config + b"".join(written)
        name = f"shard.{number:05}.mds"
        entry = {"raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}, "zip_data": None}
        if compression:
            name, raw = f"{name}.zstd", zstandard.compress(raw)
            entry["zip_data"] = {"basename": name, "bytes": len(raw), "hashes": {}}
        files[name] = raw
        entries.append({**config, **entry, "samples": len(samples)})
    return {
        **files,
        "index.json": json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode(),
    }


def _mds_sample(ids, columns, dtype) -> bytes:
    sizes, parts = b"", b""
    for _, encoding, size, data in columns:
        if data is None:
            data = np.asarray(ids, dtype).tobytes()
            if encoding.startswith("ndarray:") and size is None:
                width = 0 if len(ids) < 256 else 1 if len(ids) < 65536 else 2
                data = bytes([4 | width]) + len(ids).to_bytes(1 << width, "little") + data
        if size is None:
            sizes += struct.pack("<I", len(data))
        parts += data
    return sizes + parts
