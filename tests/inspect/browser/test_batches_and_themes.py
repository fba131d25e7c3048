"""Batches in a browser, ways between pages, light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from view_pages import Visit

import tokenmill

CONTRAST = """() => {
    const parse = (text) => { const c = document.createElement('canvas').getContext('2d');
        c.fillStyle = text; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
    const light = (text) => { const [r, g, b] = parse(text).map((v) => {
        v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05); };
    return Object.fromEntries(['--c0', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7', '--ink',
        '--muted'].map((name) => [name, ratio(read(name), read('--surface'))]));
}"""


def test_a_spike_leads_to_its_batch_row_and_document_and_back(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    visit.open_runs("?hide=1")
    visit.page.wait_for_selector("[data-charts]:not([data-searching])")
    marks = visit.page.locator("#loss .spike")
    names = [marks.nth(n).get_attribute("aria-label") for n in range(marks.count())]
    assert any("step 1,240" in name for name in names)
    row = visit.page.locator("#spikes tbody tr", has_text="1,240")
    assert row.locator("a").nth(1).inner_text() == f"{1240 * 16 + 5:,}"  # the planted row
    marks.nth(next(n for n, name in enumerate(names) if "1,240" in name)).focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/batches?*")
    assert visit.page.locator("h1").inner_text() == "Batch of step 1,240"
    planted = visit.page.locator(f"#row-{1240 * 16 + 5}")
    assert planted.locator(".chip.warm").count() == 1
    link = planted.locator(".row-documents a").first
    number, file = re.match(r"document ([\d,]+) · (.*)", link.inner_text()).groups()
    link.click()
    assert visit.page.locator("h1").inner_text() == f"Document {number}"
    assert visit.page.locator("main", has_text=file).count()
    steps = visit.page.locator("main a[href*='/batches?']").evaluate_all(
        "all => all.map(one => one.href)"
    )
    assert steps  # the steps that read the document
    visit.page.locator("main a[href*='/batches?']").first.click()
    assert "Batch of step" in visit.page.locator("h1").inner_text()


def test_the_keys_n_and_p_lead_to_the_next_and_previous_step(visit: Visit) -> None:
    visit.go("/batches?run=baseline&step=7")
    visit.page.keyboard.press("n")
    visit.page.wait_for_url("**step=8**")
    visit.page.keyboard.press("p")
    visit.page.wait_for_url("**step=7**")
    visit.page.fill("input[name=step]", "2,999")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**step=2*999**")
    visit.page.wait_for_selector(".row-text")
    assert visit.page.locator("h1").inner_text() == "Batch of step 2,999"
    assert visit.page.locator('[data-key="n"]').count() == 0  # the last step of the run


def test_the_form_shows_the_batches_of_a_loader(
    visit: Visit, demo: tuple[dict[str, Path], list[Path]]
) -> None:
    visit.go("/batches")
    visit.page.select_option("select[name=run]", "-")
    visit.page.click("form.filters button")
    visit.page.fill("input[name=seq_len]", "32")
    visit.page.fill("input[name=batch_size]", "3")
    visit.page.fill("input[name=seed]", "5")
    visit.page.select_option("select[name=data]", "code")
    visit.page.click("form.filters button")
    visit.page.wait_for_url("**seq_len=32**")
    visit.page.fill("input[name=step]", "11")
    visit.page.click("form.filters button")
    visit.page.wait_for_url("**step=11**")
    dataset = tokenmill.open(demo[0]["code"])
    loader = tokenmill.Loader(dataset["train"], batch_size=3, seq_len=32, seed=5)
    batch = loader.batch_from(33)
    shown = visit.page.locator(".row-text")
    assert shown.count() == 3
    for n in range(3):
        text = dataset.tokenizer.decode([*batch.inputs[n], batch.targets[n, -1]])
        plain = re.sub(r"\s+|↵|<\|endoftext\|>|\ufffd", "", text)
        found = re.sub(r"\s+|↵|end of text|\ufffd", "", shown.nth(n).inner_text())
        assert found == plain


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_curves_and_texts_have_contrast_in_both_themes(browser: Any, url: str, scheme: str) -> None:
    visit = Visit(browser, url, color_scheme=scheme)
    visit.open_runs()
    ratios = visit.page.evaluate(CONTRAST)
    texts = {name: ratios.pop(name) for name in ("--ink", "--muted")}
    assert min(texts.values()) >= 4.5
    assert min(ratios.values()) >= 3, ratios
    is_dark = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] < 100"
    assert visit.page.evaluate(is_dark) == (scheme == "dark")
    visit.page.click("[data-theme-toggle]")  # the other one, which stays chosen
    visit.page.reload()
    assert visit.page.evaluate(is_dark) == (scheme == "light")
    assert min(visit.page.evaluate(CONTRAST).values()) >= 3
    visit.context.close()
    assert not visit.problems


def test_every_control_has_a_name_and_a_visible_focus(visit: Visit) -> None:
    for path in ("/runs", "/batches"):
        visit.go(path)
        if path == "/runs":
            visit.wait_for_charts()
        reached = set()
        for _ in range(30):
            visit.page.keyboard.press("Tab")
            found = visit.page.evaluate(
                """() => { const one = document.activeElement; const style = getComputedStyle(one);
                const name = one.getAttribute('aria-label') || one.innerText || one.textContent
                    || (one.labels && one.labels[0] && one.labels[0].innerText) || '';
                return [one.tagName, name.trim(), one.id, style.outlineStyle !== 'none'
                    || one.matches('.spike')]; }"""
            )
            tag, name, key, has_outline = found
            if tag == "BODY":
                break
            assert name, (path, found)
            assert has_outline, (path, found)
            reached.add(key or name)
        wanted = {"smooth", "logx", "logy", "zoom-in", "loss"} if path == "/runs" else {"Show"}
        assert wanted <= reached
