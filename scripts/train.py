"""Train a model with the flags of the sharded-dataset guide, in one of two modes.

    python scripts/train.py --model_name my_model --input_file input.txt
    python scripts/train.py --model_name my_model --dataset_dir data/my_dataset \\
        --config_file configs/150M_1024.json --max_iters 50000

It runs `tokenmill train` and accepts its flags too; see `tokenmill train --help`. The same command
resumes after any interruption.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenmill.cli import main as tokenmill
from tokenmill.store.manifest import find_manifest, is_own


def main() -> int:
    """Translate the guide's flags."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,  # unknown flags are for `tokenmill train`
    )
    parser.add_argument("--model_name", required=True, help="the run is in runs/MODEL_NAME")
    parser.add_argument("--input_file", help="in-memory mode: a text file")
    parser.add_argument("--dataset_dir", help="sharded mode: a prepared dataset")
    parser.add_argument("--config_file", help="settings, such as configs/150M_1024.json")
    parser.add_argument("--max_iters", help="steps of training")
    given, rest = parser.parse_known_args()
    if given.input_file and given.dataset_dir:
        parser.error("give --input_file (in memory) or --dataset_dir (shards), not both")
    if not given.input_file and not given.dataset_dir:
        parser.error("give --input_file FILE (in memory) or --dataset_dir DIR (shards)")
    command = ["train", "--name", given.model_name]
    if given.input_file:
        command += ["--input-file", given.input_file]
    else:
        folder = Path(given.dataset_dir)
        if not any((folder / "train").glob("*.bin")):
            print(
                f"No training shards found: {folder} has no train/*.bin. Make them with: "
                f"python scripts/prepare_dataset.py --input_files TEXTS --out_dir {folder}",
                file=sys.stderr,
            )
            return 1
        command += ["--data", given.dataset_dir]
        metadata = find_manifest(folder)
        if metadata is None or not is_own(metadata):  # made by the guide's own script
            command += ["--format", "raw", "--data-dtype", "uint32"]
            command += [] if "--tokenizer" in rest else ["--tokenizer", "gpt2"]
    command += ["--config", given.config_file] if given.config_file else []
    command += ["--max-steps", given.max_iters] if given.max_iters else []
    own = {
        "name": "--model_name",
        "input_file": "--input_file",
        "data": "--dataset_dir",
        "config": "--config_file",
        "max_steps": "--max_iters",
    }
    return tokenmill([*command, *rest], flags=own)


if __name__ == "__main__":
    sys.exit(main())
