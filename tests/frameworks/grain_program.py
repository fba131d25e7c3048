"""A program that iterates with Grain: resumes from a state, with a number of workers.

grain_program.py IDS WORKERS STEPS [STATE]
"""

import json
import sys

import tokenmill
import tokenmill.grain as tg

SETTINGS = {"batch_size": 4, "seq_len": 16, "seed": 3}


def main():
    path, workers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tokens = tokenmill.open(path)["train"]
    dataset = tg.make_dataset(tokens, **SETTINGS, limit_rows=81).to_iter_dataset(tg.READ_OPTIONS)
    if workers:
        from grain.multiprocessing import MultiprocessingOptions

        dataset = dataset.mp_prefetch(MultiprocessingOptions(num_workers=workers))
    batches = iter(dataset)
    if len(sys.argv) > 4:
        batches.set_state(json.loads(sys.argv[4]))
    result = [[part.tolist() for part in next(batches)] for _ in range(steps)]
    print(json.dumps({"batches": result, "state": batches.get_state()}))


if __name__ == "__main__":
    main()
