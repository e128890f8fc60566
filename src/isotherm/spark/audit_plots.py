"""Draws the plots of an audit's report: lines over days as SVG, bars as HTML. Their colours are in
the page's style."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

BARS_MAX = 20
HINTS_MAX = 400
"""A line over more days has no tooltips, since they would make the page large."""

# A wide screen shows two plots side by side, a phone one. With this width the letters in them are
# about as large as those of the page on both.
_WIDTH = 460
_HEIGHT = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 30
_TICKS = 4
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DURATIONS = ((86_400, "d"), (3600, "h"), (60, "min"))

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    """The first `measured_count` values are measured. The others are a forecast, and dashed."""

    name: str
    days: Sequence[int]
    values: Sequence[float]
    measured_count: int | None = None


def count_text(value: float) -> str:
    """1_234_567 -> 1.2M."""
    for limit, unit in _COUNT_UNITS:
        if value >= limit:
            return f"{value / limit:.1f}".removesuffix(".0") + unit
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    """1_536 -> 1.5 KiB."""
    power = 0
    while value >= 1024 and power < len(_BYTE_UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:.1f}".removesuffix(".0") + f" {_BYTE_UNITS[power]}"


def duration_text(seconds: float) -> str:
    """90 -> 1.5 min."""
    for limit, unit in _DURATIONS:
        if seconds >= limit:
            return f"{seconds / limit:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def line_plot(caption: str, lines: Sequence[Line], text: Format = count_text) -> str:
    """Lines over days (ordinals). Bytes have ticks at powers of two, everything else at round
    numbers."""
    days = [day for line in lines for day in line.days]
    scale = _Scale(
        min(days),
        max(days),
        _ticks(max(max(line.values) for line in lines), 1024 if text is bytes_text else 1000),
    )
    drawn = [*_grid(scale, text), *_dates(scale)]
    # The first line is thinner, and drawn on top.
    for number, line in reversed(list(enumerate(lines))):
        drawn += _drawn(scale, line, number, text)
    names = [(f"s{number}", line.name) for number, line in enumerate(lines)]
    if any(line.measured_count is not None for line in lines):
        names.append(("s0 ahead", "forecast"))
    legend = "".join(f'<span class="{kind}">{html.escape(name)}</span>' for kind, name in names)
    return (
        f"<figure><figcaption>{html.escape(caption)}"
        f"{f'<span class=legend>{legend}</span>' if len(names) > 1 else ''}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(caption)}">'
        f"{''.join(drawn)}</svg></figure>"
    )


def bar_plot(caption: str, values: Sequence[tuple[str, float]], text: Format = count_text) -> str:
    """The largest values, as horizontal bars from zero."""
    chosen = sorted(values, key=lambda item: -item[1])[:BARS_MAX]
    top = max((value for _, value in chosen), default=0) or 1
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>"
        f'<i style="width:{100 * value / top:.1f}%"></i><b>{text(value)}</b></dd>'
        for name, value in chosen
    )
    more = f", the {BARS_MAX} largest of {len(values)}" if len(values) > BARS_MAX else ""
    return (
        f"<figure><figcaption>{html.escape(caption)}{more}</figcaption>"
        f'<dl class="bars">{rows}</dl></figure>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    first_day: int
    last_day: int
    ticks: Sequence[float]

    def x(self, day: float) -> float:
        span = max(self.last_day - self.first_day, 1)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (day - self.first_day) / span

    def y(self, value: float) -> float:
        return (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - _TOP) * value / self.ticks[-1]


def _ticks(top: float, thousand: int) -> list[float]:
    """Ticks from zero to the first that is not below `top`."""
    unit = float(thousand ** int(math.log(max(top, 1), thousand)))
    rough = max(top, 1) / _TICKS / unit
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough) * unit
    # Counts are whole numbers.
    step = max(step, 1.0) if unit == 1 else step
    step = math.ceil(step) if unit == 1 else step
    return [step * number for number in range(math.ceil(max(top, 1) / step) + 1)]


def _grid(scale: _Scale, text: Format) -> Iterator[str]:
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text(tick)}</text>'


def _dates(scale: _Scale) -> Iterator[str]:
    span = scale.last_day - scale.first_day
    count = min(_TICKS, span + 1)
    chosen = [scale.first_day + round(span * n / max(count - 1, 1)) for n in range(count)]
    form = "%d %b" if span < 200 else "%b %Y"
    for number, day in enumerate(chosen):
        at = scale.x(day)
        anchor = "start" if number == 0 else "end" if number == count - 1 else "middle"
        named = datetime.date.fromordinal(day).strftime(form).lstrip("0")
        bottom = _HEIGHT - _BOTTOM
        yield f'<path class="grid" d="M{at:.1f} {bottom}v5"/>'
        yield f'<text x="{at:.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">{named}</text>'


def _drawn(scale: _Scale, line: Line, number: int, text: Format) -> Iterator[str]:
    places = [(scale.x(d), scale.y(v)) for d, v in zip(line.days, line.values, strict=True)]
    measured = len(places) if line.measured_count is None else line.measured_count
    kind = f"line s{number}"
    yield f'<path class="{kind}" d="{_path(places[:measured])}"/>'
    if measured < len(places):
        yield f'<path class="{kind} ahead" d="{_path(places[measured - 1 :])}"/>'
        yield from _forecast_points(places[measured - 1 :], line.values[measured:], number, text)
    if len(places) > HINTS_MAX:
        return
    for (x, y), day, value in zip(places, line.days, line.values, strict=True):
        shown = f"{datetime.date.fromordinal(day)}: {text(value)} {line.name}"
        yield (
            f'<circle class="hint s{number}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{html.escape(shown)}</title></circle>"
        )


def _forecast_points(
    places: Sequence[tuple[float, float]], values: Sequence[float], number: int, text: Format
) -> Iterator[str]:
    """The forecast's points with their values, except those too near the point before."""
    for ((before, _), (x, y)), value in zip(pairwise(places), values, strict=True):
        yield f'<circle class="point s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
        if x - before > 40:
            yield (
                f'<text class="shown" x="{x - 7:.1f}" y="{max(y - 7, _TOP):.1f}"'
                f' text-anchor="end">{text(value)}</text>'
            )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
