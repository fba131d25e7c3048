"""A run of `tokenmill train` says which rows and documents each of its steps trained on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, StateError, TokenmillError, UsageError
from tokenmill.inspect.run_opening import open_run
from tokenmill.store.tokens import Tokens
from tokenmill.training.data import RunData
from tokenmill.training.run_reading import RunPhase, read_run_data, write_run_data

pytest.importorskip("torch")

SMALL = {
    "layers": 1,
    "heads": 2,
    "width": 16,
    "seq_len": 32,
    "batch_tokens": 256,
    "warmup_steps": 3,
    "optimizer": "adamw",
    "val_every": 0,
    "val_tokens": 320,
    "sample_tokens": 0,
    "checkpoint_every": 5,
    "log_every": 5,
}


def type_flags(settings):
    return [
        text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", value)
    ]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two datasets of lines."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, power in (("squares", 2), ("cubes", 3)):
        lines = [f"line {n} of {name}: {n**power}" for n in range(1_000)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
        tokenmill.prepare(
            folder / f"{name}.txt",
            folder / name,
            tokenizer="bytes",
            workers=1,
            documents="line",
            val_fraction=0.1,
        )
    return folder


@pytest.fixture(scope="module")
def run(corpora):
    """A run on a mixture that was killed, resumed with a larger batch, and resumed again."""
    data = [f"squares={corpora}/squares:0.75", f"cubes={corpora / 'cubes'}:0.25"]
    given = [text for one in data for text in ("--data", one)]
    command = [sys.executable, "-m", "tokenmill.cli", "train", *given, "--name", "a"]
    command += ["--runs", corpora / "runs", *type_flags({**SMALL, "max_steps": 100_000})]
    folder = corpora / "runs" / "a"
    process = subprocess.Popen(
        [str(one) for one in command],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not list((folder / "checkpoints").glob("step_*0")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    options = {"name": "a", "runs": corpora / "runs", "progress": False}
    killed = read_run_data(folder)
    assert [(one.step, one.batch_rows) for one in killed.phases] == [(0, 8)]
    # A checkpoint that was not finished has another name.
    numbers = [one.name.removeprefix("step_") for one in (folder / "checkpoints").iterdir()]
    newest = max(int(number) for number in numbers if number.isdigit())
    first = newest + 7
    report = tokenmill.train(data, **options, **{**SMALL, "batch_tokens": 640, "max_steps": first})
    assert report.step == first
    report = tokenmill.train(data, **options, **{**SMALL, "max_steps": first + 6})
    assert report.step == first + 6
    return folder


def test_a_run_that_was_killed_and_resumed_with_other_batches_is_explained(run, corpora):
    view = open_run(run)
    batches = [phase.batch_rows for phase in view.phases]
    assert batches == [8, 20, 8]
    sources = {
        name: (tokenmill.open(corpora / name)["train"], weight)
        for name, weight in (("squares", 0.75), ("cubes", 0.25))
    }
    mixture = tokenmill.Mixture(sources)
    last = view.phases[-1].step + 6
    row = 0
    for step in range(last):
        phase = max(number for number, one in enumerate(view.phases) if one.step <= step)
        size = batches[phase]
        loader = tokenmill.Loader(mixture, batch_size=size, seq_len=32, seed=42)
        batch = loader.batch_from(row)
        assert view.step_rows(step) == range(row, row + size)
        assert (view.read(np.arange(row, row + size)) == batch.tokens).all()
        row += size
    assert view.row_count == row
    losses = np.fromfile(run / "row_losses.f32", "<f4")
    assert len(losses) == row
    for step in (0, view.phases[1].step, last - 1):
        found = tokenmill.explain(run=run, step=step)
        assert found.row_count == row
        for explained in found.rows:
            place, span = explained.place, explained.span
            assert (place.step, place.rank) == (step, 0)
            assert explained.loss == losses[place.row]
            tokens = sources[span.source][0]
            assert explained.documents[0].document == tokens.documents.at(span.start)
    assert (view.losses(3, 9) == losses[3:9]).all()
    assert np.isnan(view.losses(row - 1, row + 2)).tolist() == [False, True, True]


def test_a_token_is_found_in_the_rows_that_a_run_read(run):
    view = open_run(run)
    rows = view.read(np.arange(view.row_count))
    sources, starts = view.spans(np.arange(view.row_count))
    for token in (0, 32, 33, 5_000):
        found = tokenmill.explain(run=run, token=token, source="cubes")
        holds = (sources == 1) & (starts <= token) & (token <= starts + 32)
        assert found.token.times_read == holds.sum()
        assert found.token.reads == tuple(np.flatnonzero(holds).tolist())
        for row in found.token.reads:
            assert rows[row, token - starts[row]] == found.token.id


def test_the_command_explains_a_run(run, capsys):
    assert main(["explain", "--run", str(run), "--step", "3", "--rank", "0"]) == 0
    out = capsys.readouterr().out
    assert "Step 3 on rank 0: rows 24 to 31, of 32 tokens each." in out
    assert ", loss " in out
    assert "txt, byte " in out
    assert main(["explain", "--run", str(run), "--step", "1000000"]) == 0
    assert "The run has recorded losses of " in capsys.readouterr().out
    assert main(["explain", "--run", str(run), "--step", "3", "--seed", "1"]) == 2
    assert "--seed comes from the run. Omit it, or omit --run." in capsys.readouterr().err


def test_data_that_was_moved_is_named_again_and_checked(run, corpora, tmp_path):
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    squares, cubes = f"squares={corpora}/squares:0.75", f"cubes={corpora}/cubes:0.25"
    expected = tokenmill.explain(run=run, step=7)
    # Names matter, and the weights and their order are those of the run.
    found = tokenmill.explain([f"cubes={corpora}/cubes:9", squares], run=moved, step=7)
    assert found.rows == expected.rows
    with pytest.raises(StateError, match=r"cubes \(source squares\) are not those that the run"):
        open_run(moved, data=[f"squares={corpora}/cubes:0.75", cubes])
    with pytest.raises(UsageError, match="squares=PATH:WEIGHT cubes=PATH:WEIGHT"):
        open_run(moved, data=corpora / "squares")
    copied = tmp_path / "copy"
    tokenmill.reshard(corpora / "cubes", copied, tokens_per_shard=1_000)
    again = tokenmill.explain([squares, f"cubes={copied}:1"], run=moved, step=7)
    assert [row.span for row in again.rows] == [row.span for row in expected.rows]


def train_once(folder, data, **settings):
    settings = {**SMALL, "max_steps": 3, **settings}
    report = tokenmill.train(data, name="r", runs=folder, progress=False, **settings)
    return report.path


def test_other_data_is_refused_before_its_rows_are_counted(corpora, tmp_path, capsys):
    run = train_once(tmp_path, corpora / "cubes")
    np.save(tmp_path / "tiny.npy", np.arange(3, dtype=np.uint16))
    wrong = str(tmp_path / "tiny.npy")
    for command in (["spikes", str(run), "--data", wrong], ["explain", wrong, "--row", "0"]):
        given = ["--run", str(run)] if command[0] == "explain" else []
        assert main([*command, *given]) == 1
        assert f"The tokens of {wrong} are not those that the run" in capsys.readouterr().err


def test_what_a_run_holds_out_for_validation_is_named(corpora, tmp_path, capsys):
    plain = tmp_path / "plain"
    tokenmill.prepare(
        corpora / "squares.txt",
        plain,
        tokenizer="bytes",
        workers=1,
        documents="line",
        val_fraction=0,
    )
    run = train_once(tmp_path, plain, val_fraction=0.2)
    tokens = tokenmill.open(plain)["train"]
    kept = len(tokenmill.open(plain, val_fraction=0.2)["train"])
    cut, last = tokens.documents.at(kept), tokens.documents[-1]
    assert cut.start < kept < cut.start + cut.length

    (found,) = tokenmill.where([], f"squares.txt:{last.number + 1}", run=run).documents
    assert (found.document, found.visits) == (last, None)
    assert found.unread.startswith("No training step reads it: the tokens of the split from ")
    assert "held out for validation (val_fraction 0.2)" in found.unread
    (found,) = tokenmill.where([], cut.key, run=run).documents
    assert f"reads its tokens from {kept} on" in found.unread
    assert found.visits is not None
    (found,) = tokenmill.where([], tokens.documents[0].key, run=run).documents
    assert found.unread is None

    explained = tokenmill.explain(run=run, token=last.start + 2)
    assert (explained.rows, explained.token.times_read) == ((), 0)
    assert explained.token.document == last
    assert explained.token.id == tokens[last.start + 2]
    assert tokenmill.explain(run=run, token=kept - 1).token.unread is None
    with pytest.raises(UsageError, match=f"has {len(tokens):,} tokens"):
        tokenmill.explain(run=run, token=len(tokens))
    assert main(["where", f"squares.txt:{last.number + 1}", "--run", str(run)]) == 0
    assert "are held out for validation (val_fraction 0.2)." in capsys.readouterr().out
    assert main(["explain", "--run", str(run), "--token", str(last.start)]) == 0
    shown = capsys.readouterr().out
    assert "are held out for validation (val_fraction 0.2)." in shown
    assert "epoch" not in shown
    with pytest.raises(StateError, match="cannot be held out"):
        open_run(run, data=corpora / "squares")  # which has a split val


def test_a_document_of_val_is_held_out(corpora, tmp_path, capsys):
    run = train_once(tmp_path, corpora / "cubes")
    document = tokenmill.open(corpora / "cubes")["val"].documents[0]
    assert main(["where", document.key, "--run", str(run)]) == 0
    expected = "No training step reads it: it is in split val, which is held out for validation."
    assert expected in capsys.readouterr().out
    (found,) = tokenmill.where(corpora / "cubes", document.key, seq_len=32, batch_size=4).documents
    assert found.unread == expected.replace("training step", "step")


def test_a_run_on_data_made_in_python_needs_the_data(corpora, tmp_path):
    tokens = tokenmill.open(corpora / "cubes")["train"]
    tokenizer = tokenmill.load_tokenizer("bytes")
    made = {"vocab": 257, "tokenizer": tokenizer, "eot_id": 256, "describe": "made", "val": None}
    run = train_once(tmp_path, RunData(train=Tokens.of(tokens[:]), **made))
    with pytest.raises(UsageError, match=r"does not say where its data is.*`data=PATH`"):
        open_run(run)
    view = open_run(run, data=corpora / "cubes")
    assert view.step_rows(2) == range(16, 24)
    np.save(tmp_path / "ids.npy", tokens[:])  # which does not say its tokenizer
    texts = [
        tokenmill.explain(tmp_path / "ids.npy", run=run, row=1, **given).rows[0].documents[-1].text
        for given in ({}, {"tokenizer": "bytes"})
    ]
    assert texts[0] is None
    assert set(texts[1]) & set("line of cubes:")
    mixture = tokenmill.Mixture(
        {"a": (tokens, 1.0), "b": (Tokens.of(tokens[:]), 0.5)}, changes={9: {"b": 2.0}}, block=10
    )
    shutil.rmtree(run)
    run = train_once(tmp_path, RunData(train=mixture, **made))
    with pytest.raises(UsageError, match=r"a=PATH:WEIGHT b=PATH:WEIGHT"):
        open_run(run)
    view = open_run(run, data=[f"a={corpora}/cubes:1", f"b={corpora}/cubes:1"])
    loader = tokenmill.Loader(mixture, batch_size=8, seq_len=32, seed=42)
    for step in range(3):
        rows = np.array(view.step_rows(step))
        assert (view.read(rows) == loader.batch_at(step).tokens).all()


def test_a_run_on_a_text_file_is_explained(tmp_path):
    (tmp_path / "x.txt").write_text("To be, or not to be.<|endoftext|>That is the question." * 200)
    report = tokenmill.train(
        input_file=tmp_path / "x.txt",
        tokenizer="bytes",
        runs=tmp_path,
        progress=False,
        **{**SMALL, "max_steps": 2},
    )
    found = tokenmill.explain(run=report.path, step=1, rank=0)
    assert len(found.rows) == 8
    text = (tmp_path / "x.txt").read_text()
    for row in found.rows:
        assert row.loss is not None
        for part in row.documents:
            assert part.document is None
            assert part.text.removesuffix("<|endoftext|>") in text
    with pytest.raises(UsageError, match="there is no token 99999"):
        tokenmill.explain(run=report.path, token=99_999)
    kept = int(len(text.replace("<|endoftext|>", "_").encode() + b"_") * 0.9)
    assert tokenmill.explain(run=report.path, token=kept - 1).token.unread is None
    assert "val_fraction 0.1" in tokenmill.explain(run=report.path, token=kept).token.unread


def test_options_to_open_the_data_are_kept(corpora, tmp_path, monkeypatch):
    """Relative paths and files without a header are found from any folder."""
    tokenmill.open(corpora / "cubes")["train"][:].astype("<u2").tofile(tmp_path / "ids.bin")
    monkeypatch.chdir(tmp_path)
    run = tokenmill.train(
        "ids.bin",
        name="r",
        progress=False,
        tokenizer="bytes",
        data_dtype="uint16",
        format="raw",
        val_fraction=0.2,
        **{**SMALL, "max_steps": 3},
    ).path.absolute()
    monkeypatch.chdir("/")
    origin = read_run_data(run).origin
    assert origin.data == [str(tmp_path / "ids.bin")]
    assert (origin.tokenizer, origin.dtype, origin.format) == ("bytes", "uint16", "raw")
    view = open_run(run)
    tokens = tokenmill.open(tmp_path / "ids.bin", dtype="uint16", format="raw", val_fraction=0.2)[
        "train"
    ]
    loader = tokenmill.Loader(tokens, batch_size=8, seq_len=32, seed=42)
    assert (view.read(np.arange(8, 16)) == loader.batch_at(1).tokens).all()
    assert tokenmill.explain(run=run, step=1).rows[0].documents[0].text


def test_folders_that_are_not_a_run_are_refused(run, tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="is not the folder of a run"):
        open_run(tmp_path)
    shutil.copytree(run, tmp_path / "old")
    (tmp_path / "old" / "data.json").unlink()
    with pytest.raises(DatasetError, match=r"earlier version.*Resume the run"):
        open_run(tmp_path / "old")


def damage(record, **changes):
    return {**msgspec.to_builtins(record), **changes}


def test_a_hostile_record_is_refused(run, tmp_path):
    record = read_run_data(run)
    phase = {"step": 0, "row": 0, "batch_rows": 8, "world_size": 1}
    builtins = msgspec.to_builtins(record)
    rows = builtins["rows"]
    contents = [
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        (run / "data.json").read_bytes()[:-20],
        b" " * (17 << 20),
        *map(
            msgspec.json.encode,
            [
                damage(record, version=2),
                damage(record, phases=[]),
                damage(record, phases=[{**phase, "row": -1}]),
                damage(record, phases=[{**phase, "batch_rows": 0}]),
                damage(record, phases=[{**phase, "world_size": 3}]),
                damage(record, phases=[phase, {**phase, "step": 4, "row": 31}]),
                damage(record, phases=[phase, phase]),
                damage(record, rows={**rows, "seq_len": 10**9}),
                damage(record, rows={**rows, "order": "backwards"}),
                damage(record, rows={**rows, "names": ["squares"]}),
                damage(record, rows={**rows, "names": None}),
                damage(record, rows={**rows, "weights": [[0, [1.0]]]}),
                damage(record, rows={**rows, "weights": [[0, [-1.0, 2.0]]]}),
                damage(record, rows={**rows, "weights": []}),
                damage(record, rows={**rows, "weights": [[5, [1.0, 1.0]]]}),
                damage(record, rows={**rows, "block": 1 << 40}),
                damage(record, rows={**rows, "more": 1}),
                damage(record, origin={**builtins["origin"], "eot_id": -1}),
                damage(record, origin={**builtins["origin"], "data": ["x", "y"]}),
                damage(record, origin={**builtins["origin"], "data": [f"a={tmp_path}:nan"]}),
            ],
        ),
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    for content in contents:
        (folder / "data.json").write_bytes(content)
        with pytest.raises(TokenmillError):
            open_run(folder)
    (folder / "data.json").unlink()
    (folder / "data.json").symlink_to(run / "data.json")
    with pytest.raises(TokenmillError, match="leads out of"):
        open_run(folder)


def test_a_run_with_a_damaged_record_resumes_and_says_what_is_lost(corpora, tmp_path, recwarn):
    run = train_once(tmp_path, corpora / "cubes", max_steps=5)
    (run / "data.json").write_bytes(b"{")
    train_once(tmp_path, corpora / "cubes", max_steps=8)
    assert [(one.step, one.row) for one in read_run_data(run).phases] == [(5, 40)]
    view = open_run(run)
    assert view.step_rows(6) == range(48, 56)
    with pytest.raises(DatasetError, match=r"data\.json begins at step 5"):
        view.step_rows(4)
    with pytest.raises(DatasetError, match=r"data\.json begins at row 40"):
        view.place(39)


def test_data_that_cannot_be_described_does_not_stop_a_run(corpora, tmp_path):
    tokens = tokenmill.open(corpora / "cubes")["train"]
    mixture = tokenmill.Mixture({"n" * 70_000: (tokens, 1.0)})
    identity = tokenmill.Loader(mixture, batch_size=1, seq_len=8).rows.identity
    phase = RunPhase(step=0, row=0, batch_rows=1, world_size=1)
    (tmp_path / "data.json").write_text("of a run before")
    said = write_run_data(tmp_path, None, identity, phase)
    assert said.startswith("data.json is not written, because it cannot describe the data")
    assert not (tmp_path / "data.json").exists()


def test_paths_that_are_not_utf_8_have_to_be_named_again(corpora, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(corpora / "cubes", folder)
    run = train_once(tmp_path, folder)
    with pytest.raises(UsageError, match="does not say where its data is"):
        open_run(run)
    assert open_run(run, data=folder).step_rows(1) == range(8, 16)


def test_phases_after_the_resumed_step_are_dropped(corpora, tmp_path):
    run = train_once(tmp_path, corpora / "cubes", max_steps=5)
    train_once(tmp_path, corpora / "cubes", max_steps=10, batch_tokens=512)
    assert [one.step for one in read_run_data(run).phases] == [0, 5]
    for newest in (run / "checkpoints").glob("step_*10"):
        shutil.rmtree(newest)
    train_once(tmp_path, corpora / "cubes", max_steps=6, batch_tokens=128)
    assert [(one.step, one.row, one.batch_rows) for one in read_run_data(run).phases] == [
        (0, 0, 8),
        (5, 40, 4),
    ]
    train_once(tmp_path, corpora / "cubes", max_steps=7, batch_tokens=128)
    assert len(read_run_data(run).phases) == 2


def test_secrets_in_addresses_are_not_stored(tmp_path):
    from tokenmill.training.run_reading import DataOrigin

    origin = DataOrigin.of(["https://me:secret@host/a?signature=secret"])
    assert origin.data == ["https://host/a"]
    assert DataOrigin.of([Path("x").as_posix()]).data == [str(Path.cwd() / "x")]
