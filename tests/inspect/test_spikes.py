"""`tokenmill.spikes`: the rows and documents behind high losses, compared with brute force."""

from __future__ import annotations

import json
import math
from collections import defaultdict

import numpy as np
import pytest
from dataset_builder import build
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, InputError, UsageError
from tokenmill.inspect.spikes import suspects
from tokenmill.inspect.spikes.groups import choose_rows

SEQ_LEN = 16
RANDOM = np.random.default_rng(7)
TEXTS = ["".join(RANDOM.choice(list("abcdef "), RANDOM.integers(3, 60))) for _ in range(120)]
BAD = 77
TEXTS[BAD] = "#" * 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("spikes") / "data"
    build(made, {"train": TEXTS}, shard_tokens=500)
    return made


def rows_of(data, rows: int, **given) -> list[tuple[int, int]]:
    """(first token, last token + 1) of the targets of each row, from a loader."""
    loader = tokenmill.Loader(data, batch_size=1, seq_len=SEQ_LEN, **given)
    starts = [loader.rows.origin(row)[1] for row in range(rows)]
    return [(start + 1, start + 1 + SEQ_LEN) for start in starts]


def make_losses(folder, rows: int, *, bad=(BAD,), **given) -> np.ndarray:
    """Losses that fall steeply and are high in proportion to the share of the bad documents."""
    data = tokenmill.open(folder)["train"]
    bounds = data.documents.starts(0, len(data.documents))
    random = np.random.default_rng(3)
    losses = 2 + 4 * np.exp(-np.arange(rows) / 100) + random.normal(0, 0.1, rows)
    for row, (first, last) in enumerate(rows_of(data, rows, **given)):
        for number in bad:
            share = min(last, bounds[number + 1]) - max(first, bounds[number])
            losses[row] += 5 * max(0, share) / SEQ_LEN
    return losses.astype(np.float32)


def find(folder, losses, tmp_path, **given):
    np.save(tmp_path / "losses.npy", losses)
    settings = {"per": "row", "seq_len": SEQ_LEN, "batch_size": 4, **given}
    return tokenmill.spikes(losses=tmp_path / "losses.npy", data=folder, **settings)


@pytest.mark.parametrize("order", ["shuffled", "blocks", "sequential", "random"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_bad_document_is_first_in_every_order(folder, tmp_path, order, world_size):
    settings = {"order": order, "seed": 5}
    if order == "blocks":
        settings |= {"block_rows": 4, "group_blocks": 3}
    losses = make_losses(folder, 780, **settings)
    found = find(folder, losses, tmp_path, world_size=world_size, **settings)
    first = found.suspects[0]
    assert first.document.number == BAD
    assert first.is_certain
    data = tokenmill.open(folder)["train"]
    start, stop = data.documents.starts(BAD, BAD + 1)
    windows = (len(data) - 1) // SEQ_LEN
    places = enumerate(rows_of(data, 780, **settings))
    epochs = {row // windows for row, (low, high) in places if low < stop and high > start}
    assert first.epochs == first.high_epochs == len(epochs) > 1
    for row in found.rows:
        assert BAD in {part.document.number for part in row.explained.documents}
        assert row.loss == losses[row.explained.place.row]
        assert row.explained.place.step == row.explained.place.row // (4 * world_size)
    assert [row.excess for row in found.rows] == sorted(
        (r.excess for r in found.rows), reverse=True
    )


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=3, unique=True),
    st.integers(0, 9),
)
def test_suspects_are_ranked_as_by_brute_force(folder, tmp_path_factory, bad, seed):
    tmp_path = tmp_path_factory.mktemp("ranked")
    rows = 600
    losses = make_losses(folder, rows, bad=bad, seed=seed)
    found = find(folder, losses, tmp_path, seed=seed, limit=50)
    data = tokenmill.open(folder)["train"]
    bounds = data.documents.starts(0, len(data.documents))
    places = rows_of(data, rows, seed=seed)
    high = {row.explained.place.row: row.excess for row in found.rows}
    assert found.high_row_count == len(high) or found.high_row_count > 50
    if found.high_row_count > 50:
        return
    shares = defaultdict(dict)
    for row, (first, last) in enumerate(places):
        for number in np.flatnonzero((bounds[:-1] < last) & (bounds[1:] > first)).tolist():
            share = min(last, bounds[number + 1]) - max(first, bounds[number])
            if row >= 4:  # the first step has too few neighbours
                shares[number][row] = share / SEQ_LEN
    expected = {}
    for number, own in shares.items():
        chosen = {row: share for row, share in own.items() if row in high}
        if chosen:
            certain = math.fsum(chosen.values()) / math.fsum(own.values())
            expected[number] = certain * math.fsum(high[row] * chosen[row] for row in chosen)
    assert {one.document.number: pytest.approx(one.excess) for one in found.suspects} == expected
    values = [one.excess for one in found.suspects]
    assert values == sorted(values, reverse=True)
    for one in found.suspects:
        own = shares[one.document.number]
        assert one.rows == len(own)
        assert one.high_rows == len(high.keys() & own.keys())
        assert list(one.first_rows) == sorted(high.keys() & own.keys())[:16]
        assert list(one.first_steps) == sorted({row // 4 for row in high.keys() & own.keys()})[:16]


def test_a_jump_of_a_step_names_the_rows_behind_it(folder, tmp_path):
    losses = make_losses(folder, 780, bad=())
    losses[400:404] += [0.1, 9, 0, 0]
    losses[600:608] += 3
    found = find(folder, losses, tmp_path)
    by_step = {one.step: one for one in found.spikes}
    assert found.spike_count == len(by_step) == 2
    assert by_step[100].cause == "rows"
    assert [row.explained.place.row for row in by_step[100].rows] == [401]
    assert (by_step[150].last_step, by_step[150].step) == (151, 150)


def test_the_step_before_is_shown_if_the_weights_changed(folder, tmp_path):
    losses = make_losses(folder, 1600, bad=())
    losses[799] += 6  # the row that broke the weights, in step 49
    losses[800:864] += 2
    found = find(folder, losses, tmp_path, batch_size=16)
    (spike,) = found.spikes
    assert (spike.step, spike.last_step) == (49, 53)
    assert spike.cause == "rows"
    assert spike.rows[0].explained.place.row == 799
    losses[799] -= 4.8  # does not lift its step, but stands out
    (spike,) = find(folder, losses, tmp_path, batch_size=16).spikes
    assert (spike.step, spike.cause) == (50, "weights")
    assert spike.rows[0].explained.place.row == 799


def test_losses_of_steps_rank_documents_by_their_spikes(folder, tmp_path):
    """The bad document is in a spiking step of every epoch; its neighbours differ."""
    losses = make_losses(folder, 7800, order="random")
    means = losses.reshape(-1, 12).mean(1)
    found = find(folder, means, tmp_path, per="step", batch_size=12, order="random", limit=60)
    assert (found.per, found.row_count, found.groups) == ("step", None, None)
    assert found.suspects[0].document.number == BAD
    times = [one.high_rows for one in found.suspects]
    assert times == sorted(times, reverse=True)
    assert all(one.high_rows <= one.rows <= 650 for one in found.suspects)
    assert any("Only the losses of steps" in note for note in found.notes)


def test_json_lines_with_missing_steps_are_judged_by_their_own_neighbours(folder, tmp_path):
    losses = make_losses(folder, 7800).reshape(-1, 12).mean(1)
    lines = [{"step": n + 1, "loss": float(losses[n])} for n in range(650)]
    lines[412]["loss"] += 4
    path = tmp_path / "losses.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line["step"] % 2))
    given = {"losses": path, "data": folder, "seq_len": SEQ_LEN, "batch_size": 12}
    found = tokenmill.spikes(**given, first_step=1)
    assert 412 in {one.step for one in found.spikes}
    assert 413 in {one.step for one in tokenmill.spikes(**given).spikes}
    assert any("first_step=1" in note for note in tokenmill.spikes(**given).notes)
    with pytest.raises(UsageError, match="before `first_step`"):
        tokenmill.spikes(**given, first_step=2)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = tokenmill.spikes(**given)
    assert 412 in {one.step for one in found.spikes}
    assert any("counts steps from 1" in note for note in found.notes)


def test_it_is_asked_whether_values_are_of_rows_or_steps(folder, tmp_path):
    losses = make_losses(folder, 780)
    with pytest.raises(UsageError, match="780 values: either as many steps, or the rows of 195"):
        find(folder, losses, tmp_path, per=None)
    assert find(folder, losses[:779], tmp_path, per=None).per == "step"
    assert find(folder, losses, tmp_path, per=None, batch_size=1).per == "row"
    assert find(folder, losses.reshape(-1, 4), tmp_path, per=None).per == "row"
    with pytest.raises(UsageError, match="less than one step"):
        find(folder, losses[:3], tmp_path)


def test_too_few_steps_are_said_to_be_too_few(folder, tmp_path):
    found = find(folder, np.array([9, 1, 30, 1], np.float32), tmp_path, per="step")
    assert (found.judged_steps, found.spikes, found.suspects) == (0, (), ())
    assert any("Too few steps: 4 steps" in note for note in found.notes)


def test_losses_that_are_not_finite_are_named(folder, tmp_path):
    losses = make_losses(folder, 780)
    losses[[40, 41, 300]] = [np.nan, np.nan, np.inf]
    found = find(folder, losses, tmp_path)
    assert (found.nan, found.infinite) == (2, 1)
    listed = [(one.step, one.nan, one.infinite) for one in found.not_finite]
    assert listed == [(10, 2, 0), (75, 0, 1)]
    assert find(folder, np.full(780, np.nan), tmp_path).nan == 780


def test_a_mixture_names_the_source(folder, tmp_path):
    build(tmp_path / "other", {"train": TEXTS[:60]}, shard_tokens=500)
    sources = {
        "web": (tokenmill.open(folder)["train"], 0.7),
        "code": (tokenmill.open(tmp_path / "other")["train"], 0.3),
    }
    loader = tokenmill.Loader(tokenmill.Mixture(sources), batch_size=1, seq_len=SEQ_LEN)
    losses = np.random.default_rng(1).normal(3, 0.1, 800)
    bounds = {name: data.documents.starts(0, 60) for name, (data, _) in sources.items()}
    for row in range(800):
        name, start = loader.rows.origin(row)
        losses[row] += 4 * (name == "code" and bounds[name][33] < start + 8 < bounds[name][34])
        losses[row] += 0.2 * (name == "code")
    data = [f"web={folder}:0.7", f"code={tmp_path / 'other'}:0.3"]
    found = find(data, losses, tmp_path)
    assert (found.suspects[0].source, found.suspects[0].document.number) == ("code", 33)
    groups = {one.name: one for one in found.groups.sources}
    assert list(groups) == ["code: texts/a.txt", "web: texts/a.txt"]
    assert groups["code: texts/a.txt"].loss > groups["web: texts/a.txt"].loss + 0.15


def test_tokens_with_only_an_end_of_text_id_have_suspects(folder, tmp_path):
    data = tokenmill.open(folder)["train"]
    np.save(tmp_path / "ids.npy", data[:])
    document = data.documents[BAD]
    losses = make_losses(folder, 780)
    found = find(tmp_path / "ids.npy", losses, tmp_path, eot_id=256)
    first = found.suspects[0]
    assert (first.document, first.start, first.length) == (None, document.start, document.length)
    assert first.is_certain
    assert not found.groups.lengths
    unknown = find(tmp_path / "ids.npy", losses, tmp_path)
    assert unknown.suspects == ()
    assert unknown.high_row_count == found.high_row_count
    assert any("eot_id=ID" in note for note in unknown.notes)


def test_compressed_data_gives_the_same_report(folder, tmp_path):
    build(tmp_path / "zst", {"train": TEXTS}, shard_tokens=500, frame_tokens=50)
    losses = make_losses(folder, 780)
    plain, compressed = (find(path, losses, tmp_path) for path in (folder, tmp_path / "zst"))
    assert plain.suspects == compressed.suspects
    assert plain.groups == compressed.groups


def test_documents_that_begin_alike_are_grouped(tmp_path):
    texts = list(TEXTS)
    for number in (20, 50, 90):
        texts[number] = "#%&$!?=+" * 12 + f" copy {number}"
    build(tmp_path / "data", {"train": texts}, shard_tokens=500)
    losses = make_losses(tmp_path / "data", 780, bad=(20, 50, 90, BAD))
    found = find(tmp_path / "data", losses, tmp_path)
    (group,) = found.shared
    assert group.kind == "text"
    numbers = {found.suspects[index].document.number for index in group.suspects}
    assert numbers == {20, 50, 90}
    assert 0.3 < group.share < 1


def test_documents_of_one_file_are_grouped(tmp_path):
    for name in ("a", "b", "c"):
        lines = [text if name != "b" else "#" * 60 + text for text in TEXTS[:40]]
        marked = [json.dumps({"text": f"{name}{n} {text}"}) for n, text in enumerate(lines)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(marked[: 5 if name == "b" else 40]))
    paths = [tmp_path / f"{name}.jsonl" for name in ("a", "b", "c")]
    data = tmp_path / "data"
    tokenmill.prepare(paths, data, tokenizer="bytes", val_fraction=0, workers=1)
    table = tokenmill.open(data)["train"].documents
    bad = [one.number for one in table if one.source.path.endswith("b.jsonl")]
    found = find(data, make_losses(data, 600, bad=bad), tmp_path)
    (group,) = [one for one in found.shared if one.kind == "file"]
    assert group.name.endswith("b.jsonl")
    assert group.share > 0.5
    assert found.groups.sources[0].name.endswith("b.jsonl")
    assert found.groups.sources[0].excess > 1


def test_losses_by_length_and_source_are_means_over_targets(folder, tmp_path):
    rows = 780
    losses = make_losses(folder, rows)
    found = find(folder, losses, tmp_path)
    data = tokenmill.open(folder)["train"]
    bounds = data.documents.starts(0, len(data.documents))
    sums = defaultdict(lambda: [0, 0.0])
    for row, (first, last) in enumerate(rows_of(data, rows)):
        if row < 4:  # the first step has too few neighbours
            continue
        for target in range(first, last):
            number = int(np.searchsorted(bounds, target, "right")) - 1
            size = int(math.log2(bounds[number + 1] - bounds[number]))
            sums[size][0] += 1
            sums[size][1] += float(losses[row])
    listed = {one.name: (one.tokens, pytest.approx(one.loss)) for one in found.groups.lengths}
    expected = {
        f"{2**size} to {2 ** (size + 1) - 1}": (number, total / number)
        for size, (number, total) in sums.items()
    }
    assert listed == expected
    (source,) = found.groups.sources
    assert source.tokens == sum(number for number, _ in sums.values())
    assert found.groups.rows == rows - 4


def test_the_sample_is_the_same_every_time():
    chosen = choose_rows(10**12, 1000)
    assert chosen.tolist() == choose_rows(10**12, 1000).tolist()
    assert len(set(chosen.tolist())) == 1000
    assert 0 <= chosen[0] < chosen[-1] < 10**12
    assert abs(chosen.mean() / 10**12 - 0.5) < 0.05


def test_many_sources_are_folded(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text(f"{number} {TEXTS[number]}" * 3)
    data = tmp_path / "data"
    paths = sorted(tmp_path.glob("*.txt"))
    tokenmill.prepare(paths, data, tokenizer="bytes", val_fraction=0, workers=1)
    found = find(data, make_losses(data, 400, bad=()), tmp_path)
    assert [one.count for one in found.groups.sources] == [1] * 10 + [20]


def test_a_long_document_is_judged_by_some_of_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(suspects, "_MOST_READ", 8)
    build(tmp_path / "data", {"train": [*TEXTS[:20], "#" * 3000]}, shard_tokens=500)
    losses = make_losses(tmp_path / "data", 400, bad=())
    losses[[100, 200, 300]] += 5
    found = find(tmp_path / "data", losses, tmp_path)
    assert found.suspects[0].rows <= 8


def test_wrong_settings_are_errors(folder, tmp_path):
    losses = np.ones(100)
    for wrong in ({"threshold": 0}, {"threshold": math.nan}, {"limit": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            find(folder, losses, tmp_path, **wrong)
    with pytest.raises(UsageError, match="losses=FILE"):
        tokenmill.spikes()
    with pytest.raises(UsageError, match="batch_size=N"):
        tokenmill.spikes(losses=tmp_path / "losses.npy", data=folder, seq_len=8)
    with pytest.raises(InputError, match=r"there is no file .*none\.npy"):
        tokenmill.spikes(losses=tmp_path / "none.npy", data=folder, seq_len=8, batch_size=2)
    with pytest.raises(DatasetError, match="does not exist"):
        tokenmill.spikes(tmp_path / "none")


def test_the_command_prints_the_report(folder, tmp_path, capsys):
    losses = make_losses(folder, 780)
    losses[7] = np.nan
    np.save(tmp_path / "losses.npy", losses)
    command = ["spikes", "--losses", str(tmp_path / "losses.npy"), "--data", str(folder)]
    command += ["--seq-len", str(SEQ_LEN), "--batch-size", "4"]
    assert main(command) == 2
    assert "--per step or --per row" in capsys.readouterr().err
    command += ["--per", "row"]
    assert main(command) == 0
    out = capsys.readouterr().out
    for part in (
        "195 steps, 780 rows, judged by the loss of each row.",
        f"Most suspicious: document {BAD}, texts/a.txt, byte",
        "It was read in 4 epochs and stood out each time, which is strong evidence.",
        "Losses that are not numbers: 1 NaN, in step 1 (1).",
        "each of these rows also holds [1]",
        "Loss by source, in a sample of 775 rows",
        "Loss by length of the document",
        f"Next:  tokenmill explain {folder} --seq-len {SEQ_LEN} --batch-size 4 --row ",
        f"tokenmill peek {folder} --document {BAD}",
    ):
        assert part in out
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["suspects"][0]["document"]["number"] == BAD
    assert found["rows"][0]["explained"]["documents"]


def test_a_report_without_suspects_has_a_next_command(folder, tmp_path, capsys):
    np.save(tmp_path / "losses.npy", np.ones(40, np.float32))
    command = ["spikes", "--losses", str(tmp_path / "losses.npy"), "--per", "step"]
    assert main([*command, "--data", str(folder)]) == 2
    assert capsys.readouterr().err.endswith("or the folder of a run: runs/NAME.\n")
    flags = ["--seq-len", str(SEQ_LEN), "--batch-size", "4"]
    assert main([*command, "--data", str(folder), *flags]) == 0
    expected = f"Next:  tokenmill explain {folder} {' '.join(flags)} --step 39\n"
    assert capsys.readouterr().out.endswith(expected)


def test_hostile_text_is_escaped(tmp_path, capsys):
    texts = [*TEXTS[:40], "\x1b[31mred [bold]\u202e" + "#" * 100, *TEXTS[40:60]]
    build(tmp_path / "data", {"train": texts})
    np.save(tmp_path / "losses.npy", make_losses(tmp_path / "data", 400, bad=(40,)))
    command = ["spikes", "--losses", str(tmp_path / "losses.npy"), "--data"]
    command += [str(tmp_path / "data"), "--seq-len", "16", "--batch-size", "4", "--per", "row"]
    for extra in ([], ["--json"]):
        assert main([*command, *extra]) == 0
        out = capsys.readouterr().out
        assert "red [bold]" in out
        assert "\x1b" not in out
        assert "\u202e" not in out
