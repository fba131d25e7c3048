"""`where` says when a document is read: the same as all batches of a loader, searched for it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import UsageError
from tokenmill.inspect.where.where import where

SEQ_LEN, BATCH, RANKS = 16, 3, 2
STEPS = 150  # that are searched by brute force


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two datasets of lines of different lengths."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, power in (("squares", 2), ("cubes", 3)):
        lines = [f"line {n} of {name} {'x' * (n % 40)}: {n**power}" for n in range(120)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
        tokenmill.prepare(
            folder / f"{name}.txt",
            folder / name,
            tokenizer="bytes",
            documents="line",
            val_fraction=0.1,
        )
    return folder


def find_by_force(document, starts):
    """Search all rows for tokens of a document: (row, step, rank, index, start, stop)."""
    found = []
    for row, start in enumerate(starts):
        if start is None:  # of another source
            continue
        step, inside = divmod(row, RANKS * BATCH)
        low = max(document.start - start, 0)
        high = min(document.start + document.length - start, SEQ_LEN + 1)
        if low < high:
            found.append((row, step, *divmod(inside, BATCH), low, high))
    return found


@pytest.mark.parametrize("order", ["shuffled", "blocks", "sequential", "random"])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_rows_of_a_document_are_those_of_a_loader(corpora, order, mixed):
    sizes = {"block_rows": 3, "group_blocks": 2} if order == "blocks" else {}
    settings = {"seq_len": SEQ_LEN, "seed": 5, "order": order, **sizes}
    tokens = tokenmill.open(corpora / "squares")["train"]
    given, data, name = corpora / "squares", tokens, ""
    if mixed:
        given = [f"squares={corpora}/squares:2", f"cubes={corpora}/cubes:1"]
        other = tokenmill.open(corpora / "cubes")["train"]
        data, name = tokenmill.Mixture({"squares": (tokens, 2.0), "cubes": (other, 1.0)}), "squares"
    loaders = [
        tokenmill.Loader(data, batch_size=BATCH, rank=rank, world_size=RANKS, **settings)
        for rank in range(RANKS)
    ]

    starts = []
    for step in range(STEPS):
        for loader in loaders:
            batch = loader.batch_at(step)
            for index in range(BATCH):
                source, start = loader.rows.origin(len(starts))
                starts.append(start if source == name else None)
                if source == name:
                    assert np.array_equal(batch.tokens[index], tokens[start : start + SEQ_LEN + 1])
    for number in range(0, len(tokens.documents), 17):
        document = tokens.documents[number]
        (found,) = where(
            given, document.key, batch_size=BATCH, world_size=RANKS, **settings
        ).documents
        assert found.document == document
        expected = find_by_force(document, starts)
        listed = [
            (one.row, one.step, one.rank, one.index, one.start, one.stop)
            for one in found.visits.first
        ]
        assert len(listed) == 5
        searched = [one for one in listed if one[0] < STEPS * RANKS * BATCH]
        assert searched
        assert searched == expected[: len(searched)]
        if order != "random":
            windows = (len(tokens) - 1) // SEQ_LEN
            begins = np.arange(windows) * SEQ_LEN
            stop = document.start + document.length
            holds = (begins < stop) & (begins + SEQ_LEN >= document.start)
            assert found.visits.rows == int(holds.sum())
            assert sum(one.epoch == 0 for one in found.visits.first) == min(5, int(holds.sum()))


def test_documents_of_other_splits_are_not_read(corpora):
    data = tokenmill.open(corpora / "squares")
    document = data["val"].documents[0]
    settings = {"seq_len": 16, "batch_size": 2}
    (found,) = where(corpora / "squares", document.key, **settings).documents
    assert (found.split, found.visits) == ("val", None)
    last = data["train"].documents[-1]
    (found,) = where(corpora / "squares", last.key, seq_len=1000, batch_size=2).documents
    assert found.visits.first == ()


def test_settings_of_a_loader_and_a_run_exclude_each_other(corpora):
    with pytest.raises(UsageError, match="`batch_size=N`"):
        where(corpora / "squares", "x", seq_len=10)
    with pytest.raises(UsageError, match="`seq_len` comes from the run"):
        where([], "x", run="runs/a", seq_len=10)
    with pytest.raises(UsageError, match="name the data"):
        where([], "x")


@pytest.fixture(scope="module")
def run(corpora):
    """A run on a mixture, of more than one epoch."""
    pytest.importorskip("torch")
    tokenmill.train(
        [f"squares={corpora}/squares:0.75", f"cubes={corpora}/cubes:0.25"],
        name="a",
        runs=corpora / "runs",
        progress=False,
        layers=1,
        heads=2,
        width=16,
        seq_len=32,
        batch_tokens=256,
        warmup_steps=3,
        optimizer="adamw",
        val_every=0,
        val_tokens=320,
        sample_tokens=0,
        max_steps=30,
    )
    return corpora / "runs" / "a"


def test_a_run_says_how_often_it_read_a_document_and_when_it_will_again(run, corpora):
    losses = np.fromfile(run / "row_losses.f32", "<f4")
    sources = {
        name: (tokenmill.open(corpora / name)["train"], weight)
        for name, weight in (("squares", 0.75), ("cubes", 0.25))
    }
    loader = tokenmill.Loader(tokenmill.Mixture(sources), batch_size=8, seq_len=32, seed=42)
    origins = [loader.rows.origin(row) for row in range(4 * len(losses))]
    for name in ("squares", "cubes"):
        for document in list(sources[name][0].documents)[::11]:
            (found,) = where([], document.key, run=run).documents
            assert (found.name, found.document) == (name, document)
            stop = document.start + document.length
            rows = [
                row
                for row, (source, start) in enumerate(origins)
                if source == name and start < stop and start + 32 >= document.start
            ]
            read = [row for row in rows if row < len(losses)]
            visits = found.visits
            assert visits.read == len(read)
            assert 3 <= len(visits.first) <= 5
            first = [one.row for one in visits.first if one.row < len(origins)]
            assert first == rows[: len(first)]
            assert (visits.latest and visits.latest.row) == (read[-1] if read else None)
            assert visits.next.row == rows[len(read)]
            assert visits.next.step == visits.next.row // 8
            for one in visits.first:
                known = losses[one.row] if one.row < len(losses) else None
                assert one.loss == known


def test_the_command_shows_steps_of_a_run(run, corpora, capsys):
    assert main(["where", "squares.txt:1", "--run", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "Read at" in shown
    assert "next at step" in shown
    assert main(["where", "squares.txt:1", "--run", str(run), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["documents"]
    assert document["visits"]["next"]["step"] >= 30
    flags = ["--seq-len", "16", "--batch-size", "2"]
    assert main(["where", str(corpora / "squares"), "squares.txt:1", *flags]) == 0
    assert "Read at" in capsys.readouterr().out


def test_a_part_that_a_loader_holds_out_is_found_by_the_numbers_of_its_split(tmp_path):
    ids = np.full(200, ord("a"), np.uint16)
    ids[::10] = ord("\n")
    np.save(tmp_path / "x.npy", ids)
    opening = {"val_fraction": 0.1, "eot_id": ord("\n"), "tokenizer": "bytes"}
    settings = {"seq_len": 8, "batch_size": 1, "order": "sequential", **opening}
    (held,) = where(tmp_path / "x.npy", "token=15", split="val", **settings).documents
    assert (held.start, held.unread) == (15, None)
    assert held.visits.first[0].step == 1
    (whole,) = where(tmp_path / "x.npy", "token=195", **settings).documents
    assert "val_fraction 0.1" in whole.unread
    for token in (-1, -195):  # count from the end of the whole split
        assert (
            tokenmill.explain(tmp_path / "x.npy", token=token, **settings).token.token
            == 200 + token
        )
