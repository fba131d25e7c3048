"""Token files of other programs."""

from __future__ import annotations

import gzip
import json
import struct
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import zstandard
from tests.formats.foreign import (
    flat,
    litdata_files,
    llmc_bytes,
    mds_files,
    megatron_bytes,
    olmo_table,
)

from tokenmill.dataset.verify import examine

from ..case import Case, Parser, refused, require, write_files
from ..forks import in_child
from ..mutate import STRINGS, change_bytes, change_fields, change_lines, change_tree, dump
from .store import change_npy_header, use

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
META = b'{"dtype": "uint16", "vocab_size": 50257, "eot_id": 50256}'


class _Format(Parser):
    """`variants` are sound folders; `options` are how to open them."""

    options: ClassVar[dict[str, Any]] = {}

    def variants(self) -> list[dict[str, bytes]]:
        raise NotImplementedError

    def prepare(self, folder: Path) -> None:
        self.folders = self.variants()

    def list_sound(self) -> list[Case]:
        return [
            Case(files, {"options": self.choose_options(files), "file": self.is_file(files)})
            for files in self.folders
        ]

    def choose_options(self, files: dict[str, bytes]) -> dict[str, Any]:
        """How to open sound files."""
        return dict(self.options)

    def is_file(self, files: dict[str, bytes]) -> bool:
        """Whether to open the first file instead of the folder."""
        return False

    def make(self, random: Random) -> Case:
        files = dict(random.choice(self.folders))
        for name in random.sample(list(files), min(len(files), random.choice([1, 1, 2]))):
            files[name] = self.change(random, name, files[name])
        if random.randrange(15) == 0:
            name = random.choice(list(files))
            stem, dot, ending = name.partition(".")
            parts = [stem, "1", "000001", "9" * 200, "val", "val_1", "٣", "x-00000-of-00004"]
            new = random.choice([*parts, *(one for one in STRINGS if len(one) < 300)])
            data = files[name] if random.randrange(2) else files.pop(name)
            files[new + dot + ending] = data
        options, file = self.choose_options(files), self.is_file(files)
        if random.randrange(8) == 0:
            options["dtype"] = random.choice(["uint16", "uint32", ">u2", "int64", "uint8"])
        if random.randrange(8) == 0:
            options["val_fraction"] = random.choice([0, 0.1, 0.5])
        if random.randrange(8) == 0:
            options["eot_id"] = random.choice([0, 4, 2**32])
        if random.randrange(16) == 0:
            options["format"] = self.name
        return Case(files, {"options": options, "file": file ^ (random.randrange(8) == 0)})

    def change(self, random: Random, name: str, data: bytes) -> bytes:
        """A changed file; JSON and compressed ones as what they contain."""
        if random.randrange(4) == 0:
            return change_bytes(random, data)
        try:
            if name.endswith(".json"):
                return dump(change_tree(random, json.loads(data)), random)
            if name.endswith(".gz"):
                inner = gzip.decompress(data)
                change = random.choice([change_lines, change_bytes])
                return gzip.compress(change(random, inner), 1, mtime=0)
        except (ValueError, OSError, EOFError, RecursionError):
            return change_bytes(random, data)  # it was changed before
        if data.startswith(b"\x93NUMPY"):
            return change_npy_header(random, data)
        fields = self.fields(name, data)
        return change_fields(random, data, fields) if fields else change_bytes(random, data)

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        return []

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder
        if case.facts["file"]:
            path = folder / next(iter(case.files))
        read = use(path, **case.facts["options"])
        require(bool(read) or not case.facts.get("intact"), "sound files were refused")
        with refused():
            options = dict(case.facts["options"])
            options.pop("val_fraction", None)
            examine(path, **options)


def words(start: int, stop: int, kind: str = "<I") -> list[tuple[int, str]]:
    return [(place, kind) for place in range(start, stop, struct.calcsize(kind))]


class NpyFormat(_Format):
    name = "npy"

    def variants(self) -> list[dict[str, bytes]]:
        def save(ids: Any) -> bytes:
            header = np.lib.format.magic(1, 0)
            text = (
                f"{{'descr': '{ids.dtype.str}', 'fortran_order': False, 'shape': ({len(ids)},), }}"
            )
            text = text.ljust(117) + "\n"
            return header + len(text).to_bytes(2, "little") + text.encode() + ids.tobytes()

        one, two = np.arange(40, dtype="<u2"), np.arange(9, dtype=">i4")
        return [
            {"x.npy": save(one)},
            {"x.npy": save(two)},
            {"x_1.npy": save(one), "x_2.npy": save(one), "x_val_1.npy": save(one)},
        ]


class LlmcFormat(_Format):
    name = "llmc"

    def variants(self) -> list[dict[str, bytes]]:
        ids = np.arange(40)
        wide = llmc_bytes(ids, magic=20240801, version=7, dtype="<u4")
        small = {f"fineweb_train_{n:06}.bin": llmc_bytes(ids) for n in (1, 2, 3)}
        return [{"x.bin": llmc_bytes(ids)}, {"x.bin": wide}, small]

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        return words(0, 20)


class MegatronFormat(_Format):
    name = "megatron"

    def variants(self) -> list[dict[str, bytes]]:
        pairs = [
            megatron_bytes(DOCUMENTS),
            megatron_bytes(DOCUMENTS, dtype="<i4", sequences=[2, 1, 1, 3]),
            megatron_bytes(DOCUMENTS, modes=True),
        ]
        return [{"x.bin": ids, "x.idx": index} for ids, index in pairs]

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        if not name.endswith(".idx"):
            return []
        return [(9, "<Q"), (17, "<B"), (18, "<Q"), (26, "<Q"), *words(34, len(data) - 4)]


class DatatroveFormat(_Format):
    name = "datatrove"

    def variants(self) -> list[dict[str, bytes]]:
        small = {
            "x.ds": flat(DOCUMENTS, "<u2"),
            "x.ds.index": struct.pack("<4Q", 3, 4, 6, 10),
            "x.ds.metadata": b"gpt2|2\n10\n10 T",
        }
        several = {f"0000{n}_x{name[1:]}": data for n in (0, 1) for name, data in small.items()}
        return [small, several, {name: small[name] for name in ("x.ds", "x.ds.index")}]

    def change(self, random: Random, name: str, data: bytes) -> bytes:
        if name.endswith(".metadata") and random.randrange(3):
            numbers = ["2", "4", "0", "-1", "٣", "9" * 5000, "1e3", "2.0", "", "1_0", "NaN"]
            one, two, three = random.choices([*numbers, "10"], k=3)
            text = f"{random.choice(STRINGS)}|{one}\n{two}\n{three} T"
            return text.encode("utf-8", "surrogatepass")
        return super().change(random, name, data)

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        return words(0, 32, "<Q") if name.endswith(".index") else []


class OlmoFormat(_Format):
    name = "olmo"
    options: ClassVar[dict[str, Any]] = {"dtype": "uint16"}

    def variants(self) -> list[dict[str, bytes]]:
        small = {"x.npy": flat(DOCUMENTS, "<u2"), "x.csv.gz": olmo_table(DOCUMENTS)}
        return [small, {f"part-{n}-0{name[1:]}": small[name] for n in (0, 1) for name in small}]

    def change(self, random: Random, name: str, data: bytes) -> bytes:
        if name.endswith(".gz") and random.randrange(2):
            numbers = [
                "0",
                "3",
                "-1",
                "٣",
                "9" * 5000,
                "1e3",
                "2.0",
                "",
                "1_0",
                " 4",
                "18446744073709551616",
            ]
            lines = gzip.decompress(data).decode().split("\n")
            place = random.randrange(len(lines))
            cells = lines[place].split(",")
            cells[random.randrange(min(2, len(cells)))] = random.choice(numbers)
            lines[place] = ",".join(cells)
            return gzip.compress("\n".join(lines).encode(), 1, mtime=0)
        return super().change(random, name, data)


class MdsFormat(_Format):
    name = "mds"

    def variants(self) -> list[dict[str, bytes]]:
        small = mds_files([DOCUMENTS, [[1]]])
        more = [("a", "bytes", None, b"1")]
        return [
            small,
            mds_files([DOCUMENTS], compression="zstd"),
            mds_files([[[1, 2], [3, 4]]], encoding="ndarray:uint16:2", more=more),
            mds_files([[[1, 2], [3, 4, 5]]], encoding="bytes"),
            {f"{split}/{name}": data for split in ("train", "val") for name, data in small.items()},
        ]

    def choose_options(self, files: dict[str, bytes]) -> dict[str, Any]:
        return {"dtype": "uint16"} if b'["bytes"]' in files.get("index.json", b"") else {}

    def change(self, random: Random, name: str, data: bytes) -> bytes:
        if name.endswith(".zstd") and random.randrange(2):
            inner = zstandard.decompress(data)
            return zstandard.compress(super().change(random, "x.mds", inner))
        return super().change(random, name, data)

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        return [*words(0, min(24, len(data))), (len(data) - 8, "<B"), (len(data) // 2, "<I")]


class LitDataFormat(_Format):
    name = "litdata"

    def variants(self) -> list[dict[str, bytes]]:
        small = litdata_files([DOCUMENTS, [[1]]])
        return [
            small,
            litdata_files([DOCUMENTS], dtype="<i4", kind="no_header_tensor:16"),
            {f"{split}/{name}": data for split in ("train", "val") for name, data in small.items()},
        ]

    def fields(self, name: str, data: bytes) -> list[tuple[int, str]]:
        return words(0, min(28, len(data)))


class NanoGPTFormat(_Format):
    name = "nanogpt"

    def variants(self) -> list[dict[str, bytes]]:
        ids = flat(DOCUMENTS, "<u2")
        return [{"train.bin": ids, "val.bin": ids}, {"train.bin": ids, "meta.json": META}]


class RawFormat(_Format):
    name = "raw"

    def variants(self) -> list[dict[str, bytes]]:
        ids = flat(DOCUMENTS, "<u2")
        return [
            {"x.bin": ids, "x.json": META},
            {"x.bin": ids, "x.bin.json": META},
            {"a_1.bin": ids, "a_2.bin": ids, "meta.json": META},
        ]

    def is_file(self, files: dict[str, bytes]) -> bool:
        return "x.bin" in files


class ArrayRecordFormat(_Format):
    """Its package checks every record, so the ids are the original ones, or the file is refused."""

    name = "array_record"
    options: ClassVar[dict[str, Any]] = {"dtype": "uint16"}

    def variants(self) -> list[dict[str, bytes]]:
        if not find_spec("array_record"):
            return []
        return [{"x.array_record": bytes.fromhex(in_child(_write_records))}]

    def make(self, random: Random) -> Case:
        if not self.folders:
            return Case({})
        data = self.folders[0]["x.array_record"]
        used = [place for place, byte in enumerate(data) if byte]  # most of it is zeros
        changed = bytearray(data)
        for _ in range(random.randrange(1, 4)):
            place = random.choice([random.choice(used), random.randrange(len(data))])
            other = change_fields(random, bytes(changed[place : place + 8]), [(0, "<B"), (0, "<Q")])
            changed[place : place + len(other)] = other
        data = bytes(changed)
        if random.randrange(4) == 0:
            data = change_bytes(random, data, 1)
        return Case({"x.array_record": data}, {"options": self.options, "file": True})

    def check(self, case: Case, folder: Path) -> None:
        if case.files:
            write_files(folder, case.files)
            read = use(folder / "x.array_record", **case.facts["options"])
            expected = np.concatenate(DOCUMENTS)
            if "train" in read:
                require(np.array_equal(read["train"], expected), "damaged records were read")


def _write_records() -> str:
    import tempfile

    from array_record.python import array_record_module

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.array_record"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for document in DOCUMENTS:
            writer.write(np.asarray(document, "<u2").tobytes())
        writer.close()
        return path.read_bytes().hex()


PARSERS = [
    *(NpyFormat(), LlmcFormat(), MegatronFormat(), DatatroveFormat(), OlmoFormat(), MdsFormat()),
    *(LitDataFormat(), NanoGPTFormat(), RawFormat(), ArrayRecordFormat()),
]
