"""One rank of a run: reads jobs from stdin, one per line, and prints hashes of their rows."""

import json
import sys

import xxhash

import tokenmill


def run_loader(tokens, job):
    """Batches of a loader from a state on, and the state after them."""
    loader = tokenmill.Loader(tokens, **job["settings"])
    if job["state"] is not None:
        loader.load_state_dict(job["state"])
    batches = [next(loader).inputs for _ in range(job["steps"])]
    loader.close()
    return batches, loader.state_dict()


def run_data_loader(tokens, job):
    """Batches of a PyTorch DataLoader with workers from a row on, and the row after them."""
    from torch.utils.data import DataLoader

    from tokenmill.torch import TokenBatches

    settings = job["settings"]
    row = 0 if job["state"] is None else job["state"]["row"]
    rows = settings["batch_size"] * settings["world_size"] * job["steps"]
    dataset = TokenBatches(tokens, **settings, start=row, limit_rows=row + rows)
    loader = DataLoader(dataset, batch_size=None, num_workers=job["workers"])
    return [inputs.numpy() for inputs, _ in loader], {"row": row + rows}


def main():
    tokens = tokenmill.open(sys.argv[1])["train"]
    for line in sys.stdin:
        job = json.loads(line)
        run = run_loader if job["workers"] is None else run_data_loader
        batches, state = run(tokens, job)
        result = [[xxhash.xxh3_64_hexdigest(row.tobytes()) for row in batch] for batch in batches]
        print(json.dumps({"batches": result, "state": state}), flush=True)


if __name__ == "__main__":
    main()
