"""Renders the tables of an audit as one HTML file with plots. The page loads no other file."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from isotherm.spark.audit_plots import (
    Line,
    bar_plot,
    bytes_text,
    count_text,
    duration_text,
    line_plot,
)
from isotherm.spark.jobs.audit import (
    COVERED,
    DELETION_UNFINISHED,
    TOPIC_REPLACED,
    UNKNOWN_START,
    UPLOAD_ABANDONED,
    UPLOAD_NOT_REMOVED,
)

# With this policy the browser refuses to load anything for the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

STYLE = """
:root{color-scheme:light dark;--text:#1c2733;--soft:#52606d;--page:#fff;--card:#f1f5f8;
--rule:#d9e1e8;--s0:#1f6f8b;--s1:#a05200;--bad:#b3261e;--good:#1e6b3a}
@media (prefers-color-scheme:dark){:root{--text:#e3eaf1;--soft:#a3b1bd;--page:#12181f;
--card:#1c252e;--rule:#33404c;--s0:#6cc3e0;--s1:#f0a35e;--bad:#ff8a80;--good:#7fd49b}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:78rem;margin:0 auto;padding:1.5rem 1rem 4rem;
color:var(--text);background:var(--page)}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.6rem 0 .4rem}
p,.causes{max-width:60rem}p{margin:.3rem 0 .8rem}.note,dd.why{color:var(--soft)}
.verdict{max-width:none;font-size:1.1rem;border-left:.3rem solid var(--good);padding:.4rem .8rem;
background:var(--card)}.verdict.bad{border-color:var(--bad)}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:1rem 0}a{color:var(--s0)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));gap:.6rem;
margin:1rem 0;padding:0;list-style:none}
.facts li{background:var(--card);border-radius:.4rem;padding:.5rem .8rem;color:var(--soft);
font-size:.9rem}
.facts b{display:block;font-size:1.4rem;line-height:1.3;color:var(--text)}
.facts .bad b{color:var(--bad)}.facts .bad b::after{content:" !"}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));
 gap:1rem 2rem}
figure{margin:.6rem 0;min-width:0}
figcaption{font-weight:600;font-size:.95rem;display:flex;flex-wrap:wrap;gap:0 1rem}
.legend{display:flex;gap:1rem;font-weight:400;color:var(--soft)}
.legend span::before{content:"";display:inline-block;width:1.3em;margin-right:.4em;
vertical-align:.25em;border-top:.18em solid}
.legend .s0::before{border-color:var(--s0)}
.legend .s1::before{border-top:.3em solid var(--s1)}.legend .ahead::before{border-top-style:dashed}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font:12.5px system-ui,sans-serif;fill:var(--soft)}svg .shown{fill:var(--text)}
.grid{fill:none;stroke:var(--rule)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1);stroke-width:3.5;stroke-opacity:.85}
.line.ahead{stroke-dasharray:6 4}.point.s0{fill:var(--s0)}
.hint{fill:transparent}.hint:hover{fill:var(--s0)}.hint.s1:hover{fill:var(--s1)}
.bars{display:grid;grid-template-columns:fit-content(42%) 1fr;gap:.25rem .8rem;margin:.5rem 0;
align-items:center;font-size:.9rem}
.bars dt{text-align:right;overflow-wrap:anywhere}
.bars dd{margin:0;display:flex;align-items:center;gap:.5rem;padding-right:4.8rem}
.bars i{display:block;height:1em;background:var(--s0);border-radius:0 .15em .15em 0;flex:none;
min-width:2px}.bars b{font-weight:400;white-space:nowrap}
.causes{margin:.4rem 0 1rem}.causes dt{font-weight:600}.causes dd{margin:0 0 .3rem 0}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--s0)}
.wide{overflow-x:auto;max-height:32rem;overflow-y:auto;border:1px solid var(--rule);
border-radius:.3rem}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}tbody tr:hover{background:var(--card)}
th{position:sticky;top:0;background:var(--card);padding:0}
th button{all:unset;box-sizing:border-box;width:100%;cursor:pointer;padding:.35rem .7rem}
button:focus-visible,summary:focus-visible,.wide:focus-visible,a:focus-visible{
outline:2px solid var(--s0);outline-offset:-2px}
th button::after{content:"\\2195";color:var(--soft);margin-left:.35em;font-weight:400}
th[aria-sort=ascending] button::after{content:"\\2191";color:var(--text)}
th[aria-sort=descending] button::after{content:"\\2193";color:var(--text)}
.text{text-align:left}td.id{font-family:ui-monospace,monospace;font-size:.95em}
@media print{.wide{max-height:none;overflow:visible}nav{display:none}}
"""

# A click on a column's head sorts by it, a second click reverses the order. data-v is a cell's sort
# key if that is not its text.
SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    };
    for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  });
}
"""


Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

ROWS_MAX = 200
# Counters of the partitions' table that are shown in red.
_FAILURES = {"failed_uploads": "failed uploads", "retried_uploads": "retried uploads"}
_ROWS_OPEN = 20
_PROBLEMS = "problems"
_TITLES = {
    _PROBLEMS: "The metadata topic itself",
    "orphans": "Leftover segments",
    "coverage": "Gaps and overlaps",
    "retention": "Segments beyond retention",
    "partitions": "Uploads, lifetimes and deletions",
    "sizes": "Bytes in the remote tier",
    "money": "Costs",
    "growth": "Growth of the metadata topic",
    "forecast": "Forecast",
}
# Tables of problems, and their names in the summary.
_FAULTS = {
    _PROBLEMS: "wrong with the metadata topic",
    "orphans": "left over",
    "coverage": "gaps and overlaps",
    "retention": "beyond retention",
}
_EMPTY = {
    _PROBLEMS: "None: all of its records were read.",
    "orphans": "None.",
    "coverage": "None: the finished segments of each partition follow one another.",
    "retention": "None, or the retention of the topics is not known.",
}
_NOTES = {
    "coverage": "Between the finished segments of a partition; both offsets are inclusive.",
    "retention": "Brokers delete these at their next expiration. Old ones show that it does not"
    " run.",
    "sizes": "Of finished segments. Remote bytes are the sizes of all objects, from custom"
    " metadata.",
    "money": "Of logs, at a list price of storage. Leftovers may be finished segments too.",
    "growth": "By day (UTC) of the record's timestamp.",
    "forecast": "If the topic continues to grow as in its last 30 days.",
}
_CAUSES = {
    UPLOAD_ABANDONED: "An upload was started, and neither finished nor removed. “sweep” lists its "
    "objects, and with --delete moves them to quarantine.",
    UPLOAD_NOT_REMOVED: "An upload failed, and its deletion is not finished. The leader tries it "
    "again. “sweep” lists the objects that stay.",
    DELETION_UNFINISHED: "A deletion was started and is not finished. Look for errors of the store "
    "in the leader's log. “sweep” lists the objects.",
    COVERED: "Other finished segments hold all of its offsets. It takes space, and consumers do "
    "not read it. Retention deletes it.",
    TOPIC_REPLACED: "The segment belongs to an earlier topic of this name, whose deletion was not "
    "finished. Brokers neither read nor delete it. Its objects are in the folder of its own topic"
    " id.",
    UNKNOWN_START: "The topic has events of this segment, but not the first one. Its head was cut "
    "off, or the event is a stray one. “sweep” shows whether the objects exist.",
}
_TIME, _BYTES, _DURATION = re.compile("_ms$"), re.compile("bytes"), re.compile("_s_")
# The columns that identify a row come first; ids are long, and come last.
_FIRST = frozenset({"cause", "kind", "limit"})
_IDS = frozenset({"topic_id", "segment_id"})
_HEADINGS = (
    ("_timestamp_ms", " time"), ("_in_bytes", ""), ("_s_", " "), ("p95", "95%"), ("_", " "),
)  # fmt: skip


def render(title: str, made_ms: int, tables: Tables, problems: Sequence[Row] = ()) -> str:
    """The whole page. `tables` has the rows of `Audit.tables`, by name. `problems` are the replay's
    findings about the topic itself."""
    made = datetime.datetime.fromtimestamp(made_ms / 1000, datetime.UTC)
    shown: Tables = {**tables, _PROBLEMS: problems}
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<header><h1>{html.escape(title)}</h1>",
        f'<p class="note">As of {made:%Y-%m-%d %H:%M} UTC.</p>',
        _verdict(shown),
        _facts(shown),
        _links(shown),
        "</header><main>",
    ]
    for name, heading in _TITLES.items():
        parts += _section(name, heading, shown)
    parts.append(f"</main><script>{SCRIPT}</script></body></html>\n")
    return "\n".join(parts)


def _verdict(tables: Tables) -> str:
    counts = {text: len(tables.get(name, ())) for name, text in _FAULTS.items()}
    shown = ", ".join(f"{count:,} {text}" for text, count in counts.items() if count)
    total = sum(counts.values())
    failures = ", ".join(
        f"{words}: {count:,}"
        for name, words in _FAILURES.items()
        if (count := sum(row[name] for row in tables.get("partitions", ())))
    )
    if not total and failures:
        return f'<p class="verdict bad">Nothing is left over, but there were {failures}.</p>'
    if not total:
        return '<p class="verdict">Clean: there is nothing to deal with.</p>'
    findings = "1 finding" if total == 1 else f"{total:,} findings"
    return f'<p class="verdict bad">{findings}: {shown}.</p>'


def _facts(tables: Tables) -> str:
    partitions, growth = tables.get("partitions", ()), tables.get("growth", ())
    topic_size = growth[-1]["bytes_so_far"] if growth else 0
    log_size = sum(row["log_bytes"] for row in tables.get("sizes", ()))
    live = growth[-1]["live_segments"] if growth else 0
    facts = [
        ("live segments", f"{live:,}", False),
        ("in their logs", bytes_text(log_size), False),
        ("metadata topic", bytes_text(topic_size), False),
        ("uploads", f"{sum(row['uploads'] for row in partitions):,}", False),
        *(
            (name.replace("_", " "), f"{count:,}", count > 0)
            for name in _FAILURES
            for count in [sum(row[name] for row in partitions)]
        ),
    ]
    cells = (
        f'<li class="{_class(is_bad=is_bad)}"><b>{value}</b>{name}</li>'
        for name, value, is_bad in facts
    )
    return f'<ul class="facts">{"".join(cells)}</ul>'


def _class(*, is_bad: bool) -> str:
    return "bad" if is_bad else "good"


def _links(tables: Tables) -> str:
    links = (
        f'<a href="#{name}">{heading}{_count_of(name, tables)}</a>'
        for name, heading in _TITLES.items()
    )
    return f'<nav aria-label="Sections">{"".join(links)}</nav>'


def _count_of(name: str, tables: Tables) -> str:
    return f" ({len(tables.get(name, ())):,})" if name in _FAULTS else ""


def _section(name: str, heading: str, tables: Tables) -> Iterator[str]:
    rows = tables.get(name, ())
    yield f'<section aria-labelledby="{name}"><h2 id="{name}">{heading}</h2>'
    if rows:
        if name in _NOTES:
            yield f'<p class="note">{_NOTES[name]}</p>'
        yield from _plots(name, rows, tables)
        yield _table(heading, rows)
    else:
        yield f"<p>{_EMPTY.get(name, 'No data.')}</p>"
    yield "</section>"


def _plots(name: str, rows: Sequence[Row], tables: Tables) -> Iterator[str]:
    if name == "growth" and len(rows) > 1:
        yield '<div class="plots">'
        yield from _growth_plots(rows, tables.get("forecast", ()))
        yield "</div>"
    elif name == "orphans":
        causes = _counted(row["cause"] for row in rows)
        yield bar_plot("Segments by cause", list(causes.items()))
        shown = (f"<dt>{cause}</dt><dd class=why>{_CAUSES[cause]}</dd>" for cause in causes)
        yield f'<dl class="causes">{"".join(shown)}</dl>'
    elif name == "sizes" and len(rows) > 1:
        names = _named(rows)
        values = [(names(row), row["log_bytes"]) for row in rows]
        yield bar_plot("Bytes of the logs, by topic", values, bytes_text)
    elif name == "partitions":
        names = _named(rows)
        times = [
            (f"{names(row)}, partition {row['partition']}", row["upload_s_p95"])
            for row in rows
            if row["upload_s_p95"] is not None
        ]
        if times:
            yield bar_plot("Slow uploads: 95% are faster than", times, duration_text)


def _growth_plots(rows: Sequence[Row], ahead: Sequence[Row]) -> Iterator[str]:
    days = [_day(row["day"]) for row in rows]
    sizes = Line(
        "of the topic",
        days + [_day(row["day"]) for row in ahead],
        [row["bytes_so_far"] for row in rows] + [row["bytes"] for row in ahead],
        measured_count=len(rows),
    )
    yield line_plot("Size of the topic", [sizes], bytes_text)
    yield line_plot("Records a day", [Line("records", days, _column(rows, "records"))])
    yield line_plot("Live segments", [Line("segments", days, _column(rows, "live_segments"))])
    finished = Line("uploaded", days, _column(rows, "uploads_finished"))
    deleted = Line("deleted", days, _column(rows, "segments_deleted"))
    yield line_plot("Segments a day", [finished, deleted])


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows]


def _counted(values: Iterable[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _named(rows: Sequence[Row]) -> Any:
    """A function that names the topic of a row, with its id if several topics have the name."""
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(row["topic"], set()).add(row["topic_id"])

    def name(row: Row) -> str:
        topic: str = row["topic"]
        return topic if len(ids[topic]) == 1 else f"{topic} ({row['topic_id'][:6]}…)"

    return name


def _day(value: Any) -> int:
    day = value if isinstance(value, datetime.date) else datetime.date.fromisoformat(str(value))
    return day.toordinal()


def _table(heading: str, rows: Sequence[Row]) -> str:
    names = sorted(rows[0], key=lambda name: (name in _IDS) - (name in _FIRST))
    shown = rows[:ROWS_MAX]
    texts = {name for name in names if any(isinstance(row[name], str) for row in shown)}
    head = "".join(
        f'<th scope="col"><button type="button"{_kind(name, texts)}>{_heading(name)}</button></th>'
        for name in names
    )
    body = "".join(
        f"<tr>{''.join(_cell(name, row[name], texts) for name in names)}</tr>" for row in shown
    )
    more = len(rows) - ROWS_MAX
    note = f'<p class="note">{more:,} more rows: --json prints them all.</p>' if more > 0 else ""
    table = (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(heading)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )
    is_open = " open" if len(rows) <= _ROWS_OPEN else ""
    count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    return f"<details{is_open}><summary>Table, {count}</summary>{table}</details>"


def _kind(name: str, texts: set[str]) -> str:
    if name not in texts:
        return ""
    return ' class="text id"' if name in _IDS else ' class="text"'


def _heading(name: str) -> str:
    for before, after in _HEADINGS:
        name = name.replace(before, after)
    return html.escape(name)


def _cell(name: str, value: Any, texts: set[str]) -> str:
    """A cell, with a sort key if that differs from its text."""
    kind = _kind(name, texts)
    if value is None:
        return f'<td{kind} data-v=""></td>'
    if isinstance(value, int | float) and name != "partition":
        return f'<td{kind} data-v="{value}">{_number(name, value)}</td>'
    return f"<td{kind}>{html.escape(str(value))}</td>"


def _number(name: str, value: float) -> str:
    if _TIME.search(name):
        at = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        return f"{at:%Y-%m-%d %H:%M:%S}"
    if _BYTES.search(name):
        return bytes_text(value)
    if _DURATION.search(name):
        return duration_text(value)
    return f"{value:,}" if isinstance(value, int) else count_text(value)
