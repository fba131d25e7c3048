"""Compare the trainer's model with GPT-2 from `transformers`: validation loss and speed.

    python benchmarks/train.py [--steps 200] [--environment FOLDER]

All models get the same rows, tokens per step and threads, with the number of parameters within 5%. Each
runs in its own process; they alternate every few steps, so that noise affects all of them. GPT-2 has
the usual settings: AdamW at 6e-4, warm-up and a cosine to a tenth, betas 0.9 and 0.95, weight decay
0.1 on matrices, clipping at 1, no dropout, scaled dot-product attention, fused AdamW; and once more
at 2e-3, which suits so short a run better. The trainer has its own defaults.

The text is that of the Python installation, with a vocabulary of 4,096 trained on it, so that the
vocabulary does not dominate the model. `transformers` is installed in its own environment, which also
sees the packages of this one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import site
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from corpus import make_corpus
from results import record

import tokenmill
from tokenmill.training.backend import StepRows
from tokenmill.training.config import Config
from tokenmill.training.model import count_parameters, first_values, make_shape
from tokenmill.training.torch_backend import TorchBackend

PACKAGES = (
    "transformers huggingface_hub regex tqdm filelock packaging pyyaml safetensors tokenizers httpx"
)
VOCAB = 4096
TEXT = 24_000_000  # bytes
STRETCH = 4  # steps of one turn
VAL_ROWS = 128
CONFIG = Config(
    layers=4,
    heads=4,
    width=256,
    seq_len=256,
    batch_tokens=8 * 256,
    warmup_steps=20,
    decay_fraction=0.4,
)
OWN = {"adamw": replace(CONFIG, optimizer="adamw"), "muon": CONFIG}
GPT2_RATES = {"gpt2": 6e-4, "gpt2-faster": 2e-3}
CONTESTANTS = {
    "`transformers` GPT-2, AdamW at 6e-4": "gpt2",
    "`transformers` GPT-2, AdamW at 2e-3": "gpt2-faster",
    "tokenmill, AdamW": "adamw",
    "tokenmill, Muon and AdamW": "muon",
}


class Contestant(Protocol):
    """A model in the comparison."""

    parameters: int

    def step(self, rows: StepRows, step: int) -> None:
        """Train on rows."""

    def losses(self, rows: StepRows) -> Any:
        """The loss of each target."""


class Own:
    """The trainer's model."""

    def __init__(self, config: Config) -> None:
        shape = make_shape(VOCAB, config)
        self.config, self.parameters = config, count_parameters(shape)
        self.backend = TorchBackend(config, shape, first_values(shape, config.seed))

    def step(self, rows: StepRows, step: int) -> None:
        """Train on rows."""
        self.backend.step(rows, self.config.scale(step))

    def losses(self, rows: StepRows) -> Any:
        """The loss of each target."""
        return self.backend.evaluate(rows)


class GPT2:
    """GPT-2 with one more layer than the trainer's model, because its head shares the embedding."""

    def __init__(self, config: Config, rate: float) -> None:
        import torch

        peer: Any = importlib.import_module("transformers")
        peer.logging.set_verbosity_error()  # about ids of special tokens, which are not used
        torch.manual_seed(config.seed)
        self.torch, self.steps, self.rate = torch, config.max_steps, rate
        self.warmup = config.warmup_steps
        settings = peer.GPT2Config(
            vocab_size=VOCAB,
            n_positions=config.seq_len,
            n_embd=config.width,
            n_layer=config.layers + 1,
            n_head=config.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        self.model: Any = peer.GPT2LMHeadModel(settings)
        assert self.model.config._attn_implementation == "sdpa"
        every = list(self.model.parameters())
        self.parameters = sum(one.numel() for one in every)
        groups = [
            {"params": [one for one in every if one.ndim > 1], "weight_decay": 0.1},
            {"params": [one for one in every if one.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)

    def scale(self, step: int) -> float:
        """Warm-up, then a cosine from 1 to 0.1."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.55 + 0.45 * math.cos(math.pi * done)

    def _losses(self, rows: StepRows) -> Any:
        inputs, targets = (self.torch.tensor(ids) for ids in (rows.inputs, rows.targets))
        logits = self.model(inputs).logits
        return self.torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none"
        )

    def step(self, rows: StepRows, step: int) -> None:
        """Train on rows."""
        self._losses(rows).mean().backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * self.scale(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def losses(self, rows: StepRows) -> Any:
        """The loss of each target."""
        with self.torch.no_grad():
            return self._losses(rows).numpy()


def contend(name: str, dataset: Path, steps: int) -> None:
    """Run one contestant: each line of input starts some steps; the last one, validation."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    config = replace(OWN.get(name, CONFIG), max_steps=steps)
    model: Contestant = Own(config) if name in OWN else GPT2(config, GPT2_RATES[name])
    print(json.dumps({"parameters": model.parameters}), flush=True)
    data = tokenmill.open(dataset)
    settings: dict[str, Any] = {"seq_len": config.seq_len, "seed": config.seed}
    with tokenmill.Loader(data["train"], batch_size=config.batch_rows, **settings) as loader:
        for first in range(0, steps, STRETCH):
            sys.stdin.readline()
            started = time.perf_counter()
            for step in range(first, min(first + STRETCH, steps)):
                batch = next(loader)
                model.step(StepRows(inputs=batch.inputs, targets=batch.targets), step)
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    sys.stdin.readline()
    val = tokenmill.Loader(data["val"], batch_size=16, order="sequential", prefetch=0, **settings)
    found = []
    for number in range(VAL_ROWS // 16):
        batch = val.batch_at(number)
        found.append(
            float(model.losses(StepRows(inputs=batch.inputs, targets=batch.targets)).mean())
        )
    print(json.dumps({"loss": float(np.mean(found))}), flush=True)


def make_environment(folder: Path) -> Path:
    """Make an environment with `transformers` and the packages of this one; returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        source = Path(tokenmill.__file__).parents[1]
        (packages / "here.pth").write_text("\n".join([str(source), *site.getsitepackages()]) + "\n")
        words = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES.split()]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return python


def make_dataset(folder: Path) -> Path:
    """Prepare the text of the Python installation with its own vocabulary."""
    text = [str(path) for path in make_corpus(folder / "text", TEXT, "real")]
    tokenizer = folder / "tokenizer.json"
    tokenmill.train_tokenizer(text, vocab_size=VOCAB, out=tokenizer)
    tokenmill.prepare(text, folder / "dataset", tokenizer=str(tokenizer), val_fraction=0.05)
    return folder / "dataset"


def compare(python: Path, dataset: Path, steps: int) -> list[dict[str, Any]]:
    """Run all contestants in turn; returns a row of results for each."""
    words = [str(python), "-W", "ignore", __file__, "--dataset", str(dataset)]
    words += ["--steps", str(steps), "--contestant"]
    running = {
        name: subprocess.Popen(
            [*words, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, word in CONTESTANTS.items()
    }

    def ask(name: str, what: str) -> float:
        one = running[name]
        assert one.stdin is not None
        assert one.stdout is not None
        if what != "parameters":
            print(file=one.stdin, flush=True)
        return float(json.loads(one.stdout.readline())[what])

    parameters = {name: ask(name, "parameters") for name in running}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for first in range(0, steps, STRETCH):
        for name in running:
            seconds[name].append(ask(name, "seconds"))
        times = ", ".join(f"{name} {seconds[name][-1]:.1f} s" for name in running)
        print(f"steps {first}-{min(first + STRETCH, steps)}: {times}", flush=True)
    losses = {name: ask(name, "loss") for name in running}
    for one in running.values():
        one.communicate()
    return describe(parameters, seconds, losses)


def describe(
    parameters: dict[str, float], seconds: dict[str, list[float]], losses: dict[str, float]
) -> list[dict[str, Any]]:
    """The rows of the table: median speeds and median ratios of all turns."""
    peer = next(iter(CONTESTANTS))
    assert all(abs(count / parameters[peer] - 1) < 0.05 for count in parameters.values())
    rows = []
    for name, spent in seconds.items():
        # Without the first turn, which warms up, and the last, which may be shorter.
        whole = spent[1:-1] or spent
        against = [theirs / ours for theirs, ours in zip(seconds[peer], spent, strict=True)]
        rows.append(
            {
                "model": name,
                "parameters": f"{parameters[name]:,.0f}",
                "validation loss": round(losses[name], 3),
                "tokens/s": round(STRETCH * CONFIG.batch_tokens / statistics.median(whole)),
                "speed": round(statistics.median(against), 2),
            }
        )
    return rows


def main() -> None:
    """Measure all contestants and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--environment", type=Path, help="where transformers is, or goes")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--dataset", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        contend(args.contestant, args.dataset, args.steps)
        return

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = make_environment(args.environment or folder / "environment")
        rows = compare(python, make_dataset(folder), args.steps)
    record("train", {"tokens": args.steps * CONFIG.batch_tokens, "steps": args.steps}, rows)


if __name__ == "__main__":
    main()
