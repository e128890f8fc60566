"""Line plots as small SVG files: the same points give the same bytes.

In `small_multiples` both axes are logarithmic, so proportional growth is a line of slope 1. A thin
one goes through each panel's last point. In `over_time` both axes are linear and begin at 0. Text
and lines follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 230, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 34
COLUMNS = 3
STYLE = (
    "text{font:10px sans-serif;fill:#333}.t{font-weight:bold}.f{fill:none;stroke:#999}"
    ".l{fill:none;stroke:#0969da;stroke-width:2}.p{fill:#0969da}"
    ".s{stroke:#999;stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.f,.s{stroke:#777}"
    ".l{stroke:#58a6ff}.p{fill:#58a6ff}}"
)

Points = Sequence[tuple[float, float]]


def small_multiples(x_title: str, panels: Mapping[str, Points]) -> str:
    """An SVG document with a panel for each series; its points are above 0 and rise in x."""
    return _document({title: _panel(title, x_title, points) for title, points in panels.items()})


def over_time(x_title: str, panels: Mapping[str, Points]) -> str:
    """An SVG document with a panel for each series; its points rise in x, and none is below 0."""
    return _document(
        {title: _time_panel(title, x_title, points) for title, points in panels.items()}
    )


def _document(panels: Mapping[str, Iterator[str]]) -> str:
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * PANEL_WIDTH, rows * PANEL_HEIGHT
    sizes = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {sizes}><style>{STYLE}</style>']
    for number, panel in enumerate(panels.values()):
        x, y = number % columns * PANEL_WIDTH, number // columns * PANEL_HEIGHT
        lines.append(f'<g transform="translate({x} {y})">')
        lines += panel
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _panel(title: str, x_title: str, points: Points) -> Iterator[str]:
    xs, ys = _Scale([x for x, _ in points]), _Scale([y for _, y in points])
    right, bottom = PANEL_WIDTH - RIGHT, PANEL_HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            round(LEFT + xs.share(x) * (right - LEFT), 1),
            round(bottom - ys.share(y) * (bottom - TOP), 1),
        )

    yield f'<text class="t" x="{LEFT}" y="16">{escape(title)}</text>'
    yield (f'<rect class="f" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>')
    for x, _ in points:
        yield (
            f'<text x="{at(x, ys.low)[0]}" y="{bottom + 12}" text-anchor="middle">{_short(x)}'
            "</text>"
        )
    for y in (ys.low, ys.high):
        yield (
            f'<text x="{LEFT - 4}" y="{at(xs.low, y)[1] + 3}" text-anchor="end">{_short(y)}</text>'
        )
    yield (
        f'<text x="{(LEFT + right) / 2}" y="{bottom + 26}" text-anchor="middle">{escape(x_title)}'
        "</text>"
    )
    (x_last, y_last) = points[-1]
    share = max(xs.low / x_last, ys.low / y_last)  # where the line of slope 1 enters the panel
    (x1, y1), (x2, y2) = at(x_last * share, y_last * share), at(x_last, y_last)
    yield f'<line class="s" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
    coordinates = [at(x, y) for x, y in points]
    yield f'<polyline class="l" points="{" ".join(f"{x},{y}" for x, y in coordinates)}"/>'
    for x, y in coordinates:
        yield f'<circle class="p" cx="{x}" cy="{y}" r="3"/>'


def _time_panel(title: str, x_title: str, points: Points) -> Iterator[str]:
    x_high = max(x for x, _ in points) or 1.0
    y_high = 1.2 * max(y for _, y in points) or 1.0
    right, bottom = PANEL_WIDTH - RIGHT, PANEL_HEIGHT - BOTTOM
    yield f'<text class="t" x="{LEFT}" y="16">{escape(title)}</text>'
    yield (f'<rect class="f" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>')
    for x, place in ((0.0, LEFT), (x_high, right)):
        yield f'<text x="{place}" y="{bottom + 12}" text-anchor="middle">{_short(x)}</text>'
    for y, place in ((0.0, bottom), (y_high, TOP)):
        yield f'<text x="{LEFT - 4}" y="{place + 3}" text-anchor="end">{_short(y)}</text>'
    yield (
        f'<text x="{(LEFT + right) / 2}" y="{bottom + 26}" text-anchor="middle">{escape(x_title)}'
        "</text>"
    )
    line = " ".join(
        f"{round(LEFT + x / x_high * (right - LEFT), 1)},"
        f"{round(bottom - y / y_high * (bottom - TOP), 1)}"
        for x, y in points
    )
    yield f'<polyline class="l" points="{line}"/>'


class _Scale:
    """A logarithmic axis around some values, of a decade at least."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(values), max(values)
        if self.high < 10 * self.low:
            middle = math.sqrt(self.low * self.high)
            self.low, self.high = middle / math.sqrt(10), middle * math.sqrt(10)

    def share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)


def _short(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
