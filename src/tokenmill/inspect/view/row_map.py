"""A picture of the rows of a batch: each row as a bar, coloured by document or by loss.

Costs: at most one rectangle per pixel of a row; documents narrower than that are drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tokenmill.inspect.view.row_pieces import Part

_WIDTH, _ROW, _GAP = 1000, 16, 4
_LOSSES = 150  # pixels on the right, for the losses
_LETTER = 8  # pixels for each character of a label on the left
_NARROWEST = 1.5


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row: its documents, and its loss, if known. `heat` is the colour of the loss."""

    label: str
    parts: Sequence[Part]
    loss: float | None
    heat: int | None
    link: str


def draw_map(bars: Sequence[Bar], *, length: int, by_loss: bool, label: str) -> str:
    """Return the picture as SVG. A row has `length` tokens.

    >>> bar = Bar(label="row 1", parts=[Part(start=0, stop=5, number=3)], loss=2.5, heat=0, link="#1")
    >>> svg = draw_map([bar], length=10, by_loss=False, label="one row")
    >>> 'class="part colour-3"' in svg, "2.500" in svg
    (True, True)
    """
    has_losses = any(bar.loss is not None for bar in bars)
    room = max((len(bar.label) for bar in bars), default=0) * _LETTER + 12  # for the row's number
    across = _WIDTH - room - (_LOSSES if has_losses else 0)
    highest = max((bar.loss for bar in bars if bar.loss is not None), default=1.0) or 1.0
    height = len(bars) * (_ROW + _GAP)
    made = [
        f'<svg class="row-map" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="group" aria-label="{escape(label)}">'
    ]
    for number, bar in enumerate(bars):
        y = number * (_ROW + _GAP)
        spoken = f"{bar.label}: {_count(len(bar.parts))}"
        if bar.loss is not None:
            spoken += f", loss {bar.loss:.3f}"
        made.append(f'<a href="{escape(bar.link)}" aria-label="{escape(spoken)}">')
        made.append(f'<text class="label" x="0" y="{y + 12}">{escape(bar.label)}</text>')
        if by_loss and bar.heat is not None:
            made.append(_rectangle(room, y, across, f"part heat-{bar.heat}"))
        drawn = float(room)
        for part in bar.parts:
            left = room + across * part.start / length
            right = room + across * min(part.stop, length) / length
            if right - drawn < _NARROWEST:
                continue
            left = max(left, drawn)
            if not by_loss or bar.heat is None:
                made.append(_rectangle(left, y, right - left, f"part colour-{part.colour}"))
            elif part.start > 0:
                made.append(f'<path class="border" d="M{left:.1f} {y}v{_ROW}"/>')
            drawn = right
        if bar.loss is not None:
            x, most = room + across + 12, _LOSSES - 62
            made.append(_rectangle(x, y + 4, most, "track", _ROW - 8))
            long = max(0.0, min(bar.loss / highest, 1.0)) * most
            made.append(_rectangle(x, y + 4, long, "amount", _ROW - 8))
            made.append(
                f'<text class="label" x="{_WIDTH}" y="{y + 12}" text-anchor="end">{bar.loss:.3f}</text>'
            )
        made.append("</a>")
    return "".join([*made, "</svg>"])


def _rectangle(x: float, y: float, width: float, kind: str, height: float = _ROW) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>'
    )


def _count(parts: int) -> str:
    return f"{parts:,} document{'s' if parts != 1 else ''}"
