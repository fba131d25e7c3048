"""The DDP program of docs/distributed.md, killed and restarted, ends as if it had not stopped."""

import torch
from page_programs import assert_same, expected_rows, make_corpus, read_program, run, take_rows


def test_the_documented_program_ends_as_if_it_had_not_been_killed(tmp_path):
    program = read_program("PyTorch DDP")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    result = {}
    for folder in (whole, killed):
        folder.mkdir()
        make_corpus(folder)
    result[whole] = run(whole, program, processes=2)
    run(killed, program, processes=2, crash_at=18)
    before = [rows[:15] for rows in take_rows(killed, 2)]  # to the last checkpoint
    result[killed] = run(killed, program, processes=2)
    after = take_rows(killed, 2)
    taken = [one + two for one, two in zip(before, after, strict=True)]
    assert_same(taken, expected_rows(killed, 2, batch_size=4, steps=30))
    assert result[whole].count("validation loss") == 3
    assert result[killed].splitlines() == result[whole].splitlines()[1:]
    ends = [torch.load(folder / "checkpoint.pt") for folder in (whole, killed)]
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name
    assert ends[0]["loader"] == ends[1]["loader"]
    # Each validation has the same rows: those of whole batches, divided among the ranks.
    for rows in take_rows(whole, 2, "val"):
        size = len(rows) // 3
        assert [a.tolist() for a in rows[:size]] == [b.tolist() for b in rows[size : 2 * size]]
