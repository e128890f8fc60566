"""The pages of one topic, group and broker in Chromium, over a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.clock import SystemClock
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_server import running_console

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

TOPIC, GROUP = "visits", "readers"
MESSAGES = 40


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        topic = NewTopic(TOPIC, 2, 1, config={"max.message.bytes": "2000000"})
        for created in admin.create_topics([topic]).values():
            created.result()
        send(running)
        yield running


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> Iterator[str]:
    properties, clock = {"bootstrap.servers": broker.bootstrap_servers}, SystemClock()
    with running_console(lambda: StorageReader(properties, clock)) as running:
        yield running


def send(broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(MESSAGES):
        producer.produce(TOPIC, b"value %d" % n, partition=n % 2)
    assert producer.flush(60) == 0


def commit(broker: EmbeddedBroker, group: str, offset: int) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def test_topic_has_its_configuration_its_groups_and_its_speed(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    commit(broker, GROUP, 5)
    browser.open(f"{address}/#/topics/{TOPIC}", "#settings table")
    # What was set for the topic itself comes before what was set for the broker.
    row = browser.text("#settings > .rows tbody tr")
    assert row.split()[:3] == ["max.message.bytes", "2000000", "DYNAMIC_TOPIC_CONFIG"]
    assert "1048588" in row
    assert "segment.bytes" not in browser.text("#settings > .rows")
    browser.click("#settings summary")
    browser.wait(lambda: "cleanup.policy" in browser.text("#settings"))
    assert f"{GROUP}" in browser.text("#readers tbody tr")
    assert f"{MESSAGES // 2 - 5}" in browser.text("#readers tbody tr")
    assert "unknown" in browser.text("#sums")
    send(broker)
    browser.refresh()
    browser.wait(lambda: "about" in browser.text("#sums"))
    # What was opened stays open when the page is made anew.
    assert "cleanup.policy" in browser.text("#settings")
    assert browser.messages() == []
