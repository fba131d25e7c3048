"""Files of records: JSON arrays, CSV, templates over JSON lines, and the file of kept fields."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from random import Random
from typing import Any

from tokenmill.sources.csv_kind import choose_csv_kind
from tokenmill.sources.find import find_files
from tokenmill.sources.kept_fields import parse_kept_fields
from tokenmill.sources.read import Reading, read_range
from tokenmill.sources.recognize import find_fault
from tokenmill.sources.records import Chunk
from tokenmill.store.fields import DOCUMENTS_PER_FRAME, FieldsFile, FieldsReader, FieldsWriter

from ..case import Case, Parser, refused, require, write_files
from ..mutate import change_bytes, change_lines, change_tree, dump
from .texts import HOLD, RECORDS

TEMPLATE = "{text?}|{meta.url?}{id?}"
KEEP = parse_kept_fields("id,meta.url,score")


def read_all(path: Path, text_field: str, block: int) -> list[Chunk]:
    """The chunks of a file of records."""
    (source,), _ = find_files([path])
    source = choose_csv_kind(source, text_field, "records")
    find_fault(source, text_field)
    how = Reading(text_field=text_field, hold_limit=HOLD, block=block, keep=KEEP)
    chunks = list(read_range(source, 0, source.size, how))
    for chunk in chunks:
        for fields in chunk.fields.values():
            require(isinstance(json.loads(fields), dict), "the kept fields are not an object")
            require(b"\n" not in fields, "the kept fields have a line end")
    return chunks


def count_records(chunks: list[Chunk]) -> int:
    """The number of documents and rejections."""
    return sum(len(chunk.texts) - chunk.continues + len(chunk.rejections) for chunk in chunks)


class JsonArrayParser(Parser):
    """The elements of a valid array are those that the standard library finds."""

    name = "json-array"

    def prepare(self, folder: Path) -> None:
        self.sound = {"x.json": json.dumps([*RECORDS, "a string"], indent=1).encode()}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"block": 64, "field": "text"})]

    def make(self, random: Random) -> Case:
        data = self.sound["x.json"]
        match random.randrange(4):
            case 0:
                data = change_bytes(random, data)
            case 1:
                data = change_lines(random, data)
            case _:
                texts = [dump(record) for record in RECORDS]
                place = random.randrange(len(texts))
                texts[place] = dump(change_tree(random, RECORDS[place]))
                data = b"[" + random.choice([b",", b",\n", b" , "]).join(texts) + b"]"
        facts = {
            "block": random.choice([16, 64, 1 << 20]),
            "field": random.choice(["text", TEMPLATE]),
        }
        return Case({"x.json": data}, facts)

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        chunks = read_all(folder / "x.json", case.facts["field"], case.facts["block"])
        try:
            value = json.loads(case.files["x.json"])
        except (ValueError, RecursionError):
            return
        (source,), _ = find_files([folder / "x.json"])
        if isinstance(value, list) and source.kind == "json":
            found = count_records(chunks)
            require(found == len(value), f"{len(value)} elements gave {found} records")


class CsvParser(Parser):
    """Every row of the standard library's reader is a text or a rejection."""

    name = "csv"

    def prepare(self, folder: Path) -> None:
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(["id", "text", "score"])
        writer.writerows(
            [n, record["text"] + ' "x",\r\n', n / 2] for n, record in enumerate(RECORDS)
        )
        self.sound = {"x.csv": file.getvalue().encode()}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"block": 64})]

    def make(self, random: Random) -> Case:
        data = self.sound["x.csv"]
        for _ in range(random.choice([1, 1, 3])):
            data = random.choice([change_bytes, change_lines])(random, data)
        return Case({"x.csv": data}, {"block": random.choice([16, 64, 1 << 20])})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        chunks = read_all(folder / "x.csv", "text", case.facts["block"])
        data = case.files["x.csv"].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
        header = next((line for line in data.replace("\r", "\n").split("\n") if line), "")
        delimiter = next((sign for sign in ",;\t" if sign in header), ",")
        rows = csv.reader(io.StringIO(data, newline=""), delimiter=delimiter, strict=True)
        expected = -1  # the header
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error:
                expected += 1
                continue
            expected += bool(row)
        found = count_records(chunks)
        require(found == expected, f"{expected} rows gave {found} records")


class TemplateParser(Parser):
    """Every line is a text, a rejection, or blank, whatever its fields hold."""

    name = "template"

    def prepare(self, folder: Path) -> None:
        self.sound = {"x.jsonl": b"".join(dump(record) + b"\n" for record in RECORDS)}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"block": 64})]

    def make(self, random: Random) -> Case:
        lines = [dump(record) for record in RECORDS]
        place = random.randrange(len(lines))
        lines[place] = dump(change_tree(random, RECORDS[place]))
        return Case({"x.jsonl": b"\n".join(lines)}, {"block": random.choice([16, 1 << 20])})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        found = count_records(read_all(folder / "x.jsonl", TEMPLATE, case.facts["block"]))
        lines = sum(bool(line.strip()) for line in case.files["x.jsonl"].split(b"\n"))
        require(found == lines, f"{lines} lines gave {found} records")


class KeptFieldsParser(Parser):
    """A changed file is refused, or gives objects; memory stays small."""

    name = "kept-fields"
    documents = 150

    def prepare(self, folder: Path) -> None:
        (folder / "train").mkdir(parents=True, exist_ok=True)
        with FieldsWriter(folder, "train") as writer:
            for number in range(self.documents):
                writer.add(b'{"n":%d,"url":"https://example.org"}\n' % number)
            entry = writer.finish()
        self.sound = {"fields.jsonl.zst": (folder / entry.path).read_bytes()}

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"documents": self.documents})]

    def make(self, random: Random) -> Case:
        ((name, data),) = self.sound.items()
        documents = random.choice([self.documents] * 4 + [0, 1, 64, 128, 1 << 40])
        return Case({name: change_bytes(random, data)}, {"documents": documents})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        ((name, data),) = case.files.items()
        entry = FieldsFile(path=name, bytes=len(data), xxh3_128="")
        documents = case.facts["documents"]
        reader = FieldsReader(folder, entry, documents, DOCUMENTS_PER_FRAME)
        for number in (0, 63, 64, documents - 1):
            with refused():
                found: Any = reader.read(number) if 0 <= number < documents else {}
                require(isinstance(found, dict), "the fields are not an object")
        count = sum(1 for _ in reader.read_lines())
        require(count == documents, f"{documents} documents gave {count} lines")


PARSERS = [JsonArrayParser(), CsvParser(), TemplateParser(), KeptFieldsParser()]
