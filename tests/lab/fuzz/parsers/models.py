"""The folder of a stranger's run: its checkpoint is loaded, and the model generates text."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from random import Random

import msgspec

from tokenmill.tokenizers.minimal import ByteTokenizer
from tokenmill.training.checkpoints import Checkpoints
from tokenmill.training.config import Config
from tokenmill.training.model import first_values, make_shape
from tokenmill.training.sample import sample

from ..case import Case, Parser, read_files, refused, write_files
from ..mutate import change_bytes, change_tree, dump
from .states import STATE, make_optimizer_state, seal_checkpoint

PLACE = "checkpoints/step_0000100/"


class SampleParser(Parser):
    name = "sample"

    def prepare(self, folder: Path) -> None:
        self.sound = {}
        if not find_spec("torch"):
            return
        import torch

        torch.set_num_threads(1)
        config = Config(layers=1, heads=1, width=8, seq_len=8, batch_tokens=64)
        shape = make_shape(257, config)
        tokenizer = ByteTokenizer()
        state = msgspec.structs.replace(
            STATE,
            vocab=257,
            eot_id=256,
            shape=asdict(shape),
            config=asdict(config),
            fingerprints={"tokenizer": tokenizer.fingerprint},
        )
        optimizer = make_optimizer_state(shape)
        Checkpoints(folder / "checkpoints").write(state, first_values(shape, 1), optimizer, keep=1)
        (folder / "tokenizer_state.json").write_text(json.dumps(tokenizer.state()))
        self.sound = read_files(folder)

    def make(self, random: Random) -> Case:
        files = dict(self.sound)
        if not files:
            return Case({})
        name = random.choice(["state.json", "state.json", "state.json", "model.safetensors"])
        data = files[PLACE + name]
        if random.randrange(8) == 0:
            files[PLACE + name] = change_bytes(random, data)
        elif name == "state.json":
            body = json.loads(data)
            inner = random.choice(["shape", "config", "state"])
            where = body["state"] if inner != "state" else body
            where[inner] = change_tree(random, where[inner])
            files[PLACE + name] = dump(body)
        else:
            size = int.from_bytes(data[:8], "little")
            header = dump(change_tree(random, json.loads(data[8 : 8 + size])))
            files[PLACE + name] = len(header).to_bytes(8, "little") + header + data[8 + size :]
        files[PLACE + "state.json"] = seal_checkpoint(files, PLACE)
        return Case(files, {"best": random.randrange(2) == 0})

    def check(self, case: Case, folder: Path) -> None:
        if case.files:
            write_files(folder, case.files)
            best = bool(case.facts.get("best"))
            if case.facts.get("intact"):
                sample(folder, "Hello", tokens=3, device="cpu")
            with refused():
                sample(folder, "Hello", tokens=3, device="cpu", best=best, warn=lambda _: None)


PARSERS = [SampleParser()]
