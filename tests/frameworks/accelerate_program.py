"""One rank under Accelerate: writes the rows of each way of reading as JSON.

accelerate_program.py FOLDER: ids.npy in FOLDER counts up, so window w starts with w * 4, and the first
token of a row identifies it.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import tokenmill
import tokenmill.torch
from tokenmill.errors import UsageError
from tokenmill.huggingface import TokenRows

SETTINGS = {"seq_len": 4, "seed": 3}


def numbers(batch):
    ids = batch["input_ids"] if isinstance(batch, dict) else batch[0]
    return (ids[:, 0] // 4).tolist()


def accelerate(**config):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


def read(rows, *, batch_size=4, drop_last=False, epochs=1, workers=0, **config):
    """The rows of some epochs, through a prepared DataLoader."""
    loader = DataLoader(
        rows,
        batch_size=batch_size,
        drop_last=drop_last,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    prepared = accelerate(**config).prepare(loader)
    return [numbers(batch) for _ in range(epochs) for batch in prepared]


def resume_stateful(rows, folder):
    """An epoch with a stop in the middle, through save_state and load_state."""
    taken = []
    for stop in (3, None):
        accelerator = accelerate(use_stateful_dataloader=True)
        loader = accelerator.prepare(DataLoader(rows, batch_size=4))
        if stop is None:
            accelerator.load_state(folder / "stateful")
        for count, batch in enumerate(loader, 1):
            taken.append(numbers(batch))
            if count == stop:
                accelerator.save_state(folder / "stateful")
                accelerator.wait_for_everyone()
                break
    return taken


def resume_registered(tokens, folder):
    """The same with a loader that Accelerate only saves."""
    taken = []
    for stop in (3, None):
        accelerator = accelerate()
        loader = tokenmill.torch.Loader(tokens, batch_size=4, limit_epochs=1, **SETTINGS)
        accelerator.register_for_checkpointing(loader)
        if stop is None:
            accelerator.load_state(folder / "registered")
        for count, batch in enumerate(loader, 1):
            taken.append(numbers(batch))
            if count == stop:
                accelerator.save_state(folder / "registered")
                accelerator.wait_for_everyone()
                break
    return taken


def read_batches(tokens, **settings):
    """Whole batches, which Accelerate reads on rank 0 and divides, or the error."""
    batches = tokenmill.torch.TokenBatches(
        tokens, batch_size=4, limit_epochs=1, **SETTINGS, **settings
    )
    try:
        return [numbers(b) for b in accelerate().prepare(DataLoader(batches, batch_size=None))]
    except UsageError as error:
        return str(error)


def warn(rows):
    """The warnings if rows are shuffled again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        taken = read_all(rows, shuffle=True)
    return taken, [str(one.message) for one in caught if "tokenmill" in str(one.message)]


def read_all(rows, **options):
    return [numbers(batch) for batch in DataLoader(rows, batch_size=8, **options)]


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    tokens = tokenmill.open(folder / "ids.npy")["train"]
    rows = TokenRows(tokens, **SETTINGS)
    uneven = TokenRows(tokens, **SETTINGS, limit_rows=61)
    fixed = TokenRows(tokens, seq_len=4, order="sequential", limit_rows=16)
    accelerator = accelerate()
    result = {
        "default": read(rows),
        "dispatched": read(rows, dispatch_batches=True),
        "split": read(rows, batch_size=8, split_batches=True),
        "three epochs": read(rows, epochs=3),
        "three epochs, persistent workers": read(rows, epochs=3, workers=2),
        "uneven": read(uneven),
        "uneven, dropped": read(uneven, drop_last=True),
        "uneven, not evened": read(uneven, even_batches=False),
        "the same rows to validate": read(fixed, epochs=2),
        "stateful": resume_stateful(rows, folder),
        "registered": resume_registered(tokens, folder),
        "batches": read_batches(tokens),
        "batches of all ranks": read_batches(tokens, rank=0, world_size=1),
        "warning": warn(rows),
    }
    (folder / f"result-{accelerator.process_index}.json").write_text(json.dumps(result))
    accelerator.end_training()


if __name__ == "__main__":
    main()
