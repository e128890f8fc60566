"""The page of a topic's messages in Chromium, over a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.clock import SystemClock
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.record_sources import ClusterRecords
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_server import running_console

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

FIRST_MS = 1_767_000_000_000
PARTITIONS = 3
MESSAGES = 180
PAGE = "#/records/visits"
TIMES_MS = {
    1: "1970-01-01 00:00:00.001",
    -1: "none",
    -5: "1969-12-31 23:59:59.995",
    -62_135_596_800_000: "0001-01-01 00:00:00.000",
    -8_640_000_000_000_001: "-8640000000000001 ms",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        kept = {"retention.ms": "-1"}
        names = ("visits", "arrivals", "times")
        topics = [NewTopic(name, PARTITIONS, 1, config=kept) for name in names]
        for created in admin.create_topics(topics).values():
            created.result()
        send(running, "visits", range(MESSAGES))
        send(running, "arrivals", range(100, 102))
        yield running


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> Iterator[str]:
    properties, clock = {"bootstrap.servers": broker.bootstrap_servers}, SystemClock()
    records = ClusterRecords(properties, clock)
    with running_console(lambda: StorageReader(properties, clock), records=records) as running:
        yield running


def send(broker: EmbeddedBroker, topic: str, numbers: range) -> None:
    """One after the other over the partitions, each a millisecond later."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in numbers:
        value = b'{"user": {"id": %d}, "n": %d}' % (n % 7, n)
        producer.produce(topic, value, b"k%d" % n, partition=n % PARTITIONS, timestamp=FIRST_MS + n)
    producer.flush()


def keys(browser: Browser) -> list[int]:
    shown = browser.run(
        "return [...document.querySelectorAll('#records tbody tr')]"
        ".map((row) => Number(row.children[3].textContent.slice(1)))"
    )
    assert isinstance(shown, list)
    return shown


def test_newest_messages_of_all_partitions_are_shown_at_once(
    browser: Browser, address: str
) -> None:
    browser.open(f"{address}/{PAGE}", "#records tbody tr")
    assert keys(browser) == list(range(MESSAGES - 1, MESSAGES - 51, -1))
    assert "50 messages found" in browser.text("p[role=status]")
    assert "Total" in browser.text("p[role=status]")
    browser.run("[...document.querySelectorAll('button')].at(-2).focus()")
    load_more = (
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Load more')"
    )
    browser.run(f"{load_more}.click()")
    browser.wait(lambda: len(keys(browser)) == 100)
    assert keys(browser) == list(range(MESSAGES - 1, MESSAGES - 101, -1))
    assert "This console only reads" in browser.text(".read-only")
    assert browser.messages() == []


def test_times_are_those_of_the_records(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    """-1 alone is no time: a producer may send others before 1970."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for timestamp in TIMES_MS:
        producer.produce("times", b"x", partition=0, timestamp=timestamp)
    assert producer.flush() == 0
    browser.open(f"{address}/#/records/times?order=oldest&offset=0", "#records tbody tr")
    shown = browser.run(
        "return [...document.querySelectorAll('#records tbody tr')]"
        ".map((row) => row.children[1].textContent)"
    )
    assert shown == list(TIMES_MS.values())
    assert browser.messages() == []


def test_search_is_in_the_address(browser: Browser, address: str) -> None:
    browser.open(f"{address}/{PAGE}", "#records tbody tr")
    browser.click("form summary")
    browser.all("input[name=where]")[0].send_keys("value.user.id = 3")
    browser.click("form button")
    expected = [n for n in reversed(range(MESSAGES)) if n % 7 == 3]
    browser.wait(lambda: keys(browser) == expected)
    url = str(browser.run("return location.href"))
    assert "where=value.user.id" in url
    browser.driver.back()
    browser.wait(lambda: keys(browser)[:2] == [MESSAGES - 1, MESSAGES - 2])
    browser.open(url, "#records tbody tr")
    assert keys(browser) == expected
    browser.open(f"{address}/{PAGE}?partition=1&order=oldest&offset=5&end=8", "#records tbody tr")
    assert keys(browser) == [16, 19, 22]
    since, until = FIRST_MS + 100, FIRST_MS + 104
    browser.open(f"{address}/{PAGE}?since={since}&until={until}", "#records tbody tr")
    assert keys(browser) == [104, 103, 102, 101, 100]
    browser.open(f"{address}/{PAGE}?where=user.id%20%3D%203", "main form")
    browser.wait(lambda: "not a condition" in browser.text("p[role=status]"))


def test_live_tail_shows_what_is_produced(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    browser.open(f"{address}/#/records/arrivals?value=%22n%22%3A%20100", "#records tbody tr")
    browser.wait(lambda: not browser.all("progress + button")[0].is_displayed())
    browser.click("button[aria-pressed]")
    browser.wait(lambda: browser.text("span[role=status]").startswith("Live:"))
    send(broker, "arrivals", range(1000, 1010))
    browser.wait(lambda: len(keys(browser)) == 11)
    assert keys(browser) == [*range(1009, 999, -1), 100]
    assert browser.all("button[aria-pressed=true]")[0].text == "Stop live"
    browser.click("button[aria-pressed]")
    assert browser.all("button[aria-pressed=false]")[0].text == "Live"
    assert browser.messages() == []
