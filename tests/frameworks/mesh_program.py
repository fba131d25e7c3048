"""A JAX program: prints what its devices hold of some steps of a run.

mesh_program.py IDS PROCESS PROCESSES PORT
"""

import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tokenmill
import tokenmill.jax

SETTINGS = {"batch_size": 8, "seq_len": 16, "seed": 3}


def shardings():
    """Names, and shardings over the four devices."""
    devices = np.array(jax.devices())
    assert len(devices) == 4
    line = Mesh(devices, ("data",))
    turned = Mesh(devices[[2, 0, 3, 1]], ("data",))
    square = Mesh(devices.reshape(2, 2), ("data", "model"))
    across = Mesh(devices.reshape(2, 2).T, ("data", "model"))
    return {
        "rows over all devices": NamedSharding(line, P("data")),
        "devices in another order": NamedSharding(turned, P("data")),
        "rows over one axis": NamedSharding(square, P("data")),
        "rows over the axis across processes": NamedSharding(across, P("data")),
        "rows over both axes": NamedSharding(across, P(("model", "data"))),
        "rows and tokens": NamedSharding(square, P("model", "data")),
        "tokens alone": NamedSharding(line, P(None, "data")),
        "the same everywhere": NamedSharding(line, P()),
    }


def describe(array):
    """What the devices of this process hold: first row, first token, values."""
    shards = array.addressable_shards
    return [
        [*(part.start or 0 for part in shard.index), np.asarray(shard.data).tolist()]
        for shard in shards
    ]


def main():
    path, process, processes, port = sys.argv[1], *map(int, sys.argv[2:])
    if processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    tokens = tokenmill.open(path)["train"]
    result = {}
    for name, sharding in shardings().items():
        loader = tokenmill.jax.Loader(tokens, **SETTINGS, sharding=sharding)
        next(loader)
        state = loader.state_dict()
        again = tokenmill.jax.Loader(tokens, **SETTINGS, sharding=sharding)
        again.load_state_dict(state)
        batches = [next(loader), next(again), loader.batch_at(1_000)]
        result[name] = {
            "read": loader.arrays.batch_size,
            "steps": [[describe(array) for array in batch] for batch in batches],
        }
    by_default = tokenmill.jax.Loader(tokens, **SETTINGS, mesh=Mesh(jax.devices(), ("data",)))
    assert by_default.sharding == tokenmill.jax.Loader(tokens, **SETTINGS).sharding
    print(json.dumps(result))


if __name__ == "__main__":
    main()
