"""`tokenmill explain`: the documents of a step, row or token, compared with naive readings."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

from dataset_builder import TEXTS, build
from document_checks import DOCUMENTS
from foreign import (
    mds_files,
    write_datatrove,
    write_files,
    write_litdata,
    write_megatron,
    write_olmo,
    write_raw,
)

import tokenmill
from tokenmill.cli import main
from tokenmill.errors import DatasetError, UsageError
from tokenmill.inspect.explain import explain_rows
from tokenmill.inspect.run_opening import view_data

SETTINGS = {"seq_len": 7, "batch_size": 2, "seed": 1}


@pytest.fixture
def folder(tmp_path):
    """A small sound dataset with several shards, and documents that span them."""
    build(tmp_path / "data")
    return tmp_path / "data"


def check_rows(rows, tokens, text_of):
    """Compare explained rows with the tokens and the document table that they are from."""
    for row in rows:
        assert row.span.stop - row.span.start == 8
        cuts = [0, *(part.stop for part in row.documents)]
        assert cuts[-1] == 8
        for (start, stop), part in zip(pairwise(cuts), row.documents, strict=True):
            assert (part.start, part.stop) == (start, stop)
            first = row.span.start + start
            assert part.document == tokens.documents.at(first)
            assert part.document == tokens.documents.at(row.span.start + stop - 1)
            assert part.text == text_of(tokens[first : row.span.start + stop])


@pytest.mark.parametrize("frame_tokens", [None, 4])
@pytest.mark.parametrize("order", ["shuffled", "blocks", "sequential", "random"])
def test_a_step_is_explained_as_the_loader_reads_it(tmp_path, order, frame_tokens):
    build(tmp_path / "data", frame_tokens=frame_tokens)
    dataset = tokenmill.open(tmp_path / "data")
    tokens = dataset["train"]
    for step, rank in ((0, 0), (3, 1), (5_000, 2)):
        asked = {**SETTINGS, "order": order, "world_size": 3}
        found = tokenmill.explain(tmp_path / "data", step=step, rank=rank, **asked)
        batch = tokenmill.Loader(tokens, rank=rank, **asked).batch_at(step)
        assert [row.span.row for row in found.rows] == [batch.row, batch.row + 1]
        for row, ids in zip(found.rows, batch.tokens, strict=True):
            assert tokens[row.span.start : row.span.stop].tolist() == ids.tolist()
            assert (row.place.step, row.place.rank, row.loss) == (step, rank, None)
            assert row.shard == f"train/shard_{row.span.start // 10:05d}.bin" + (
                ".zst" if frame_tokens else ""
            )
            assert row.shard_token == row.span.start % 10
        check_rows(found.rows, tokens, dataset.tokenizer.decode)
        whole = tokenmill.explain(tmp_path / "data", step=step, **asked)
        assert whole.rows[2 * rank : 2 * rank + 2] == found.rows


def test_every_row_of_an_epoch_is_explained(folder):
    dataset = tokenmill.open(folder)
    view = view_data(folder, seq_len=7)
    rows = explain_rows(view, range(view.order("").windows))
    check_rows(rows, dataset["train"], dataset.tokenizer.decode)
    starts = sorted(row.span.start for row in rows)
    assert starts == list(range(0, 7 * len(rows), 7))
    again = explain_rows(view, [5, 2, 5])
    assert [row.span.row for row in again] == [5, 2, 5]
    assert again[0] == rows[5]


def test_a_token_is_explained_by_its_rows_and_its_document(folder):
    tokens = tokenmill.open(folder)["train"]
    windows = (len(tokens) - 1) // 7
    for token in range(len(tokens)):
        found = tokenmill.explain(folder, token=token, **SETTINGS)
        assert found.token.id == tokens[token]
        assert found.token.document == tokens.documents.at(token)
        assert (found.token.times_read, found.row_count) == (None, None)
        expected = [n for n in (token // 7 - 1, token // 7) if 0 <= n < windows]
        expected = [n for n in expected if n * 7 <= token <= n * 7 + 7]
        assert sorted(row.span.start // 7 for row in found.rows) == expected
        assert all(row.place.epoch == 0 for row in found.rows)
    assert tokenmill.explain(folder, token=-1, **SETTINGS).token.token == len(tokens) - 1


def test_sources_of_a_mixture_are_named(tmp_path):
    build(tmp_path / "web")
    build(tmp_path / "code", {"train": ["def f(): pass"] * 9})
    data = [f"web={tmp_path}/web:0.5", f"code={tmp_path}/code:0.5"]
    found = tokenmill.explain(data, step=2, **SETTINGS)
    sources = {name: (tokenmill.open(tmp_path / name)["train"], 0.5) for name in ("web", "code")}
    loader = tokenmill.Loader(tokenmill.Mixture(sources), **SETTINGS)
    for row in found.rows:
        assert (row.span.source, row.span.start) == loader.rows.origin(row.span.row)
        assert found.paths[row.span.source] == str(tmp_path / row.span.source)
    with pytest.raises(UsageError, match="web, code"):
        tokenmill.explain(data, token=3, **SETTINGS)
    token = tokenmill.explain(data, token=3, source="code", **SETTINGS)
    assert all(row.span.source == "code" for row in token.rows)
    assert token.token.document.number == 0


def write_formats(folder):
    """The same documents in every format with documents, by the options to open it."""
    write_megatron(folder / "megatron", DOCUMENTS)
    write_datatrove(folder / "datatrove" / "00000_web.ds", DOCUMENTS)
    write_olmo(folder / "olmo" / "part-0.npy", DOCUMENTS)
    write_litdata(folder / "litdata", [DOCUMENTS])
    write_files(folder / "mds", mds_files([DOCUMENTS]))
    return {"megatron": {}, "datatrove": {}, "olmo": {"dtype": "uint16"}, "litdata": {}, "mds": {}}


def test_formats_with_documents_are_explained(tmp_path):
    for name, options in write_formats(tmp_path).items():
        found = tokenmill.explain(
            tmp_path / name,
            step=0,
            seq_len=4,
            batch_size=2,
            order="sequential",
            tokenizer="bytes",
            **options,
        )
        parts = [
            (part.document.number, part.document.source, part.start, part.stop, part.text)
            for row in found.rows
            for part in row.documents
        ]
        assert parts == [
            (0, None, 0, 3, "\x01\x02\x03"),
            (1, None, 3, 4, "\x04"),
            (2, None, 4, 5, "\x05"),
            (2, None, 0, 2, "\x05\x06"),
            (3, None, 2, 5, "\x07\x08\x09"),
        ], name


@pytest.mark.parametrize("eot_id", [256, None])
def test_formats_without_a_table_are_cut_at_the_end_of_text(tmp_path, eot_id):
    write_raw(tmp_path / "train.bin", [*b"ab", 256, *b"cde", 256, *b"f", 256, *b"ghijk"])
    asked = {"row": 0, "seq_len": 8, "batch_size": 1, "order": "sequential"}
    opening = {"dtype": "uint16", "format": "raw"}
    if eot_id is not None:
        opening["tokenizer"] = "bytes"
    found = tokenmill.explain(tmp_path / "train.bin", **asked, **opening)
    parts = [(part.document, part.start, part.stop, part.text) for part in found.rows[0].documents]
    if eot_id is None:  # neither documents nor a tokenizer are known
        assert parts == [(None, 0, 9, None)]
        return
    end = "<|endoftext|>"
    assert parts == [
        (None, 0, 3, f"ab{end}"),
        (None, 3, 7, f"cde{end}"),
        (None, 7, 9, f"f{end}"),
    ]


def test_characters_that_a_row_cuts_are_replaced(tmp_path):
    build(tmp_path, {"train": ["é" * 20]})
    settings = {"batch_size": 1, "order": "sequential"}
    cut = tokenmill.explain(tmp_path, row=1, seq_len=5, **settings)
    assert cut.rows[0].documents[0].text == "\ufffdéé\ufffd"
    # Where decoding stops after a few characters, nothing is cut.
    short = tokenmill.explain(tmp_path, row=0, seq_len=30, text_length=3, **settings)
    assert short.rows[0].documents[0].text == "ééé"


def test_only_the_beginning_of_a_long_part_is_decoded(folder, monkeypatch):
    dataset = tokenmill.open(folder)
    decode, lengths = type(dataset.tokenizer).decode, []
    monkeypatch.setattr(
        type(dataset.tokenizer),
        "decode",
        lambda self, ids: lengths.append(len(ids)) or decode(self, ids),
    )
    tokenmill.explain(folder, row=0, seq_len=60, batch_size=1, text_length=2)
    assert lengths
    assert max(lengths) <= 8


def test_the_command_prints_rows_documents_and_the_next_command(folder, capsys):
    arguments = ["--seq-len", "7", "--batch-size", "2", "--seed", "1"]
    assert main(["explain", str(folder), "--step", "3", *arguments]) == 0
    out = capsys.readouterr().out
    found = tokenmill.explain(folder, step=3, **SETTINGS)
    assert "Step 3: rows 6 to 7, of 7 tokens each." in out
    for row in found.rows:
        assert f"row {row.span.row}: step 3, rank 0, row {row.place.index} of its batch" in out
        assert f"tokens {row.span.start} to {row.span.stop - 1}, in {row.shard}" in out
        for part in row.documents:
            before = row.span.start + part.start - part.document.start
            place = f"texts/a.txt, byte {part.document.offset}"
            place += f", from its token {before}" if before else ""
            assert f"document {part.document.number}, {place}  {part.text!r}" in out
    assert out.startswith("Step 3: ")
    assert main(["explain", str(folder), "--row", "3", *arguments]) == 0
    assert capsys.readouterr().out.startswith("row 3: step 1, ")
    number = found.rows[0].documents[0].document.number
    assert out.rstrip().endswith(f"Next:  tokenmill peek {folder} --document {number}")
    assert main(["explain", str(folder), "--token", "9", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"Token 9: id {tokenmill.open(folder)['train'][9]}, in train/shard_00000.bin"
    )
    assert "In its first epoch, it is in:" in out


def test_json_has_everything_and_is_ascii(folder, capsys):
    build(folder, {"train": ["\x1b[31mé\u202e" * 20]})
    arguments = ["--seq-len", "7", "--batch-size", "2", "--json"]
    assert main(["explain", str(folder), "--row", "3", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    values = json.loads(out)
    (row,) = values["rows"]
    assert row["place"] == {"row": 3, "step": 1, "rank": 0, "index": 1, "epoch": 0}
    assert row["documents"][0]["document"]["source"]["path"] == "texts/a.txt"
    assert main(["explain", str(folder), "--row", "3", *arguments[:-1]]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_wrong_questions_say_what_to_type(folder, capsys):
    with pytest.raises(UsageError, match="one of `step=N`, `row=N` and `token=N`"):
        tokenmill.explain(folder, **SETTINGS)
    with pytest.raises(UsageError, match="one of `step=N`"):
        tokenmill.explain(folder, row=1, step=1, **SETTINGS)
    with pytest.raises(UsageError, match="`rank` needs a `step`"):
        tokenmill.explain(folder, row=1, rank=0, **SETTINGS)
    with pytest.raises(UsageError, match="`batch_size=N`, or the folder of a run"):
        tokenmill.explain(folder, row=1, seq_len=7)
    with pytest.raises(UsageError, match="there is no token 999: split 'train' has 68 tokens"):
        tokenmill.explain(folder, token=999, **SETTINGS)
    for name in ("row", "step", "token"):
        for number in (2**62, 10**30, -1000):
            with pytest.raises(UsageError, match=f"{name}.*({number}|a number of 100 bits)"):
                tokenmill.explain(folder, **{name: number}, **SETTINGS)
    with pytest.raises(UsageError, match="name the data"):
        tokenmill.explain(step=1)
    with pytest.raises(UsageError, match="numbered from 0"):
        tokenmill.explain(folder, step=1, rank=1, **SETTINGS)
    with pytest.raises(DatasetError, match="has no split 'test'"):
        tokenmill.explain(folder, step=1, split="test", **SETTINGS)
    assert main(["explain", str(folder), "--step", "3", "--seq-len", "7"]) == 2
    assert (
        "Give --batch-size N, or the folder of a run: --run runs/NAME." in capsys.readouterr().err
    )


def test_the_first_mistake_is_named_first(folder, tmp_path, capsys):
    assert main(["explain", str(folder)]) == 2
    assert "give one of --step N, --row N and --token N" in capsys.readouterr().err
    for given in ([], ["--seq-len", "7"]):
        assert main(["explain", str(tmp_path / "nosuch"), "--step", "1", *given]) == 1
        assert "nosuch does not exist" in capsys.readouterr().err


def test_tokens_without_a_document_table_have_a_next_command(tmp_path, capsys):
    np.save(tmp_path / "ids.npy", np.arange(99, dtype=np.uint16))
    command = ["explain", str(tmp_path / "ids.npy"), "--row", "0", "--seq-len", "7"]
    command += ["--batch-size", "1", "--order", "sequential"]
    assert main(command) == 0
    peek = f"Next:  tokenmill peek {tmp_path / 'ids.npy'}"
    assert f"{peek} --tokenizer NAME --token 0" in capsys.readouterr().out
    assert main([*command, "--tokenizer", "bytes"]) == 0
    assert f"{peek} --tokenizer bytes --token 0" in capsys.readouterr().out


def test_a_step_with_very_many_rows_is_explained_by_rank(folder):
    asked = {**SETTINGS, "world_size": 5_000}
    with pytest.raises(UsageError, match=r"step 1 has 10,000 rows.*`rank=N`"):
        tokenmill.explain(folder, step=1, **asked)
    assert len(tokenmill.explain(folder, step=1, rank=4_999, **asked).rows) == 2


def test_another_split_is_explained(folder):
    found = tokenmill.explain(folder, row=0, split="val", **{**SETTINGS, "order": "sequential"})
    assert found.rows[0].documents[0].text.startswith(TEXTS["val"][0][:4])


def test_an_impossible_id_points_to_verify(folder):
    np.full(10, 60_000, "<u2").tofile(folder / "train/shard_00000.bin")
    with pytest.raises(DatasetError, match="tokenmill verify"):
        tokenmill.explain(folder, token=3, **SETTINGS)
