"""What inspections keep beside a dataset, and lists of excluded documents.

A damaged file is refused, or made again; the answers are those of undamaged files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.store.dataset_builder import build

import tokenmill
from tokenmill.errors import DatasetError
from tokenmill.inspect.kept import KEPT_NAME
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.stats import kept_statistics as stats_kept
from tokenmill.inspect.where import keys
from tokenmill.preparation.edit_exclusions import add_exclusions, remove_exclusions
from tokenmill.preparation.exclusion import Exclusion, read_exclusions, read_list
from tokenmill.progress import Nobody
from tokenmill.store.documents import Document
from tokenmill.training.run_folder import DATA_NAME
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data

from ..case import Case, Parser, read_files, refused, require, write_files
from ..mutate import change_bytes, change_fields, change_lines, change_tree, dump
from .receipts import change_receipt
from .store import TEXTS

_DIGITS = set("0123456789abcdefABCDEF")


class ExclusionParser(Parser):
    """A list is refused with the number of the line, or gives the keys that a plain reader finds."""

    name = "exclusions"

    def prepare(self, folder: Path) -> None:
        chance = Random(1)
        lines = [{"key": f"{chance.getrandbits(128):032x}"} for _ in range(5)]
        lines[1] |= {"split": "train", "document": 7, "source": "a.jsonl", "offset": 4711}
        lines[2] |= {"beginning": "Buy now! \u202e", "because": "spam"}
        lines[3] |= {"score": [0.5, None], "key": lines[3]["key"].upper()}
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.sound = {"list": text, "end": text.rstrip(b"\n"), "blank": b"\n" + text + b"\n \n"}
        self.lines = lines

    def list_sound(self) -> list[Case]:
        return [Case({"list": data}) for data in self.sound.values()]

    def make(self, random: Random) -> Case:
        data = self.sound[random.choice(list(self.sound))]
        match random.randrange(4):
            case 0:
                data = change_bytes(random, data)
            case 1:
                data = change_lines(random, data)
            case _:
                lines = [dump(change_tree(random, line)) for line in self.lines]
                place = random.randrange(len(lines))
                lines = [json.dumps(line).encode() for line in self.lines[:place]] + lines[place:]
                data = b"\n".join(lines)
        return Case({"list": data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        path = folder / "list"
        known = {(pair[0] << 64) + pair[1] for pair in read_exclusions(path).keys.keys.tolist()}
        plain = [_read_key(line) for line in case.files["list"].split(b"\n") if line.strip()]
        require(None not in plain, "a line without a key was accepted")
        require(known == {int(key or "", 16) for key in plain}, "the list has other keys")
        require(len(list(read_list(path))) == len(plain), "entries are missing")
        entry = Exclusion(key="0123456789abcdef" * 2)
        require(add_exclusions(path, [entry]) == [entry], "an entry was not added")
        require(len(read_exclusions(path)) == len(known) + 1, "an entry is missing")
        require(remove_exclusions(path, [entry.key]) == [entry], "an entry was not removed")
        require(len(read_exclusions(path)) == len(known), "an entry came back")


def _read_key(line: bytes) -> str | None:
    """The key in a line; None if a reader of JSON finds none. Other entries may be any bytes."""
    try:
        key = json.loads(line.decode("utf-8", "replace"), parse_int=float)["key"]
    except (ValueError, TypeError, KeyError):
        return None
    except RecursionError:
        return None
    return key if isinstance(key, str) and len(key) == 32 and set(key) <= _DIGITS else None


class KeyIndexParser(Parser):
    """An index of keys that is damaged is made again, so a lookup always finds the documents."""

    name = "key-index"

    def prepare(self, folder: Path) -> None:
        keys.SCANNED = 0  # so that an index is made for a small dataset
        build(folder / "in", {"train": [f"text {n}" for n in range(300)], "val": ["text 5", "v"]})
        data = tokenmill.open(folder / "in")
        self.documents = [one for split in data for one in data[split].documents]
        self._find(folder)
        self.sound = read_files(folder / "in")
        self.index = [name for name in self.sound if name.startswith(f"{KEPT_NAME}/")]
        assert len(self.index) >= 2

    def _find(self, folder: Path) -> None:
        dataset = tokenmill.open(folder / "in")
        for document in self.documents[::50]:
            assert document.key is not None
            found = keys.find_key(dataset, document.key, watcher=Nobody())
            wanted = [one for one in self.documents if one.key == document.key]
            require(_places(found) == _places(wanted), "other documents were found")
        require(keys.find_key(dataset, "0" * 32, watcher=Nobody()) == [], "a key was made up")

    def make(self, random: Random) -> Case:
        name = random.choice(self.index)
        data = self.sound[name]
        if name.endswith(".json"):
            data = change_receipt(random, data, sealed=random.randrange(2) > 0)
        elif random.randrange(2) and len(data) > 64:
            places = [8 * random.randrange(len(data) // 8) for _ in range(3)]
            data = change_fields(random, data, [(place, "<Q") for place in places])
        else:
            data = change_bytes(random, data)
        return Case({**self.sound, name: data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder / "in", case.files)
        self._find(folder)
        self._find(folder)


def _places(documents: Sequence[Document]) -> set[tuple[str, int]]:
    return {(one.split, one.number) for one in documents}


class StatisticsParser(Parser):
    """Kept statistics that are damaged are not used; they are computed again, and are the same."""

    name = "statistics"

    def prepare(self, folder: Path) -> None:
        build(folder / "in", TEXTS)
        self.wanted = self._compute(folder)
        self.sound = read_files(folder / "in")
        self.kept = [name for name in self.sound if name.startswith(f"{KEPT_NAME}/")]
        assert self.kept

    def _compute(self, folder: Path) -> Any:
        found = tokenmill.stats(folder / "in", watcher=Nobody())
        return found.tokens, found.documents, found.counts.tolist()

    def make(self, random: Random) -> Case:
        name = random.choice([*self.kept, *(one for one in self.kept if one.endswith(".json"))])
        data = self.sound[name]
        if name.endswith(".json"):
            # A receipt with another checksum is that of a stranger, who may claim any number.
            data = change_receipt(random, data, sealed=(sealed := random.randrange(2) > 0))
            return Case({**self.sound, name: data}, {"sealed": sealed})
        return Case({**self.sound, name: change_bytes(random, data)}, {"sealed": False})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder / "in", case.files)
        kept = stats_kept.read_kept(tokenmill.open(folder / "in"), None)
        require(kept is not None or not case.facts.get("intact"), "kept statistics were refused")
        if kept is not None:
            repr(kept)
        with refused():
            found = self._compute(folder)
            require(case.facts.get("sealed") or found == self.wanted, "the statistics differ")


class WordIndexParser(Parser):
    """An index of words that is damaged is refused, or not used: a search finds everything."""

    name = "word-index"

    def prepare(self, folder: Path) -> None:
        texts = [f"Some words and the number {n}, which is {n * n} squared." for n in range(400)]
        build(folder / "in", {"train": texts})
        dataset = tokenmill.open(folder / "in")
        tokenmill.index(dataset, watcher=Nobody())
        self.wanted = self._find(folder)
        assert len(self.wanted) > 0
        self.sound = read_files(folder / "in")
        self.files = [name for name in self.sound if name.startswith(f"{KEPT_NAME}/")]

    def _find(self, folder: Path) -> list[tuple[int, int]]:
        found = tokenmill.search(folder / "in", "number 17", watcher=Nobody())
        return [(match.token, match.byte) for match in found]

    def make(self, random: Random) -> Case:
        name = random.choice([*self.files, *(one for one in self.files if one.endswith(".json"))])
        data = self.sound[name]
        if name.endswith(".json") and random.randrange(3):
            with_changes = change_tree(random, json.loads(data))
            return Case({**self.sound, name: dump(with_changes)})
        return Case({**self.sound, name: change_bytes(random, data)})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder / "in", case.files)
        try:
            found = self._find(folder)
        except DatasetError:
            return
        # An index has no checksums of its own. A damaged one may hide an occurrence, but every
        # occurrence that it leads to is compared with the tokens.
        require(set(found) <= set(self.wanted), "an occurrence was made up")
        if case.facts.get("intact"):
            require(found == self.wanted, "occurrences are missing")


class RunDataParser(Parser):
    """data.json of a run: refused, or a view of rows that are inside the data."""

    name = "run-data"

    def prepare(self, folder: Path) -> None:
        build(folder / "in", {"train": ["some words to read " * 20, "more " * 50]})
        tokens = tokenmill.open(folder / "in")["train"]
        loader = tokenmill.Loader(tokens, batch_size=2, seq_len=16, seed=1, prefetch=0)
        origin = DataOrigin.of([str(folder / "in")])
        phase = RunPhase(step=0, row=0, batch_rows=2, world_size=1)
        (folder / "run").mkdir()
        write_run_data(folder / "run", origin, loader.rows.identity, phase)
        self.sound = {
            name: data.replace(str(folder).encode(), b"FOLDER")
            for name, data in read_files(folder).items()
        }

    def make(self, random: Random) -> Case:
        name = f"run/{DATA_NAME}"
        data = self.sound[name]
        if random.randrange(4):
            data = dump(change_tree(random, json.loads(data)))
        else:
            data = change_bytes(random, data)
        return Case({**self.sound, name: data})

    def check(self, case: Case, folder: Path) -> None:
        place = str(folder).encode()
        write_files(
            folder, {name: data.replace(b"FOLDER", place) for name, data in case.files.items()}
        )
        view = open_run(folder / "run")
        with refused():
            rows = view.step_rows(1)
            ids = view.read(np.arange(rows.start, min(rows.stop, rows.start + 4)))
            require(ids.ndim == 2, "rows have another shape")
            for row in list(rows)[:4]:
                one = view.span(row)
                view.place(row)
                tokens = len(view.datasets[one.source][view.split])
                require(0 <= one.start < one.stop <= tokens, "a row is outside the data")


PARSERS = [
    ExclusionParser(),
    KeyIndexParser(),
    StatisticsParser(),
    WordIndexParser(),
    RunDataParser(),
]
