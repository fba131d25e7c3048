"""Write or read documents of tokens with another program's own package, for `peers.py`.

    python benchmarks/peer_files.py write PEER FOLDER DOCUMENTS.npz TOKENS
    python benchmarks/peer_files.py read PEER FOLDER DOCUMENTS.npz

Runs in an environment that has the package, without tokenmill. TOKENS is the approximate number of
tokens per file, for formats with several files. Without documents, all ids are read as one document.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Documents = list[np.ndarray[Any, Any]]
ROW = 64  # for formats that are read in rows


def load(path: Path) -> Documents:
    """Documents from a file of ids and lengths."""
    with np.load(path) as saved:
        return np.split(saved["ids"], np.cumsum(saved["lengths"])[:-1])


def save(path: Path, documents: Documents) -> None:
    """Documents to a file of ids and lengths."""
    np.savez(path, ids=np.concatenate(documents), lengths=[len(one) for one in documents])


def write_megatron(folder: Path, documents: Documents, _: int) -> None:
    indexed, torch = import_module("megatron.core.datasets.indexed_dataset"), import_module("torch")
    kind = np.int32 if documents[0].itemsize == 4 else np.uint16
    builder = indexed.IndexedDatasetBuilder(str(folder / "train.bin"), dtype=kind)
    for document in documents:
        builder.add_document(torch.from_numpy(document.astype(np.int64)), [len(document)])
    builder.finalize(str(folder / "train.idx"))


def read_megatron(folder: Path) -> Documents:
    indexed = import_module("megatron.core.datasets.indexed_dataset")
    dataset = indexed.IndexedDataset(str(folder / "train"))
    borders = dataset.document_indices
    return [
        np.concatenate([dataset[number] for number in range(borders[n], borders[n + 1])])
        for n in range(len(borders) - 1)
    ]


def write_datatrove(folder: Path, documents: Documents, _: int) -> None:
    tokens = import_module("datatrove.pipeline.tokens.tokenizer")
    file = tokens.TokenizedFile(
        str(folder),
        "00000_train.ds",
        tokenizer_name_or_path="gpt2",
        save_final_metadata=True,
        token_size=documents[0].itemsize,
    )
    for document in documents:
        file.write(document.tolist(), None)
    file.close()


def read_datatrove(folder: Path) -> Documents:
    dataset, merger = (
        import_module("datatrove.utils.dataset"),
        import_module("datatrove.pipeline.tokens.merger"),
    )
    (path,) = folder.glob("*_train.ds")
    width = int((path.with_name(f"{path.name}.metadata")).read_text().split("\n")[0].split("|")[1])
    rows = dataset.DatatroveFileDataset(str(path), seq_len=ROW - 1, token_size=width)
    ids = np.concatenate([rows[n]["input_ids"].numpy() for n in range(len(rows))])
    with path.with_name(f"{path.name}.index").open("rb") as file:
        ends = merger.load_doc_ends(file)
    return np.split(ids, ends[:-1])


def write_mds(
    folder: Path, documents: Documents, size: int, compression: str | None = None
) -> None:
    streaming = import_module("streaming")
    whole = sum(map(len, documents)) <= size
    with streaming.MDSWriter(
        out=str(folder / "train"),
        columns={"tokens": f"ndarray:{documents[0].dtype.name}"},
        compression=compression,
        size_limit=None if whole else size * documents[0].itemsize,
    ) as writer:
        for document in documents:
            writer.write({"tokens": document})


def write_mds_zstd(folder: Path, documents: Documents, size: int) -> None:
    write_mds(folder, documents, size, "zstd")


def read_mds(folder: Path) -> Documents:
    dataset = import_module("streaming").LocalDataset(str(folder / "train"))
    return [dataset[number]["tokens"] for number in range(len(dataset))]


def write_litdata(folder: Path, documents: Documents, size: int) -> None:
    streaming, loaders = (
        import_module("litdata.streaming"),
        import_module("litdata.streaming.item_loader"),
    )
    torch = import_module("torch")
    kind = np.int32 if documents[0].itemsize == 4 else np.uint16
    (folder / "train").mkdir()
    cache = streaming.Cache(
        str(folder / "train"), chunk_size=size, item_loader=loaders.TokensLoader(ROW)
    )
    for number, document in enumerate(documents):
        cache[number] = torch.from_numpy(document.astype(kind))
    cache.done()
    cache.merge()


def read_litdata(folder: Path) -> Documents:
    litdata = import_module("litdata")
    loaders = import_module("litdata.streaming.item_loader")
    rows = litdata.StreamingDataset(
        str(folder / "train"), item_loader=loaders.TokensLoader(block_size=ROW)
    )
    return [np.concatenate([rows[n].numpy() for n in range(len(rows))])]


def write_array_record(folder: Path, documents: Documents, _: int) -> None:
    module = import_module("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(folder / "train.array_record"), "group_size:1")
    for document in documents:
        writer.write(document.tobytes())
    writer.close()


def write_npy(folder: Path, documents: Documents, _: int) -> None:
    np.save(folder / "train.npy", np.concatenate(documents))


def read_npy(folder: Path) -> Documents:
    return [np.load(folder / "train.npy")]


WRITERS: dict[str, Callable[[Path, Documents, int], None]] = {
    "megatron": write_megatron,
    "datatrove": write_datatrove,
    "mds": write_mds,
    "mds-zstd": write_mds_zstd,
    "litdata": write_litdata,
    "array_record": write_array_record,
    "npy": write_npy,
}
READERS: dict[str, Callable[[Path], Documents]] = {
    "megatron": read_megatron,
    "datatrove": read_datatrove,
    "mds": read_mds,
    "litdata": read_litdata,
    "npy": read_npy,
}


def main() -> None:
    what, peer, place, documents, *size = sys.argv[1:]
    folder = Path(place)
    if what == "write":
        folder.mkdir()
        WRITERS[peer](folder, load(Path(documents)), int(size[0]))
    else:
        save(Path(documents), READERS[peer](folder))
    sys.stdout.flush()
    os._exit(0)  # some packages leave threads running that would keep the process alive


if __name__ == "__main__":
    main()
