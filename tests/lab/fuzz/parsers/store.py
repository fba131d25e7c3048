"""Prepared datasets: the manifest, the table of sources, document tables, shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xxhash
from tests.store.dataset_builder import build, describe_file

import tokenmill
from tokenmill.dataset.verify import examine
from tokenmill.inspect.info import describe
from tokenmill.storage.names import MANIFEST_NAME, SOURCES_NAME
from tokenmill.store.documents import read_table_header
from tokenmill.store.manifest import Manifest, is_own

from ..case import Case, Parser, read_files, refused, require, write_files
from ..mutate import change_bytes, change_fields, change_tree, dump

TEXTS = {"train": ["Hello, world!\n", "Ünïcödé 🙂", "", "a", "The end.\n"], "val": ["Kept apart."]}
RECORD = 48  # bytes


def seal(head: bytes) -> bytes:
    """A manifest from everything before its checksum."""
    return head + f'"xxh3_128": "{xxhash.xxh3_128_hexdigest(head)}"\n}}\n'.encode()


def change_manifest(random: Random, body: dict[str, Any]) -> bytes:
    """A manifest with changed values and a right checksum."""
    body = {name: value for name, value in body.items() if name != "xxh3_128"}
    text = dump(change_tree(random, body), random).rstrip()
    return seal(text.removesuffix(b"}").rstrip() + b",\n  ")


def use(path: Path, *, tiled: bool = True, **options: Any) -> dict[str, np.ndarray]:
    """Open tokens and read everything, as far as they are not refused; returns what was read.

    Unless `tiled` is False, documents must have all tokens.
    """
    read: dict[str, np.ndarray] = {}
    with refused():
        dataset = tokenmill.open(path, **options)
        repr(dataset)
        for split in dataset.splits:
            with refused():
                tokens = dataset[split]
                if len(tokens) > 1 << 20:
                    continue  # a large sparse file
                ids = read[split] = tokens[:].copy()
                require(len(ids) == len(tokens), "the ids are fewer than the length")
                gathered = tokens.gather(np.arange(len(tokens)), 1, tokens.dtype)
                require(bool((gathered.ravel() == ids).all()), "gathered ids differ")
                require(bool(tokens.fingerprint), "there is no fingerprint")
            with refused():
                if tokens.documents is not None:
                    total = sum(one.length for one in tokens.documents)
                    require(total == len(tokens) or not tiled, "documents do not have all tokens")
                    tokens.documents.at(len(tokens) // 2)
                tokens.find_document_starts(np.arange(len(tokens)), 1)
        if dataset.manifest is not None:  # others may name gpt2, which takes long to load
            with refused():
                _ = dataset.tokenizer
    return read


class _Dataset(Parser):
    def prepare(self, folder: Path) -> None:
        self.ids = build(folder, TEXTS, shard_tokens=20)
        self.sound = read_files(folder)
        self.body = json.loads(self.sound[MANIFEST_NAME])

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        if case.facts.get("brief"):
            data = case.files[MANIFEST_NAME]
            is_own(data)
            manifest = Manifest.from_json(data, folder)
            manifest.to_json()
            for source in manifest.sources:
                str(source)
            return
        read = use(folder, tiled=False)  # single documents are not compared with all others
        if case.facts.get("intact"):
            require(read.keys() == self.ids.keys(), "sound files were refused")
        problems = True
        with refused():
            problems = bool(examine(folder).problems)
        with refused():
            str(describe(folder))
        if not problems:
            use(folder)
        if case.facts.get("sealed"):
            return
        # Without new checksums, damage is found by `verify`, or changes nothing.
        if not problems:
            same = all(np.array_equal(read.get(split), ids) for split, ids in self.ids.items())
            require(same, "`verify` finds no problem, but the ids differ")


class ManifestParser(_Dataset):
    name = "manifest"

    def make(self, random: Random) -> Case:
        sealed = random.randrange(4) > 0
        if sealed and random.randrange(5):
            data = change_manifest(random, self.body)
        else:
            data = change_bytes(random, self.sound[MANIFEST_NAME])
            data = seal(data[: max(data.rfind(b'"xxh3_128"'), 0)]) if sealed else data
        facts = {"sealed": sealed, "brief": random.randrange(4) > 0}
        return Case({**self.sound, MANIFEST_NAME: data}, facts)


class GrownManifestParser(ManifestParser):
    """The manifest of a dataset that has grown twice; its earlier generations are opened, too."""

    name = "grown-manifest"

    def prepare(self, folder: Path) -> None:
        texts = folder.with_name(f"{folder.name}-texts")
        texts.mkdir()
        for number in range(3):
            some = [f"text {number} {n} " * n for n in range(1, 9)]
            (texts / f"{number}.txt").write_text("<|endoftext|>".join(some))
            more: dict[str, Any] = {"append": True}
            if not number:
                more = {"tokenizer": "bytes", "tokens_per_shard": 300, "val_fraction": 0.3}
            tokenmill.prepare(texts / f"{number}.txt", folder, workers=1, progress=False, **more)
        self.ids = {name: tokens[:] for name, tokens in tokenmill.open(folder).items()}
        self.sound = read_files(folder)
        self.body = json.loads(self.sound[MANIFEST_NAME])

    def check(self, case: Case, folder: Path) -> None:
        super().check(case, folder)
        with refused():
            manifest = Manifest.from_json(case.files[MANIFEST_NAME], folder)
            for number in range(1, min(manifest.generation, 4) + 1):
                earlier = Manifest.from_json(manifest.at(number).to_json(), folder)
                require(earlier.generation == number, "another generation")
                for name, split in earlier.splits.items():
                    size = manifest.splits[name]
                    require(split.tokens <= size.tokens, "an earlier generation has more tokens")
            use(folder, tiled=False, generation=1)


class SourcesParser(_Dataset):
    name = "sources"

    def make(self, random: Random) -> Case:
        data = self.sound[SOURCES_NAME]
        sealed = random.randrange(4) > 0
        if random.randrange(4):
            lines = [dump(change_tree(random, json.loads(line))) for line in data.splitlines()]
            data = b"\n".join(lines * random.choice([1, 1, 2])) + random.choice([b"\n", b"\n", b""])
        else:
            data = change_bytes(random, data)
        body = dict(self.body)
        if sealed:
            entry = {"count": data.count(b"\n"), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
            body["sources"] = {**body["sources"], **entry}
        text = json.dumps({name: body[name] for name in body if name != "xxh3_128"}, indent=2)
        manifest = seal(text.removesuffix("\n}").encode() + b",\n  ")
        files = {**self.sound, SOURCES_NAME: data, MANIFEST_NAME: manifest}
        return Case(files, {"sealed": sealed, "brief": random.randrange(3) > 0})


class TablesParser(_Dataset):
    name = "tables"

    def make(self, random: Random) -> Case:
        files = dict(self.sound)
        shards = [one for split in self.body["splits"].values() for one in split["shards"]]
        shard = random.choice(shards)
        path = shard["documents_path"] if random.randrange(4) else shard["path"]
        files[path] = self._change(random, files[path])
        sealed = random.randrange(4) > 0
        if sealed:
            body = json.loads(self.sound[MANIFEST_NAME])
            for split in body["splits"].values():
                for one in split["shards"]:
                    for name, checksum in (
                        ("path", "xxh3_128"),
                        ("documents_path", "documents_xxh3_128"),
                    ):
                        one[checksum] = xxhash.xxh3_128_hexdigest(files[one[name]])
                        if one[name] == path and name == "documents_path" and random.randrange(3):
                            count = (len(files[path]) - 128) // RECORD
                            change = count - one["documents"]
                            one["documents"] += change
                            split["documents"] += change
            del body["xxh3_128"]
            text = json.dumps(body, indent=2).removesuffix("\n}").encode() + b",\n  "
            files[MANIFEST_NAME] = seal(text)
        return Case(files, {"sealed": sealed})

    def _change(self, random: Random, data: bytes) -> bytes:
        if not data.startswith(b"\x93NUMPY"):
            return change_bytes(random, data)
        match random.randrange(4):
            case 0:
                return change_npy_header(random, data)
            case 1:
                return change_bytes(random, data)
        start = len(data) - len(data) % RECORD if len(data) < 128 else 128
        fields = [(place, "<Q") for place in range(start, len(data) - 7, 8)] or [(0, "<Q")]
        return change_fields(random, data, fields)


def change_npy_header(random: Random, data: bytes) -> bytes:
    """A .npy file whose header says something else, with the right or a wrong length."""
    size = int.from_bytes(data[8:10], "little")
    header, rest = data[10 : 10 + size].decode("latin-1"), data[10 + size :]
    numbers = [*map(str, (0, 1, -1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64)), "9" * 4400, "1.5"]
    changes = {
        r"\((\d+),\)": [f"({one},)" for one in numbers]
        + ["()", "(1, 2)", "(True,)", "[5]", "None", "(" * 200, "('a',)", "(0x5,)", "(5L,)"],
        r"'fortran_order': \w+": ["'fortran_order': True", "'fortran_order': 5", ""],
        r"'descr': [^,]+,": [
            f"'descr': {one},"
            for one in (
                "'|O'",
                "'>u2'",
                "'<f8'",
                "5",
                "'<U99999999999'",
                "[('a', '|O')]",
                "''",
                "None",
            )
        ],
        r"^\{": [
            "{'x': 1, ",
            "[",
            "{{",
            "(" * 5000,
            "-" * 9000 + "{",
            "__import__('os').abort() or {",
        ],
        r"\}": ["", "}}", "}\0", ", **{}}"],
    }
    pattern = random.choice(list(changes))
    header = re.sub(pattern, lambda _: random.choice(changes[pattern]), header, count=1)
    text = header.encode("latin-1", "replace")
    length = random.choice([len(text), len(text), len(text), 0, 65535, len(text) + 1]) & 0xFFFF
    version = random.choice([b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\0\0", b"\xff\1"])
    width = 2 if version in (b"\1\0", b"\0\0") else 4
    return data[:6] + version + length.to_bytes(width, "little") + text + rest


class FramesParser(_Dataset):
    """Compressed shards: every frame has a checksum, so no change gives other ids."""

    name = "frames"

    def prepare(self, folder: Path) -> None:
        self.ids = build(folder, TEXTS, shard_tokens=20, frame_tokens=8)
        self.sound = read_files(folder)
        self.body = json.loads(self.sound[MANIFEST_NAME])

    def make(self, random: Random) -> Case:
        files, body = dict(self.sound), json.loads(self.sound[MANIFEST_NAME])
        shard = random.choice(body["splits"]["train"]["shards"])
        path = shard["path"]
        files[path] = self._change(random, files[path])
        if random.randrange(4):
            shard["compressed"] = describe_file(files[path])
        if not random.randrange(4):
            shard["compressed"]["bytes"] = random.choice([0, 1, 17, 2**31, 2**32 + 90, 2**56])
        if not random.randrange(4):
            body["compression"]["tokens_per_frame"] = random.choice([1, 7, 9, 20, 1 << 18])
        del body["xxh3_128"]
        text = json.dumps(body, indent=2).removesuffix("\n}").encode() + b",\n  "
        files[MANIFEST_NAME] = seal(text)
        return Case(files, {"sealed": True})

    def _change(self, random: Random, data: bytes) -> bytes:
        frames = int.from_bytes(data[-9:-5], "little")
        table = len(data) - 17 - 8 * frames
        match random.randrange(4):
            case 0:
                return change_bytes(random, data[:table]) + data[table:]
            case 1:
                return change_bytes(random, data)
            case 2:
                return data[:table] + change_bytes(random, data[table:])
        fields = [(place, "<I") for place in range(table, len(data) - 9, 4)]
        return change_fields(random, data, [*fields, (len(data) - 9, "<I"), (len(data) - 4, "<I")])

    def check(self, case: Case, folder: Path) -> None:
        super().check(case, folder)
        for split, ids in use(folder, tiled=False).items():
            require(np.array_equal(ids, self.ids[split]), "a changed file gives other ids")


class TableHeaderParser(Parser):
    name = "npy-header"

    def prepare(self, folder: Path) -> None:
        build(folder, TEXTS, shard_tokens=20)
        self.sound = {"x.npy": (folder / "train/shard_00000.docs.npy").read_bytes()}
        np.save(folder / "y.npy", np.arange(9, dtype=np.uint16))
        self.plain = (folder / "y.npy").read_bytes()

    def make(self, random: Random) -> Case:
        data = random.choice([self.sound["x.npy"], self.plain])
        change = random.choice([change_npy_header, change_npy_header, change_bytes])
        return Case({"x.npy": change(random, data)})

    def check(self, case: Case, folder: Path) -> None:
        from tokenmill.formats.npy import parse_header

        write_files(folder, case.files)
        with refused(), (folder / "x.npy").open("rb") as file:
            read_table_header(file, "x.npy", 2)
        with refused():
            parse_header("x.npy", case.files["x.npy"])


PARSERS = [
    ManifestParser(),
    GrownManifestParser(),
    SourcesParser(),
    TablesParser(),
    FramesParser(),
    TableHeaderParser(),
]
