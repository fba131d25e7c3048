"""Saved states and settings: loader states, training checkpoints, metrics, configurations."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import xxhash
import yaml

import tokenmill
from tokenmill.load.mixture import Mixture
from tokenmill.store.tokens import Tokens
from tokenmill.training.chart import draw_svg, draw_text
from tokenmill.training.checkpoints import Checkpoints, RunState, refuse_other_run
from tokenmill.training.config import Config
from tokenmill.training.config_file import read_run_file
from tokenmill.training.model import (
    Shape,
    check_values,
    count_parameters,
    first_values,
    make_shape,
    optimizer_shapes,
)
from tokenmill.training.run_folder import Record, make_curves, read_metrics

from ..case import Case, Parser, read_files, refused, require, write_files
from ..mutate import change_bytes, change_lines, change_tree, dump, pick_value


class LoaderStateParser(Parser):
    """States are JSON that a user saved; Python's parser reads them, and the loader judges them."""

    name = "loader-state"

    def prepare(self, folder: Path) -> None:
        tokens = Tokens.of(np.arange(1000, dtype=np.uint16))
        mixture = Mixture({"web": (tokens, 0.7), "code": (tokens, 0.3)}, changes={40: {"web": 0.5}})
        settings: dict[str, Any] = {"batch_size": 2, "seq_len": 4, "seed": 1, "prefetch": 0}
        self.loaders = [tokenmill.Loader(data, **settings) for data in (tokens, mixture)]
        self.sound = {}
        for number, loader in enumerate(self.loaders):
            for _ in range(3):
                next(loader)
            self.sound[f"{number}.json"] = json.dumps(loader.state_dict()).encode()

    def list_sound(self) -> list[Case]:
        return [Case({"state.json": self.sound[f"{one}.json"]}, {"loader": one}) for one in (0, 1)]

    def make(self, random: Random) -> Case:
        number = random.randrange(2)
        state = json.loads(self.sound[f"{number}.json"])
        return Case({"state.json": dump(change_tree(random, state))}, {"loader": number})

    def check(self, case: Case, folder: Path) -> None:
        try:
            state = json.loads(case.files["state.json"])
        except (ValueError, RecursionError):
            return  # the user's program refuses it
        loader = self.loaders[case.facts["loader"]]
        for force in (False, True, ["seed"]):
            with refused():
                loader.load_state_dict(state, force=force)
                row = loader.row
                inputs = next(loader).inputs.copy()
                again = loader.batch_from(row).inputs
                require(bool((inputs == again).all()), "the batch after the state differs")
                json.dumps(loader.state_dict())


STATE = RunState(
    step=100,
    row=800,
    loader={"version": 1, "row": 800, "names": ["web"], "weights": [[0, [1.0]]], "sources": {}},
    vocab=60,
    eot_id=59,
    shape=asdict(Shape(vocab=64, layers=1, heads=1, kv_heads=1, width=4, seq_len=8)),
    config=asdict(Config(layers=1, heads=1, width=4, seq_len=8, batch_tokens=64)),
    backend="torch",
    fingerprints={"train": "aaaa", "val": "bbbb", "tokenizer": "cccc"},
    val_loss=None,
)
SHAPE = Shape(vocab=64, layers=1, heads=1, kv_heads=1, width=4, seq_len=8)
MODEL = first_values(SHAPE, 1)


def make_optimizer_state(shape: Shape) -> dict[str, np.ndarray]:
    """A state that fits the model."""
    shapes = optimizer_shapes(shape, "muon")
    return {name: np.ones(size, np.float32) for name, size in shapes.items()}


OPTIMIZER = make_optimizer_state(SHAPE)


class CheckpointParser(Parser):
    name = "checkpoint"

    def prepare(self, folder: Path) -> None:
        for step, loss in ((100, 3.0), (200, 2.0)):
            row = 8 * step
            state = msgspec.structs.replace(
                STATE, step=step, row=row, val_loss=loss, loader={**STATE.loader, "row": row}
            )
            Checkpoints(folder).write(state, MODEL, OPTIMIZER, keep=5)
        self.sound = read_files(folder)

    def list_sound(self) -> list[Case]:
        return [Case(self.sound, {"sealed": False})]

    def make(self, random: Random) -> Case:
        files = dict(self.sound)
        place = "step_0000200/"
        sealed = random.randrange(3) > 0
        name = random.choice(["state.json", "state.json", "model.safetensors"])
        name = random.choice([name, name, "optimizer.safetensors"])
        data = files[place + name]
        if random.randrange(4) == 0:
            files[place + name] = change_bytes(random, data)
        elif name == "state.json":
            files[place + name] = dump(change_tree(random, json.loads(data)), random)
        else:
            size = int.from_bytes(data[:8], "little")
            header = dump(change_tree(random, json.loads(data[8 : 8 + size])))
            length = random.choice([len(header)] * 4 + [size, 0, 2**63, 2**64 - 1])
            files[place + name] = length.to_bytes(8, "little") + header + data[8 + size :]
        if sealed:
            files[place + "state.json"] = seal_checkpoint(files, place)
        if random.randrange(20) == 0:
            other = random.choice(
                ["step_٣٣٣٣٣٣٣", "step_" + "9" * 200, "step_0000300", "step_9999999"]
            )
            files[other + "/state.json"] = files[place + "state.json"]
        return Case(files, {"sealed": sealed})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        checkpoints = Checkpoints(folder)
        warnings: list[str] = []
        for find in (checkpoints.newest, checkpoints.best):
            with refused():
                found = find(warnings.append)
                if found is None:
                    continue
                place = found.path.name
                require(place == "step_0000200" or not case.facts.get("intact"), f"{warnings}")
                held = found.parameters(), found.optimizer_state()
                if not case.facts["sealed"]:
                    same = all(
                        one.keys() == two.keys()
                        and all(np.array_equal(one[k], two[k]) for k in one)
                        for one, two in zip(held, (MODEL, OPTIMIZER), strict=True)
                    )
                    require(same, "a damaged checkpoint was loaded")
                with refused():
                    refuse_other_run(found.state, STATE, "Choose another name.")
                with refused():
                    shape = Shape(**found.state.shape)
                    if count_parameters(shape) < 1 << 20:
                        check_values(shape, held[0])
                with refused():
                    Config(**found.state.config)
        with refused():
            checkpoints.at(200)


def seal_checkpoint(files: dict[str, bytes], place: str) -> bytes:
    """`state.json` with the checksums that its files and it have now, if it can be parsed."""
    data = files[place + "state.json"]
    try:
        body = msgspec.json.decode(data)
        for name in body["xxh3_128"]:
            body["xxh3_128"][name] = xxhash.xxh3_128_hexdigest(files[place + name])
        content = msgspec.json.encode((body["version"], body["state"], body["xxh3_128"]))
        body["checksum"] = xxhash.xxh3_128_hexdigest(content)
        return msgspec.json.format(msgspec.json.encode(body), indent=2)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return data


class MetricsParser(Parser):
    """The losses of a run, in a folder that may be a stranger's."""

    name = "metrics"

    def prepare(self, folder: Path) -> None:
        lines = [
            {"step": 10, "row": 80, "loss": 3.5, "seconds": 1.0},
            {"step": 10, "val_loss": 3.0},
        ]
        lines += [{"step": 20, "row": 160, "loss": 2.5}, {"step": 20, "sample": "Once upon"}]
        self.lines = lines
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.sound = {"metrics.jsonl": text, "row_losses.f32": bytes(640)}

    def make(self, random: Random) -> Case:
        files = dict(self.sound)
        if random.randrange(4):
            lines = change_tree(random, self.lines)
            lines = lines if isinstance(lines, list) else [lines]
            files["metrics.jsonl"] = b"".join(dump(line) + b"\n" for line in lines)
        else:
            change = random.choice([change_bytes, change_lines])
            files["metrics.jsonl"] = change(random, files["metrics.jsonl"])
        files["row_losses.f32"] = random.choice([files["row_losses.f32"], b"", bytes(7)])
        return Case(files)

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        with refused():
            curves = make_curves(read_metrics(folder))
            draw_svg(curves, "run")
            draw_text(curves)
        with refused():
            record = Record(folder, step=20, row=160)
            try:
                record.mean_loss(160)
                record.add({"step": 30, "row": 240, "loss": 1.0})
            finally:
                record.close()


CONFIG: dict[str, Any] = {
    "model": {"layers": 2, "heads": 2, "width": 64, "seq_len": 128, "kv_heads": None},
    "training": {"learning_rate": 3e-4, "max_steps": "1e3", "batch_size": 8, "optimizer": "adamw"},
    "seed": 7,
    "dataset_name": "data/web",
}
ALIASES = (
    b"a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
    b"c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
    b"e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e]\n"
    b"g: &g [*f, *f, *f, *f, *f, *f, *f, *f]\nlayers: *g\n"
)
YAML_VALUES = (
    *(b"!!python/object/apply:os.abort []", b"!!int x", b"!!binary x", b"2001-01-01", b"1:30:00"),
    *(b"0o17", b"0x" + b"f" * 9000, b"1" * 9000, b"1e999", b".nan", b"-.inf", b"~", b"*missing"),
    *(
        b"&x [*x]",
        b"{*x: 1}",
        b"? [a]",
        b"|\n  text",
        b"'open",
        b'"\\ud800"',
        b"@",
        b"!!set {a, b}",
    ),
    *(b"2001-99-99", b"[" * 3000, b"{a: " * 3000, b"- " * 3000, b"<<: *a", b"!!timestamp 9", b"-0"),
    *(b"0b" + b"1" * 20000, b"1_" * 3000, b"1" + b":59" * 5000, b"!!float 1_0", b"!!bool x"),
)


class ConfigurationParser(Parser):
    name = "configuration"

    def prepare(self, folder: Path) -> None:
        text = yaml.safe_dump(CONFIG).encode()
        self.sound = {"c.json": json.dumps(CONFIG).encode(), "c.yaml": text}

    def list_sound(self) -> list[Case]:
        return [Case({name: data}) for name, data in self.sound.items()]

    def make(self, random: Random) -> Case:
        name = random.choice(["c.json", "c.yaml", "c.yaml"])
        data = self.sound[name]
        match random.randrange(6):
            case 0:
                data = change_bytes(random, data)
            case 1:
                data = change_lines(random, data)
            case 2 if name == "c.yaml":
                lines = data.splitlines()
                place = random.randrange(len(lines))
                key = lines[place].partition(b":")[0]
                lines[place] = key + b": " + random.choice(YAML_VALUES)
                data = b"\n".join(lines)
            case 3 if name == "c.yaml" and random.randrange(40) == 0:
                data = ALIASES
            case 4:
                flat = {"layers": 2, "width": 64, random.choice(list(asdict(Config()))): 5}
                flat[random.choice(list(flat))] = pick_value(random)
                data = dump(flat)
            case _:
                data = dump(change_tree(random, CONFIG), random)  # JSON is YAML too
        return Case({name: data})

    def check(self, case: Case, folder: Path) -> None:
        write_files(folder, case.files)
        config = read_run_file(folder / next(iter(case.files))).config
        config.find_due(3)
        config.scale(3)
        str(config.validation_tokens)
        shape = make_shape(50_257, config)
        if shape.layers < 1000:
            count_parameters(shape)


PARSERS = [LoaderStateParser(), CheckpointParser(), MetricsParser(), ConfigurationParser()]
