"""Train a model, with the flags of the sharded-dataset guide: one of two modes.

    python scripts/train.py --model_name my_model --input_file input.txt
    python scripts/train.py --model_name my_model --dataset_dir data/my_dataset \\
        --config_file configs/150M_1024.json --max_iters 50000

It is the command `tokenmill train`, which can do more and takes any of its own flags here too; see
`tokenmill train --help`. The same command resumes after any interruption.
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
        allow_abbrev=False,  # what is not known here is for `tokenmill train`
    )
    parser.add_argument("--model_name", required=True, help="the run is in runs/MODEL_NAME")
    parser.add_argument("--input_file", help="in-memory mode: a text file")
    parser.add_argument("--dataset_dir", help="sharded mode: a prepared dataset")
    parser.add_argument("--config_file", help="settings, such as configs/150M_1024.json")
    parser.add_argument("--max_iters", help="steps of training")
    told, rest = parser.parse_known_args()
    if told.input_file and told.dataset_dir:
        parser.error("give --input_file (in memory) or --dataset_dir (shards), not both")
    if not told.input_file and not told.dataset_dir:
        parser.error("give --input_file FILE (in memory) or --dataset_dir DIR (shards)")
    command = ["train", "--name", told.model_name]
    if told.input_file:
        command += ["--input-file", told.input_file]
    else:
        folder = Path(told.dataset_dir)
        if not any((folder / "train").glob("*.bin")):
            print(
                f"No training shards found: {folder} has no train/*.bin. Make them with: "
                f"python scripts/prepare_dataset.py --input_files TEXTS --out_dir {folder}",
                file=sys.stderr,
            )
            return 1
        command += ["--data", told.dataset_dir]
        metadata = find_manifest(folder)
        if metadata is None or not is_own(metadata):  # made by the guide's own script
            command += ["--format", "raw", "--data-dtype", "uint32"]
            command += [] if "--tokenizer" in rest else ["--tokenizer", "gpt2"]
    command += ["--config", told.config_file] if told.config_file else []
    command += ["--max-steps", told.max_iters] if told.max_iters else []
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
