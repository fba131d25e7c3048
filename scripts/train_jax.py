"""Train with JAX, from the configuration file of the guide about Grain.

    python scripts/train_jax.py --config config.yaml

The file also names the data; docs/training.md lists its keys:

    data_config:
      dataset_name: stories.txt   # texts, tokenized once, or a prepared dataset
      tokenizer_name: gpt2
      batch_size: 512             # sequences per step
    model_config:
      maxlen: 256
    train_config:
      num_epochs: 1

It runs `tokenmill train --backend jax` and accepts its flags too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from tokenmill.cli import main as tokenmill
from tokenmill.cli.commands import find_flags
from tokenmill.cli.flags import name_flags
from tokenmill.compat.text_source import open_texts
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.training.config import Config
from tokenmill.training.config_file import RunFile, override, read_run_file


def main() -> int:
    """Translate the file into flags."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,  # unknown flags are for `tokenmill train`
    )
    parser.add_argument("--config", required=True, help="YAML or JSON")
    given, rest = parser.parse_known_args()
    try:
        flags = _translate(read_run_file(given.config), Path(given.config).stem)
    except TokenmillError as error:
        print(name_flags(str(error), find_flags(["train"])), file=sys.stderr)
        return error.exit_status
    typed = {argument.partition("=")[0] for argument in rest}
    kept = [f"{name}={value}" for name, value in flags.items() if name not in typed]
    return tokenmill(["train", *kept, *rest])


def _translate(file: RunFile, stem: str) -> dict[str, str]:
    """The flags of `tokenmill train` for the settings in a file."""
    if file.dataset_name is None:
        raise UsageError("the configuration has no dataset_name, which names the text to train on.")
    data = open_texts(Path(file.dataset_name), file.tokenizer_name or "gpt2")
    config = file.config
    if file.num_epochs is not None:
        rows = int((len(data["train"]) - 1) // config.seq_len * file.num_epochs)
        config = override(config, max_steps=max(1, -(-rows // config.batch_rows)))
    flags = {"--backend": "jax", "--data": str(data.path), "--name": file.name or stem}
    for field in fields(Config):
        value = getattr(config, field.name)
        if value is not None:  # defaults too, because they differ without a GPU
            flags[f"--{field.name.replace('_', '-')}"] = str(value)
    return flags


if __name__ == "__main__":
    sys.exit(main())
