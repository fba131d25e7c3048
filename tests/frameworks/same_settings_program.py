"""One of two processes: makes loaders that differ between them, and writes the errors as JSON.

same_settings_program.py torch FOLDER, under torchrun
same_settings_program.py jax FOLDER PROCESS PORT
"""

import json
import sys
from pathlib import Path

import numpy as np

import tokenmill
from tokenmill.errors import UsageError

IDS = np.arange(5_000)
SAME = {"batch_size": 4, "seq_len": 16, "seed": 3}


def attempts(rank):
    """The settings of this rank, by name."""
    return {
        "same": SAME,
        "batch_size": {**SAME, "batch_size": 8 if rank else 4},
        "seed": {**SAME, "seed": 1 << 70 if rank else 3},
        "seq_len": {**SAME, "seq_len": 8 if rank else 16},
        "limit": {**SAME, "limit_rows": 64 if rank else 80},
        "data": {**SAME, "ids": IDS[rank:]},
        "same again": SAME,
    }


def make(loader, settings, **others):
    settings = {**settings}
    tokens = tokenmill.Tokens.of(settings.pop("ids", IDS))
    try:
        return next(loader(tokens, **settings, **others)) and ""
    except UsageError as error:
        return str(error)


def run_torch():
    import torch.distributed as dist

    from tokenmill.torch import Loader, TokenBatches

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    result = {name: make(Loader, settings) for name, settings in attempts(rank).items()}
    dist.barrier()
    if rank == 0:  # does not wait for the other rank
        result["one rank"] = make(Loader, SAME, rank=0, world_size=1)
    dist.barrier()
    result["same after it"] = make(Loader, SAME)
    other = {**SAME, "seed": rank}
    result["batches"] = make(lambda *a, **k: iter(TokenBatches(*a, **k)), other)
    dist.barrier()
    if rank == 0:  # its share alone, so rows would be missing; the next comparison notices
        result["a share on one rank"] = make(Loader, {**SAME, "seq_len": 8})
    dist.barrier()
    if rank == 1:
        result["after it"] = make(Loader, SAME)
    dist.destroy_process_group()
    return rank, result


def run_jax(process, port):
    import jax

    from tokenmill.jax import Loader

    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    result = {name: make(Loader, settings) for name, settings in attempts(process).items()}
    own = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    if process == 0:
        result["one rank"] = make(Loader, SAME, sharding=own)
    result["same after it"] = make(Loader, SAME)
    return process, result


def main():
    kind, folder, *others = sys.argv[1:]
    rank, result = run_torch() if kind == "torch" else run_jax(*map(int, others))
    Path(folder, f"result-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
