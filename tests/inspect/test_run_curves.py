"""The curves of a run follow its files: while it grows, when it is resumed, and when they are damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.inspect.run_opening import open_run
from tokenmill.inspect.view.query import Query
from tokenmill.inspect.view.rendering import Templates
from tokenmill.inspect.view.run_curves import RunCurves
from tokenmill.inspect.view.runs import show_charts, show_points, show_runs
from tokenmill.inspect.view.viewer import Viewer
from tokenmill.load.loader import Loader
from tokenmill.load.mixture import Mixture
from tokenmill.training.run_folder import Record
from tokenmill.training.run_reading import DataOrigin, RunPhase, write_run_data

ROWS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    for name in ("web", "code"):
        (folder / f"{name}.txt").write_text(f"{name} " * 300)
        tokenmill.prepare(
            folder / f"{name}.txt", folder / name, tokenizer="bytes", workers=1, val_fraction=0
        )
    return [f"web={folder / 'web'}:0.75", f"code={folder / 'code'}:0.25"]


def make_loader(data: list[str]) -> Loader:
    parts = [one.replace("=", ":").rsplit(":", 2) for one in data]
    sources = {name: (tokenmill.open(path)["train"], float(weight)) for name, path, weight in parts}
    return Loader(Mixture(sources), batch_size=ROWS, seq_len=8, seed=42)


def start(
    folder: Path, data: list[str], *, step: int = 0, row: int = 0, rows: int = ROWS
) -> Record:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"seq_len": 8, "batch_tokens": 32}))
    phase = RunPhase(step=step, row=row, batch_rows=rows, world_size=1)
    write_run_data(folder, DataOrigin.of(data), make_loader(data).rows.identity, phase)
    return Record(folder, step=step, row=row)


def write(record: Record, first: int, losses: np.ndarray) -> None:
    """Write the losses (steps, rows) of steps from `first` on, as if every step had `ROWS` rows."""
    record.add_losses(first * ROWS, losses.astype(np.float32).ravel())
    last = first + len(losses)
    record.add({"step": last, "row": last * ROWS, "loss": float(losses.mean())})
    record.add({"step": last, "val_loss": float(losses.mean()) + 1})


def means(curves: RunCurves) -> list[float]:
    return curves.losses.find(0, 10_000, 1).means.tolist()


def test_a_run_is_followed_while_it_grows_and_when_it_is_resumed(
    tmp_path: Path, data: list[str]
) -> None:
    record = start(tmp_path / "run", data)
    losses = np.random.default_rng(1).random((60, ROWS)).astype(np.float32)
    curves = RunCurves("run", open_run(tmp_path / "run"))
    curves.refresh()
    assert (curves.steps, means(curves)) == (0, [])
    for first in range(0, 40, 10):
        write(record, first, losses[first : first + 10])
        curves.refresh()
        assert curves.steps == first + 10
        assert means(curves) == pytest.approx(losses[: first + 10].mean(axis=1))
        assert curves.metrics.val_steps == list(range(10, first + 11, 10))
    record.close()
    # Resumed from step 20, with batches twice as large.
    record = start(tmp_path / "run", data, step=20, row=20 * ROWS, rows=2 * ROWS)
    curves.refresh()
    assert curves.steps == 20
    rest = losses[20:60].reshape(20, -1)
    record.add_losses(20 * ROWS, rest.ravel())
    record.add({"step": 40, "row": 20 * ROWS + 20 * 2 * ROWS, "loss": 1.0})
    curves.refresh()
    assert curves.steps == 40
    assert means(curves) == pytest.approx([*losses[:20].mean(axis=1), *rest.mean(axis=1)])
    assert curves.metrics.line_steps == [10, 20, 40]
    assert curves.losses.rows_of(21) == range(20 * ROWS + 8, 20 * ROWS + 16)
    record.close()


def test_losses_by_source_are_means_of_the_rows_of_each_source(
    tmp_path: Path, data: list[str]
) -> None:
    record = start(tmp_path / "run", data)
    loader = make_loader(data)
    sources = np.array([loader.rows.origin(row)[0] for row in range(50 * ROWS)]).reshape(50, ROWS)
    losses = np.where(sources == "web", 3.0, 5.0) + np.arange(50)[:, None] / 100
    write(record, 0, losses)
    curves = RunCurves("run", open_run(tmp_path / "run"))
    curves.refresh()
    assert curves.sources == ("web", "code")
    buckets = curves.losses.find(0, 50, 8)
    found = curves.find_by_source(buckets)
    for number, name in enumerate(("web", "code")):
        for at, first in enumerate(range(0, 50, 8)):
            own = losses[first : first + 8][sources[first : first + 8] == name]
            assert found[number, at] == pytest.approx(own.mean())
    record.close()


def test_without_losses_of_rows_the_curve_is_that_of_the_metrics(
    tmp_path: Path, data: list[str]
) -> None:
    record = start(tmp_path / "run", data)
    write(record, 0, np.full((10, ROWS), 4.0))
    write(record, 10, np.full((5, ROWS), 3.0))
    record.close()
    (tmp_path / "run/row_losses.f32").unlink()
    curves = RunCurves("run", open_run(tmp_path / "run"))
    curves.refresh()
    assert means(curves) == [4.0] * 10 + [3.0] * 5
    assert curves.sources == ()


def test_lines_whose_steps_go_back_give_no_more_values_than_steps(
    tmp_path: Path, data: list[str]
) -> None:
    start(tmp_path / "run", data).close()
    last = 1 << 20
    lines = [{"step": 3, "row": 1, "loss": 5.0}]
    lines += 30 * [{"step": last, "row": 1, "loss": 2.0}, {"step": 1, "row": 1, "loss": 9.0}]
    with (tmp_path / "run/metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    curves = RunCurves("run", open_run(tmp_path / "run"))
    curves.refresh()
    assert curves.steps == last
    assert curves.losses.find(0, 6, 1).means.tolist() == [5.0] * 3 + [2.0] * 3
    assert curves.losses.find(0, last, last).count.tolist() == [last]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_a_pipe_in_the_folder_of_a_run_is_not_waited_for(
    tmp_path: Path, data: list[str], name: str
) -> None:
    record = start(tmp_path / "run", data)
    write(record, 0, np.full((10, ROWS), 4.0))
    record.close()
    view = open_run(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    viewer = Viewer(datasets=view.datasets, runs={"run": view})
    done: list[int] = []

    def ask() -> None:
        done.append(len(show_points(viewer, Query({})).values["curves"]))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert done, "waits for the pipe"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b'{"step":1000000000000,"row":1,"loss":1e308}\n',
                b'{"step":3,"row":1,"loss":-1e308}\n',
                b'{"step":5,"val_loss":0.0,"tokens_per_second":"fast"}\n',
                b'{"step":2,"row":1,"loss":1e-308,"tokens":"<b>"}\n',
                b'{"step":4,"val_loss":2.5}\n',
                b'{"step":',
                b"\xff\n",
                b"[]\n",
            ]
        ),
        max_size=6,
    ),
    st.binary(max_size=90),
    st.dictionaries(
        st.sampled_from("from to smooth logx logy hide width after".split()),
        st.integers(-5, 1 << 63).map(str) | st.sampled_from(["0", "1", "10", "300", "0,0", "-1,,"]),
    ),
)
def test_damaged_files_and_any_address_give_a_page_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[str],
    lines: list[bytes],
    losses: bytes,
    query: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    start(folder, data).close()
    view = open_run(folder)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))
    (folder / "row_losses.f32").write_bytes(losses)
    viewer = Viewer(datasets=view.datasets, runs={"run": view})
    templates = Templates(names={"viewer": viewer})
    try:
        page = templates.render(show_runs(viewer, Query(query)), data="")
        part = templates.render(show_charts(viewer, Query(query)), data="")
        points = json.dumps(show_points(viewer, Query(query)).values, allow_nan=False)
    except TokenmillError:
        return
    assert "data-charts" in page
    assert "data-charts" in part
    assert len(page) < 200_000
    assert len(points) < 200_000


def test_a_restarted_run_is_read_again(tmp_path: Path, data: list[str]) -> None:
    record = start(tmp_path / "run", data)
    write(record, 0, np.full((30, ROWS), 4.0))
    record.close()
    view = open_run(tmp_path / "run")
    viewer = Viewer(datasets=view.datasets, runs={"run": view})
    assert show_points(viewer, Query({})).values["runs"][0]["steps"] == 30
    for name in ("metrics.jsonl", "row_losses.f32"):
        os.unlink(tmp_path / "run" / name)  # noqa: PTH108
    record = start(tmp_path / "run", data)
    write(record, 0, np.full((7, ROWS), 9.0))
    (run,) = show_points(viewer, Query({"after": "30"})).values["runs"]
    assert (run["steps"], run["restarted"]) == (7, True)
    curves = show_points(viewer, Query({})).values["curves"]
    assert next(one for one in curves if one["id"] == "0:train")["values"] == [9.0] * 7
    record.close()


def test_new_points_are_few_however_long_the_run_is(tmp_path: Path, data: list[str]) -> None:
    record = start(tmp_path / "run", data)
    for first in range(0, 20_000, 2000):
        write(record, first, np.full((2000, ROWS), 3.0))
    view = open_run(tmp_path / "run")
    viewer = Viewer(datasets=view.datasets, runs={"run": view})
    query = {"from": "0", "to": "30000"}
    everything = show_points(viewer, Query(query)).values["curves"]
    assert all(len(one["steps"]) <= 600 for one in everything)
    write(record, 20_000, np.full((20, ROWS), 2.0))
    new = show_points(viewer, Query({**query, "after": "20000"})).values["curves"]
    assert all(len(one["steps"]) <= 3 for one in new)
    # Points that replace the last ones make the same curve as all points together.
    now = show_points(viewer, Query(query)).values["curves"]
    for one in now:
        if one["id"] != "0:train":
            continue
        before = next(curve for curve in everything if curve["id"] == one["id"])
        added = next(curve for curve in new if curve["id"] == one["id"])
        kept = [n for n, step in enumerate(before["steps"]) if step < added["start"]]
        assert [*before["values"][: len(kept)], *added["values"]] == one["values"]
        assert [*before["steps"][: len(kept)], *added["steps"]] == one["steps"]
    record.close()


def test_settings_of_the_run_are_shown(tmp_path: Path, data: list[str]) -> None:
    record = start(tmp_path / "run", data)
    (tmp_path / "run/config.json").write_text(
        json.dumps(
            {"layers": 1, "heads": 1, "width": 8, "seq_len": 8, "batch_tokens": 32, "max_steps": 77}
        )
    )
    curves = RunCurves("run", open_run(tmp_path / "run"))
    curves.refresh()
    assert curves.max_steps == 77
    write(record, 0, np.full((76, ROWS), 9.0))
    curves.refresh()
    assert curves.is_live
    write(record, 76, np.full((1, ROWS), 9.0))
    curves.refresh()
    assert not curves.is_live
    record.close()


def test_steps_before_the_first_known_phase_are_unknown(tmp_path: Path, data: list[str]) -> None:
    record = start(tmp_path / "run", data)
    write(record, 0, np.full((20, ROWS), 4.0))
    record.close()
    (tmp_path / "run/data.json").unlink()
    record = start(tmp_path / "run", data, step=10, row=10 * ROWS)  # the phase before it is lost
    view = open_run(tmp_path / "run")
    viewer = Viewer(datasets=view.datasets, runs={"run": view})
    assert not [one for one in show_points(viewer, Query({})).values["curves"] if one["values"]]
    write(record, 10, np.full((5, ROWS), 3.0))
    train = show_points(viewer, Query({})).values["curves"][0]
    assert train["id"] == "0:train"
    assert train["steps"] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert train["values"] == [3.0] * 5
    assert "data-charts" in Templates(names={"viewer": viewer}).render(
        show_runs(viewer, Query({})), data=""
    )
    record.close()
