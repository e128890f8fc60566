"""The tables of an audit as one HTML file: plots as inline SVG, nothing loaded from anywhere."""

from __future__ import annotations

import datetime
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

ROWS_MAX = 200
_BARS_MAX = 20
_WIDTH = 860
_HEIGHT = 220
_LEFT = 70
_BOTTOM = 24
_BAR_HEIGHT = 20
_TITLES = {
    "growth": "Growth of the metadata topic, by day",
    "forecast": "What it comes to at the pace of the last 30 days",
    "partitions": "Uploads and how long things took, by partition",
    "orphans": "Segments that are left over",
    "coverage": "Gaps and overlaps",
    "retention": "Segments beyond retention",
    "sizes": "Bytes, and what custom metadata says of them",
}
_EMPTY = {
    "orphans": "None.",
    "coverage": "None: the finished segments of each partition follow one another.",
    "retention": "None.",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1c2733;background:#fff}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2.2rem}
.facts{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0}
.facts div{background:#eef3f7;border-radius:6px;padding:.5rem .9rem}
.facts b{display:block;font-size:1.25rem}.found b{color:#b3261e}
table{border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}th,td{padding:.2rem .6rem;border-bottom:1px solid #dde4ea;text-align:right;
white-space:nowrap}th{position:sticky;top:0;background:#fff}td.text,th.text{text-align:left}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#44525f}
.line{fill:none;stroke:#1f6f8b;stroke-width:2}.ahead{stroke-dasharray:5 4}
.bar{fill:#1f6f8b}.grid{stroke:#dde4ea}.note{color:#5a6875}
"""


def render(title: str, made_ms: int, tables: Tables) -> str:
    """The whole page. `tables` are the rows of `Audit.tables`, by name."""
    made = datetime.datetime.fromtimestamp(made_ms / 1000, datetime.UTC)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">As of {made:%Y-%m-%d %H:%M} UTC.</p>',
        _facts(tables),
    ]
    for name, heading in _TITLES.items():
        rows = tables.get(name, ())
        parts.append(f"<h2>{heading}</h2>")
        parts += _plots(name, tables)
        parts.append(_table(rows) if rows else f"<p>{_EMPTY.get(name, 'No data.')}</p>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _facts(tables: Tables) -> str:
    partitions, growth = tables.get("partitions", ()), tables.get("growth", ())
    facts = [
        ("records", sum(row["records"] for row in growth), False),
        ("uploads", sum(row["uploads"] for row in partitions), False),
        ("failed uploads", sum(row["failed_uploads"] for row in partitions), True),
        ("retried uploads", sum(row["retried_uploads"] for row in partitions), True),
        ("left over", len(tables.get("orphans", ())), True),
        ("gaps and overlaps", len(tables.get("coverage", ())), True),
        ("beyond retention", len(tables.get("retention", ())), True),
    ]
    cells = (
        f"<div{_found(value) if is_bad else ''}><b>{value:,}</b>{name}</div>"
        for name, value, is_bad in facts
    )
    return f'<div class="facts">{"".join(cells)}</div>'


def _found(value: int) -> str:
    return ' class="found"' if value else ""


def _plots(name: str, tables: Tables) -> Iterator[str]:
    rows = tables.get(name, ())
    if name == "growth" and len(rows) > 1:
        days = [_day(row["day"]) for row in rows]
        yield _lines("records a day", days, [row["records"] for row in rows])
        yield _lines("live segments", days, [row["live_segments"] for row in rows])
        ahead = tables.get("forecast", ())
        yield _lines(
            "bytes of the topic, and the forecast",
            days + [_day(row["day"]) for row in ahead],
            [row["bytes_so_far"] for row in rows] + [row["bytes"] for row in ahead],
            known=len(rows),
        )
    elif name == "orphans" and rows:
        yield _bars("segments by cause", _counted(row["cause"] for row in rows))
    elif name == "sizes" and rows:
        yield _bars("log bytes by topic", [(row["topic"], row["log_bytes"]) for row in rows])
    elif name == "partitions" and rows:
        times = [(_place(row), row["upload_s_p95"]) for row in rows if row["upload_s_p95"]]
        if times:
            yield _bars("slowest uploads, 95th percentile in seconds", times)


def _counted(values: Iterable[str]) -> list[tuple[str, float]]:
    counts: dict[str, float] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return list(counts.items())


def _place(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}"


def _day(value: Any) -> int:
    day = value if isinstance(value, datetime.date) else datetime.date.fromisoformat(str(value))
    return day.toordinal()


def _lines(
    caption: str, days: Sequence[int], values: Sequence[float], known: int | None = None
) -> str:
    """A line over days; from the one of number `known` on it is dashed."""
    known = len(days) if known is None else known
    first, span = days[0], max(days[-1] - days[0], 1)
    top = max(*values, 1)
    points = [
        (
            _LEFT + (_WIDTH - _LEFT - 10) * (day - first) / span,
            (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 24) * value / top,
        )
        for day, value in zip(days, values, strict=True)
    ]
    marks = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(top * part)}</text>'
        for part in (0, 0.5, 1)
        for y in [(_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 24) * part]
    ]
    lines = f'<polyline class="line" points="{_points(points[:known])}"/>'
    if known < len(points):
        lines += f'<polyline class="line ahead" points="{_points(points[known - 1 :])}"/>'
    ends = "".join(
        f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}">'
        f"{datetime.date.fromordinal(day)}</text>"
        for x, anchor, day in ((_LEFT, "start", days[0]), (_WIDTH - 10, "end", days[-1]))
    )
    return _figure(caption, _HEIGHT, "".join(marks) + lines + ends)


def _bars(caption: str, values: Sequence[tuple[str, float]]) -> str:
    """The largest ones, as horizontal bars."""
    chosen = sorted(values, key=lambda item: -item[1])[:_BARS_MAX]
    top = max(max(value for _, value in chosen), 1e-9)
    drawn = "".join(
        f'<text x="{_WIDTH * 0.3 - 8:.0f}" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>'
        f'<rect class="bar" x="{_WIDTH * 0.3:.0f}" y="{y + 3}" height="{_BAR_HEIGHT - 6}"'
        f' width="{_WIDTH * 0.58 * value / top:.1f}"/>'
        f'<text x="{_WIDTH * (0.3 + 0.58 * value / top) + 6:.0f}" y="{y + 14}">{_short(value)}</text>'
        for y, (name, value) in (
            (24 + index * _BAR_HEIGHT, item) for index, item in enumerate(chosen)
        )
    )
    return _figure(caption, 30 + len(chosen) * _BAR_HEIGHT, drawn)


def _figure(caption: str, height: int, drawn: str) -> str:
    label = html.escape(caption)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">'
        f'<text x="0" y="12" style="font-weight:600">{label}</text>{drawn}</svg>'
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _short(value: float) -> str:
    """1_234_567 -> 1.2M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.3g}"


def _table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    shown = rows[:ROWS_MAX]
    texts = {name for name in names if any(isinstance(row[name], str) for row in shown)}
    head = "".join(f"<th{_kind(name in texts)}>{name.replace('_', ' ')}</th>" for name in names)
    body = "".join(
        "<tr>"
        + "".join(f"<td{_kind(name in texts)}>{_cell(row[name])}</td>" for name in names)
        + "</tr>"
        for row in shown
    )
    more = f'<p class="note">{len(rows) - ROWS_MAX} more rows.</p>' if len(rows) > ROWS_MAX else ""
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{more}'


def _kind(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))
