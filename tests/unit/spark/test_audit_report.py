"""The page of an audit: its content, that it loads nothing, and its layout in a browser."""

from __future__ import annotations

import datetime
import html
import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from isotherm.spark.audit_plots import (
    BARS_MAX,
    Line,
    bar_plot,
    bytes_text,
    count_text,
    duration_text,
    line_plot,
)
from isotherm.spark.audit_report import ROWS_MAX, STYLE, render
from isotherm.spark.jobs import audit

MADE_MS = 1_771_113_600_000
FIRST_DAY = datetime.date(2026, 1, 1)
CAUSES = (
    audit.COVERED, audit.DELETION_UNFINISHED, audit.TOPIC_REPLACED, audit.UNKNOWN_START,
    audit.UPLOAD_ABANDONED, audit.UPLOAD_NOT_REMOVED,
)  # fmt: skip
CONTRAST_MIN = 4.5
"""The contrast ratio of WCAG 2, level AA."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# Clicks on two table heads, and posts what it sees to the surrounding page.
PROBE = """
const table = document.querySelector("#orphans ~ details table");
const column = (name) => [...table.tHead.rows[0].cells].findIndex(
  (cell) => cell.textContent === name);
const sorted = (name) => {
  table.tHead.rows[0].cells[column(name)].firstChild.click();
  return [...table.tBodies[0].rows].map((row) => row.cells[column(name)].textContent);
};
document.querySelectorAll("details").forEach((each) => { each.open = true; });
const boxes = [...document.querySelectorAll("svg")].map((svg) =>
  [...svg.querySelectorAll("text")].map(
    (text) => [text.textContent, text.getBoundingClientRect()]));
const overlap = ([, a], [, b]) =>
  a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2;
parent.postMessage(JSON.stringify({
  width: document.documentElement.clientWidth,
  scrolled: document.documentElement.scrollWidth,
  up: sorted("size"), down: sorted("size"), names: sorted("cause"),
  loaded: performance.getEntriesByType("resource").length,
  overlaps: boxes.flatMap((texts) => texts.flatMap((one, index) =>
    texts.slice(index + 1).filter((other) => overlap(one, other))
      .map((other) => [one[0], other[0]]))),
  plots: boxes.length,
  letters: Math.min(...boxes.flat().map(([, box]) => box.height)),
  beyond: [...document.querySelectorAll("svg text, .bars b")].filter((each) =>
    each.getBoundingClientRect().right > document.documentElement.clientWidth).length,
}), "*");
"""

# A browser window is at least 500 pixels wide; a frame can be narrower.
FRAME = """<!doctype html><title></title>
<script>onmessage = (dumped) => { document.title = dumped.data; }</script>
<iframe src="audit.html" style="border:0;width:%dpx;height:900px"></iframe>
"""


def tables(days: int = 45, topics: int = 3) -> dict[str, list[dict[str, Any]]]:
    """The rows of an audit's tables, with long names, odd sizes and a text that must be escaped."""
    names = [f"topic-{'of-a-rather-long-name-' * (number % 2)}{number}" for number in range(topics)]
    owners = [
        {"topic": name, "topic_id": f"{number:022d}", "partition": 0}
        for number, name in enumerate(names)
    ]
    return {
        "partitions": [
            {**owner, "uploads": 9, "failed_uploads": 0, "upload_s_p95": 20.5 * number,
             "life_s_max": None, "retried_uploads": 1}
            for number, owner in enumerate(owners)
        ],
        "orphans": [
            {**owners[number % topics], "segment_id": f"<{number}>", "start_offset": 1000 * number,
             "event_timestamp_ms": MADE_MS, "size_in_bytes": 1024 * (number * 7 % 9),
             "cause": cause}
            for number, cause in enumerate(CAUSES)
        ],
        "sizes": [{**owner, "segments": 2, "log_bytes": 10**9, "with_remote_size": 30}
                  for owner in owners],
        "growth": [
            {"day": FIRST_DAY + datetime.timedelta(number), "records": 4 + number % 7, "bytes": 600,
             "uploads_finished": 2, "segments_deleted": number % 3, "live_segments": 2 * number,
             "bytes_so_far": 1500 * (number + 1)}
            for number in range(days)
        ],
        "forecast": [
            {"days_ahead": ahead, "day": FIRST_DAY + datetime.timedelta(days + ahead),
             "records": ahead, "bytes": 1500 * (days + ahead)}
            for ahead in audit.FORECAST_DAYS
        ],
    }  # fmt: skip


def test_page_of_a_clean_tier_says_so() -> None:
    page = render("Empty", MADE_MS, {})
    assert "Clean: there is nothing to deal with." in page
    assert "As of 2026-02-15 00:00 UTC." in page
    assert "<table" not in page


@pytest.mark.parametrize(
    ("failed", "retried", "verdict"),
    [
        (2, 3, "Nothing is left over, but there were failed uploads: 2, retried uploads: 3."),
        (0, 1, "Nothing is left over, but there were retried uploads: 1."),
    ],
)
def test_page_is_not_clean_above_failed_uploads(failed: int, retried: int, verdict: str) -> None:
    (row, *_) = tables()["partitions"]
    counts = {"failed_uploads": failed, "retried_uploads": retried}
    page = render("Failed", MADE_MS, {"partitions": [{**row, **counts}]})
    assert "Clean" not in page
    assert verdict in page


def test_page_counts_what_is_to_be_dealt_with_and_says_what_each_cause_means() -> None:
    damaged = [{"metadata_partition": 1, "offset": 5, "kind": "head missing", "text": "cut"}]
    page = render("<x>", MADE_MS, tables(), damaged)
    assert "7 findings: 1 wrong with the metadata topic, 6 left over." in page
    assert all(f"<dt>{cause}</dt><dd class=why>" in page for cause in CAUSES)
    assert "&lt;x&gt;" in page
    assert "<0>" not in page
    assert "<td>head missing</td>" in page.replace(' class="text"', "")
    # A number of segments is not shown as a size, whatever its name ends with.
    assert '<td data-v="30">30</td>' in page


def test_page_loads_nothing_and_may_not() -> None:
    page = render("Audit", MADE_MS, tables())
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=.(?!#)|https?://|@import|url\(", page)


def test_rows_beyond_the_most_are_counted() -> None:
    page = render("Audit", MADE_MS, tables(days=ROWS_MAX + 1))
    assert "1 more rows: --json prints them all." in page


@pytest.mark.parametrize(
    ("format_of", "value", "text"),
    [
        (count_text, 0, "0"),
        (count_text, 999, "999"),
        (count_text, 1_234_567, "1.2M"),
        (bytes_text, 1023, "1023 B"),
        (bytes_text, 1536, "1.5 KiB"),
        (bytes_text, 2**30, "1 GiB"),
        (duration_text, 23.0, "23 s"),
        (duration_text, 90.0, "1.5 min"),
        (duration_text, 2_591_977.0, "30 d"),
    ],
)
def test_values_have_their_units(format_of: Any, value: float, text: str) -> None:
    assert format_of(value) == text


@pytest.mark.parametrize(
    ("values", "text", "ticks"),
    [
        ([1, 3, 2], count_text, ["0", "1", "2", "3"]),
        ([0, 0], count_text, ["0", "1"]),
        ([10, 4], count_text, ["0", "3", "6", "9", "12"]),
        ([2_400_000, 1], count_text, ["0", "1M", "2M", "3M"]),
        ([352_335, 1], bytes_text, ["0 B", "100 KiB", "200 KiB", "300 KiB", "400 KiB"]),
    ],
)
def test_axis_begins_at_zero_and_has_round_numbers(
    values: list[float], text: Any, ticks: list[str]
) -> None:
    plot = line_plot("c", [Line("l", [1, 2, 3][: len(values)], values)], text)
    assert re.findall(r'text-anchor="end">([^<]*)</text>', plot)[: len(ticks)] == ticks


def test_bars_are_the_largest_and_the_others_are_counted() -> None:
    plot = bar_plot("c", [(f"name-{number}", number) for number in range(BARS_MAX + 2)])
    assert plot.count("<dt>") == BARS_MAX
    assert "the 20 largest of 22" in plot
    assert "name-1<" not in plot


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_reported_from_their_ground(scheme: int) -> None:
    block = re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]+)", block))
    for ground, ink in product(("page", "card"), ("text", "soft", "s0", "s1", "bad")):
        lighter, darker = sorted(map(luminance, (colours[ground], colours[ink])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= CONTRAST_MIN, (ground, ink)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open the page with")
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_browser_lays_the_page_out_and_sorts_its_tables(tmp_path: Path, width: int) -> None:
    page = render("Audit of __remote_log_metadata", MADE_MS, tables(days=800, topics=25))
    probed = page.replace("</body>", f"<script>{PROBE}</script></body>")
    (tmp_path / "audit.html").write_text(probed)
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME % width)
    seen = seen_by_chromium(frame)
    assert (seen["width"], seen["scrolled"]) == (width, width), "nothing sticks out"
    assert seen["beyond"] == 0
    assert seen["plots"] == 4
    assert seen["overlaps"] == []
    assert seen["letters"] >= 11, "the height of a line of letters, in pixels"
    assert seen["loaded"] == 0
    assert seen["up"] == ["0 B", "1 KiB", "3 KiB", "5 KiB", "7 KiB", "8 KiB"]
    assert seen["down"] == seen["up"][::-1]
    assert seen["names"] == sorted(CAUSES)


def seen_by_chromium(path: Path) -> dict[str, Any]:
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--window-size=1400,1000", f"--user-data-dir={path.parent / 'profile'}",
        "--virtual-time-budget=10000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = re.search(r"<title>(.*?)</title>", dumped.stdout, re.DOTALL)
    assert found is not None
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen
