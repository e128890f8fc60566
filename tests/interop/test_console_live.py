"""The live tail of a topic in Chromium, over scripted records: its bounds, and what the page says
of them; and the canvases that a page leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isotherm.console.live_tail import BEHIND_OFFSETS_MAX
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster, damaged_cluster, local_tier
from tests.support.scripted_records import ScriptedRecords

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

PAGE = "#/records/orders?partition=0"
END = 12_700
SAID = "span[role=status]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def begin_live(browser: Browser, url: str) -> None:
    browser.go(url)
    browser.wait(lambda: browser.all("#records tbody tr"))
    browser.click("button[aria-pressed]")


def test_tail_says_what_it_skips(browser: Browser) -> None:
    cluster, source = damaged_cluster(history=1), ScriptedRecords()
    with running_console(lambda: cluster, records=source) as address:
        begin_live(browser, f"{address}/{PAGE}")
        browser.wait(lambda: browser.text(SAID).startswith("Live:"))
        source.live_ends[TopicPartition("orders", 0)] = END + 2000
        browser.wait(lambda: "skipped" in browser.text(SAID))
        assert f"{2000 - BEHIND_OFFSETS_MAX:,} offsets were skipped" in browser.text(SAID)
        newest = "return document.querySelector('#records tbody td').textContent"
        assert browser.run(newest) == f"0 · {END + 1999:,}"
        rows = "return document.querySelectorAll('#records tbody tr').length"
        assert browser.run(rows) == BEHIND_OFFSETS_MAX
        browser.click("button[aria-pressed]")
        assert browser.text(SAID) == ""


def test_tail_without_a_message_ends_and_may_begin_again(browser: Browser) -> None:
    cluster, source = damaged_cluster(history=1), ScriptedRecords()
    clock = SimClock(auto_advance=True)
    with running_console(lambda: cluster, records=source, clock=clock) as address:
        begin_live(browser, f"{address}/{PAGE}")
        for _ in range(2):
            browser.wait(lambda: "has ended" in browser.text(SAID))
            assert "no new message for 10 minutes" in browser.text(SAID)
            assert browser.all("button[aria-pressed=false]")[0].text == "Live"
            browser.click("button[aria-pressed]")
            assert browser.text(SAID) != ""


def test_page_says_which_partitions_live_has(browser: Browser) -> None:
    cluster = ScriptedCluster()
    for _ in range(70):
        cluster.add("many", [], local_tier(0, 0, 50, 100))
    with running_console(lambda: cluster) as address:
        browser.go(f"{address}/#/records/many")
        browser.wait(lambda: browser.all("#records tbody tr"))
        assert "the first 64 of 70 partitions" in browser.text()
        browser.go(f"{address}/#/records/many?partition=69")
        browser.wait(lambda: browser.all("#records tbody tr"))
        assert "the first 64" not in browser.text()


def test_canvas_follows_the_theme_and_leaves_no_listener(browser: Browser) -> None:
    def listeners() -> object:
        script = "Object.values(getEventListeners(document)).flat().length"
        answer = browser.driver.execute_cdp_cmd(
            "Runtime.evaluate", {"expression": script, "includeCommandLineAPI": True}
        )
        return answer["result"]["value"]

    def choose(theme: str) -> None:
        browser.run(
            f"const choice = document.querySelector('#theme'); choice.value = '{theme}';"
            "choice.dispatchEvent(new Event('change'))"
        )

    painted = "return document.querySelector('canvas').toDataURL()"
    cluster = damaged_cluster(history=1)
    with running_console(lambda: cluster) as address:
        browser.go(f"{address}/#/")
        before = listeners()
        browser.go(f"{address}/#/topics/orders")
        browser.wait(lambda: browser.all("canvas[data-cells]"))
        choose("light")
        light = browser.run(painted)
        choose("dark")
        assert browser.run(painted) != light
        choose("automatic")
        assert listeners() == before
