"""Commands on a stranger's dataset: what they print is safe for a terminal, and never a traceback."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

import xxhash
from tests.store.dataset_builder import build

from tokenmill.cli import main
from tokenmill.storage.names import MANIFEST_NAME, SOURCES_NAME, TOKENIZER_NAME

from ..case import Case, Parser, read_files, require, write_files
from ..mutate import STRINGS, change_bytes, change_tree, dump
from .store import TEXTS, change_manifest, seal

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
COMMANDS = (
    *(["info"], ["info"], ["info", "--json"], ["verify"], ["peek"], ["peek", "--document", "1"]),
    *(["peek", "--ids"], ["peek", "--token", "5"], ["export", "--to", "npy", "--out", "out"]),
    ["reshard", "--out", "out", "--tokens-per-shard", "9"],
)


class CommandParser(Parser):
    name = "commands"

    def prepare(self, folder: Path) -> None:
        hostile = {**TEXTS, "val": ["\x1b[31m \u202e \u2028 \u200b \U000e0041"]}
        build(folder, hostile, shard_tokens=20)
        self.sound = read_files(folder)
        self.body = json.loads(self.sound[MANIFEST_NAME])

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"command": command}) for command in COMMANDS]

    def make(self, random: Random) -> Case:
        files, body = dict(self.sound), json.loads(self.sound[MANIFEST_NAME])
        match random.randrange(5):
            case 0:
                source = {"path": random.choice(STRINGS) + "a.txt", "bytes": 5, "unit": "byte"}
                files[SOURCES_NAME] = dump(change_tree(random, source)) + b"\n"
                digest = xxhash.xxh3_128_hexdigest(files[SOURCES_NAME])
                body["sources"] |= {"xxh3_128": digest, "bytes": 5}
                files[MANIFEST_NAME] = _write(body)
            case 1:
                name = random.choice([TOKENIZER_NAME, *files])
                files[name] = change_bytes(random, files[name])
            case 2:
                text = random.choice(STRINGS)
                body["ledger"]["set_aside"] = [{"source": text, "reason": random.choice(STRINGS)}]
                body["ledger"]["dropped"][text] = {"documents": 0, "bytes": 0}
                body["tokenizer"]["name"] = random.choice([text, "bytes"])
                body["settings"][text] = text
                files[MANIFEST_NAME] = _write(body)
            case _:
                files[MANIFEST_NAME] = change_manifest(random, self.body)
        return Case(files, {"command": random.choice(COMMANDS)})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder / "in", case.files)
        os.chdir(folder)
        name, *options = case.facts["command"]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main([name, "in", *options])
        text = out.getvalue() + err.getvalue()
        require(status in (0, 1, 2), f"the status is {status}")
        require(status == 0 or not case.facts.get("intact"), f"a sound dataset was refused: {text}")
        found = UNSAFE.search(text)
        require(found is None, f"the output has {found and found[0]!r}")
        require("Traceback" not in text, "the output has a traceback")
        require("bug in tokenmill" not in text, f"the output admits a bug: {text[:200]}")


def _write(body: dict[str, object]) -> bytes:
    body = {name: value for name, value in body.items() if name != "xxh3_128"}
    return seal(dump(body).removesuffix(b"}") + b",\n  ")


PARSERS = [CommandParser()]
