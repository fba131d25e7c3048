"""The formats that `tokenmill.export` writes, one module each."""

from __future__ import annotations

from tokenmill.convert.targets import datatrove, litdata, mds, megatron, plain
from tokenmill.convert.targets.protocol import Target

TARGETS: dict[str, Target] = {
    "llmc": plain.Llmc(),
    "nanogpt": plain.NanoGPT(),
    "npy": plain.Npy(),
    "megatron": megatron.Megatron(),
    "datatrove": datatrove.Datatrove(),
    "mds": mds.MDS,
    "litdata": litdata.LITDATA,
}
