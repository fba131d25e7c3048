"""Charts of runs in a browser: zoom, values under the pointer, keys, and runs that grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from view_demo import CONFIG, RunWriter, make_loader
from view_pages import Visit, serve

import tokenmill
from tokenmill.inspect.run_opening import open_run


def shown(visit: Visit) -> tuple[int, int]:
    """The steps that the charts show."""
    charts = visit.page.locator("[data-charts]")
    return int(charts.get_attribute("data-from")), int(charts.get_attribute("data-to"))


def query(visit: Visit) -> dict[str, list[str]]:
    return parse_qs(urlsplit(visit.page.url).query)


def readout(visit: Visit) -> dict[str, str]:
    """The names and values in the box beside the pointer; its title has the name ""."""
    box = visit.page.locator(".readout:visible")
    lines = box.locator("span").all_inner_texts()
    found = dict(line.split("\n", 1) for line in lines)
    return {"": box.locator("b").inner_text()} | found


def wait_for_range(visit: Visit, condition: str) -> None:
    visit.page.wait_for_function(
        "() => { const c = document.querySelector('[data-charts][data-filled]'); if (!c) return false;"
        f" const from = Number(c.dataset.from), to = Number(c.dataset.to); return {condition}; }}"
    )


def drag(visit: Visit, first: float, last: float) -> None:
    """Drag over the first chart, between two fractions of the plot's width."""
    box = visit.page.locator("#loss .plane").bounding_box()
    y = box["y"] + box["height"] / 2
    visit.page.mouse.move(box["x"] + first * box["width"], y)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + (first + last) / 2 * box["width"], y)
    visit.page.mouse.move(box["x"] + last * box["width"], y)
    visit.page.mouse.up()


def losses_of(run: Path) -> np.ndarray:
    """The mean loss of each step, from the file of the run."""
    return np.fromfile(run / "row_losses.f32", "<f4").reshape(-1, CONFIG.batch_rows).mean(axis=1)


def test_curves_are_visible_without_scripts(browser: Any, url: str) -> None:
    visit = Visit(browser, url, java_script_enabled=False)
    visit.go("/runs")
    assert visit.page.locator("#loss .series .line").count() == 4
    box = visit.page.locator("#loss .series .line").first.bounding_box()
    assert box["width"] > 700
    visit.page.click("#zoom-in")  # a link
    assert query(visit) == {"from": ["750"], "to": ["2250"]}
    visit.page.select_option("#smooth", "100")
    visit.page.click("[data-apply]")
    assert query(visit) == {"from": ["750"], "to": ["2250"], "smooth": ["100"]}
    assert visit.page.locator("#smooth").input_value() == "100"
    visit.context.close()
    assert not visit.problems


def test_dragging_zooms_and_the_url_shows_the_same_again(visit: Visit, browser: Any) -> None:
    visit.open_runs()
    assert shown(visit) == (0, 3000)
    drag(visit, 0.4, 0.5)
    wait_for_range(visit, "to - from < 400")
    first, last = shown(visit)
    assert abs(first - 1200) < 15
    assert abs(last - 1500) < 15
    assert query(visit) == {"from": [str(first)], "to": [str(last)]}
    path = visit.page.locator("#loss .line").first.get_attribute("d")
    other = Visit(browser, visit.url)
    other.page.goto(visit.page.url)
    other.wait_for_charts()
    assert shown(other) == (first, last)
    assert other.page.locator("#loss .line").first.get_attribute("d") == path
    other.context.close()
    visit.page.go_back()
    wait_for_range(visit, "from === 0 && to === 3000")


def test_the_wheel_zooms_around_the_pointer_once_the_chart_is_in_focus(visit: Visit) -> None:
    visit.open_runs()
    box = visit.page.locator("#loss .plane").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    visit.page.mouse.wheel(0, 120)
    visit.page.wait_for_timeout(150)
    assert shown(visit) == (0, 3000)  # the page scrolled instead
    assert visit.page.evaluate("scrollY") > 0
    visit.page.locator("#loss").focus()
    box = visit.page.locator("#loss .plane").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    before = visit.page.evaluate("scrollY")
    for _ in range(3):
        visit.page.mouse.wheel(0, -150)
    wait_for_range(visit, "to - from < 1500")
    first, last = shown(visit)
    assert abs((first + last) / 2 - 1500) < 100
    assert visit.page.evaluate("scrollY") == before
    assert visit.page.evaluate("document.activeElement.id") == "loss"


def test_buttons_zoom_and_move(visit: Visit) -> None:
    visit.open_runs()
    for name, condition in (
        ("in", "from === 750 && to === 2250"),
        ("right", "from === 1500 && to === 3000"),
        ("left", "from === 750 && to === 2250"),
        ("out", "from === 0 && to === 3000"),
        ("in", "from === 750"),
        ("all", "from === 0 && to === 3000"),
    ):
        visit.page.click(f"#zoom-{name}")
        wait_for_range(visit, condition)
        assert visit.page.evaluate("document.activeElement.id") == f"zoom-{name}"
    assert visit.page.locator("#zoom-out").get_attribute("aria-disabled") == "true"


def test_the_values_under_the_pointer_are_those_of_the_run(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    visit.open_runs("?from=1200&to=1260")
    box = visit.page.locator("#loss .plane").bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] * 40.2 / 60, box["y"] + 60)
    found = readout(visit)
    assert found[""] == "step 1,240"
    for run in demo[1]:
        loss = losses_of(run)[1240]
        assert float(found[f"{run.name} training"]) == pytest.approx(loss, abs=1e-4)
    visit.page.mouse.move(5, 5)
    assert visit.page.locator(".readout:visible").count() == 0


def test_everything_works_with_the_keyboard(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    visit.open_runs("?from=1200&to=1260")
    for _ in range(40):  # reach the chart with the tab key alone
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("document.activeElement.id") == "loss":
            break
    assert visit.page.evaluate("document.activeElement.id") == "loss"
    visit.page.keyboard.press("Home")
    for _ in range(40):
        visit.page.keyboard.press("ArrowRight")
    found = readout(visit)
    assert found[""] == "step 1,240"
    run = demo[1][0]
    assert float(found[f"{run.name} training"]) == pytest.approx(losses_of(run)[1240], abs=1e-4)
    visit.page.keyboard.press("+")
    wait_for_range(visit, "to - from < 50 && from > 1200")
    assert readout(visit)[""] == "step 1,240"
    visit.page.keyboard.press("-")
    wait_for_range(visit, "to - from > 50")
    visit.page.keyboard.press("0")
    wait_for_range(visit, "to === 3000")
    visit.page.keyboard.press("End")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/batches?*")
    assert query(visit)["run"] == [run.name]
    assert int(query(visit)["step"][0]) > 2980


def test_the_legend_hides_and_shows_runs(visit: Visit) -> None:
    visit.open_runs()
    switch = visit.page.locator("#toggle-0")
    switch.focus()
    visit.page.keyboard.press("Space")
    visit.page.wait_for_selector('#toggle-0[aria-checked="false"]')
    assert query(visit) == {"hide": ["0"]}
    names = visit.page.locator("#loss .series").evaluate_all(
        "all => all.map(one => one.dataset.id)"
    )
    assert names == ["1:train", "1:val"]
    assert visit.page.evaluate("document.activeElement.id") == "toggle-0"
    visit.page.reload()
    assert visit.page.locator("#toggle-0").get_attribute("aria-checked") == "false"
    visit.wait_for_charts()
    visit.page.click("#toggle-0")
    visit.page.wait_for_selector('#toggle-0[aria-checked="true"]')
    assert query(visit) == {}


def test_options_change_the_axes(visit: Visit) -> None:
    visit.open_runs()
    visit.page.check("#logy")
    visit.page.wait_for_selector('#loss[data-y-log="1"]')
    visit.page.check("#logx")
    visit.page.wait_for_selector('#loss[data-x-log="1"]')
    visit.page.select_option("#smooth", "100")
    chosen = "[data-charts][data-filled] #smooth option[value='100'][selected]"
    visit.page.wait_for_selector(chosen, state="attached")
    assert query(visit) == {"logx": ["1"], "logy": ["1"], "smooth": ["100"]}
    assert "logarithmic" in visit.page.locator("#loss").text_content()


def test_charts_have_no_overlapping_labels_at_any_width(browser: Any, url: str) -> None:
    for width in (390, 760, 1400):
        visit = Visit(browser, url, viewport={"width": width, "height": 800})
        visit.open_runs("?from=1234&to=2789")
        visit.page.wait_for_timeout(150)
        visit.wait_for_charts()
        texts = visit.page.locator("#loss text").evaluate_all(
            "all => all.map(one => { const b = one.getBoundingClientRect();"
            " return [b.left, b.top, b.right, b.bottom]; })"
        )
        for at, one in enumerate(texts):
            for other in texts[at + 1 :]:
                apart = (
                    one[2] <= other[0]
                    or other[2] <= one[0]
                    or one[3] <= other[1] + 2
                    or other[3] <= one[1] + 2
                )
                assert apart, (width, one, other)
        chart = visit.page.locator("#loss").bounding_box()
        assert all(one[2] <= chart["x"] + chart["width"] + 1 for one in texts)
        # One unit of the chart is one pixel, so that texts have the size of other texts.
        assert abs(int(visit.page.locator("#loss").get_attribute("width")) - chart["width"]) < 25
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.context.close()
        assert not visit.problems


@pytest.fixture
def growing(
    demo: tuple[dict[str, Path], list[Path]], tmp_path: Path
) -> Iterator[tuple[str, RunWriter]]:
    """A server of a run in progress, and the run."""
    data, _ = demo
    loader = make_loader(data, (0.7, 0.3), CONFIG)
    named = [
        f"{name}={path}:{weight}"
        for (name, path), weight in zip(data.items(), (0.7, 0.3), strict=True)
    ]
    writer = RunWriter(tmp_path / "live", named, loader)
    writer.write(np.linspace(9, 6, 40)[:, None] + np.zeros((40, writer.rows)))
    datasets = {name: tokenmill.open(path) for name, path in data.items()}
    with serve(datasets, {"live": open_run(tmp_path / "live")}) as url:
        yield url, writer
    writer.close()


def test_curves_grow_while_a_run_trains(browser: Any, growing: tuple[str, RunWriter]) -> None:
    url, writer = growing
    visit = Visit(browser, url)
    answers: list[str] = []
    visit.page.on("response", lambda answer: answers.append(answer.url))
    visit.open_runs()
    assert visit.page.locator(".chip.strong").first.inner_text() == "live"
    line = visit.page.locator('#loss [data-id="0:train"] .line')

    def count() -> int:
        return len(re.findall("[ML]", line.get_attribute("d")))

    assert count() == 40
    room = shown(visit)[1] - 40
    assert room >= 4
    # Few points: the curve is extended by its script, with only the new points.
    writer.write(np.full((min(room, 4), writer.rows), 5.9), val_loss=6.1)
    visit.page.wait_for_function(
        "() => document.querySelector('[data-charts]').dataset.updates === '1'"
    )
    assert count() == 40 + min(room, 4)
    (points,) = [one for one in answers if "after=40" in one][-1:]
    added = visit.page.request.get(points).json()["curves"]
    assert max(len(one["steps"]) for one in added) <= 6
    # Many points, and a much higher loss: the axes change.
    writer.write(np.full((300, writer.rows), 14.0))
    wait_for_range(visit, "to >= 344")
    assert visit.page.locator("#loss").get_attribute("data-y-high") > "14"
    assert visit.page.locator(".figures b").first.inner_text() == "344"
    visit.context.close()
    assert not visit.problems


def test_a_live_run_does_not_move_what_is_zoomed(
    browser: Any, growing: tuple[str, RunWriter]
) -> None:
    url, writer = growing
    visit = Visit(browser, url)
    visit.open_runs("?from=10&to=30")
    before = visit.page.locator("#loss .line").first.get_attribute("d")
    writer.write(np.full((200, writer.rows), 5.0))
    visit.page.wait_for_function("() => document.querySelector('[data-charts]').dataset.updates")
    assert shown(visit) == (10, 30)
    assert visit.page.locator("#loss .line").first.get_attribute("d") == before
    visit.context.close()
    assert not visit.problems
