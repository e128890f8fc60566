"""The pages of one topic, group and broker in Chromium, over a real broker."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    Producer,
    ShareConsumer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.clock import SystemClock
from isotherm.spark.tables.dead_letters import DeadLetter, DeadLetters
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.topic_table import Identity
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.testing.embedded_broker import EmbeddedBroker
from suites.results import SuiteUnavailableError
from tests.support.axe import axe_source, findings
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.conditions import wait_until
from tests.support.console_server import running_console
from tests.support.described_members import described_members, joined_members, shown_members
from tests.support.scripted_tables import ScriptedTables

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

TOPICS = ("visits", "arrivals", "logins", "tasks")  # one for each test that counts
GROUP = "readers"
QUEUE = "workers"
# Of its own: the console reads what became of a group's records at most every 30 seconds.
IDLE_QUEUE = "no-workers"
WORKERS = 4
LOOKS_MAX = 60
MESSAGES = 40
FIRST_MS = 1_767_000_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def widths(browser: Browser) -> Iterator[None]:
    yield
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except SuiteUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        config = {"max.message.bytes": "2000000"}
        topics = [NewTopic(topic, 2, 1, config=config) for topic in TOPICS]
        for created in admin.create_topics(topics).values():
            created.result()
        for topic in TOPICS:
            send(running, topic)
        yield running


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> Iterator[str]:
    properties, clock = {"bootstrap.servers": broker.bootstrap_servers}, SystemClock()
    with running_console(lambda: StorageReader(properties, clock)) as running:
        yield running


def send(broker: EmbeddedBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(MESSAGES):
        producer.produce(topic, b"value %d" % n, partition=n % 2)
    assert producer.flush(300) == 0


def commit(broker: EmbeddedBroker, topic: str, offset: int) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.fixture
def looks_on_demand(browser: Browser) -> Iterator[None]:
    """The page looks again when the test says so, and not by its own timer of five seconds. It sets
    that timer when a look has ended."""
    source = """
      const setTimer = window.setTimeout;
      window.looks = 0;
      window.setTimeout = (act, ms) => (ms >= 5000 ? ++window.looks : setTimer(act, ms));"""
    made = browser.driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": source}
    )
    yield
    browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", made)


def look_until(browser: Browser, condition: Callable[[], bool]) -> None:
    """Look until the condition holds. A look may be as old as the last one: its requests go out
    together, and one of them gets the last result while another one reads the cluster."""
    for _ in range(LOOKS_MAX):
        if condition():
            return
        looks = browser.run("return window.looks")
        browser.refresh()
        browser.wait(lambda looks=looks: browser.run("return window.looks") != looks)
    assert condition(), browser.text("body")


@pytest.mark.usefixtures("looks_on_demand")
def test_topic_has_its_configuration_its_groups_and_its_speed(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    commit(broker, "visits", 5)
    browser.open(f"{address}/#/topics/visits", "#settings table")
    # What was set for the topic itself comes before what was set for the broker.
    row = browser.text("#settings > .rows tbody tr")
    assert row.split()[:3] == ["max.message.bytes", "2000000", "DYNAMIC_TOPIC_CONFIG"]
    assert "1048588" in row
    assert "segment.bytes" not in browser.text("#settings > .rows")
    browser.click("#settings summary")
    browser.wait(lambda: "cleanup.policy" in browser.text("#settings"))
    assert "unknown" in browser.text("#sums")
    look_until(browser, lambda: GROUP in browser.text("#readers tbody tr"))
    assert f"{MESSAGES // 2 - 5}" in browser.text("#readers tbody tr")
    send(broker, "visits")
    look_until(browser, lambda: "about" in browser.text("#sums"))
    # What was opened stays open when the page is made anew.
    assert "cleanup.policy" in browser.text("#settings")
    assert browser.messages() == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_has_the_members_that_librdkafka_describes(
    browser: Browser, address: str, broker: EmbeddedBroker, protocol: str
) -> None:
    group, servers = f"{protocol}-readers", broker.bootstrap_servers
    with joined_members(servers, group, protocol, "arrivals"):
        members = described_members(servers, group)
        assert [len(places) for _, _, places in members] == [1, 1]
        assert shown_members(address, group) == members
        browser.open(f"{address}/#/groups/{group}", "#members tbody tr + tr")
        for row, (client, host, ((topic, partition),)) in zip(
            browser.all("#members tbody tr"), members, strict=True
        ):
            assert row.text.split()[:2] == [client, host]
            assert f"{topic} {partition}" in row.text
        # Each partition names its reader.
        assert f"{protocol}-0" in browser.text("#lag")
        assert f"{protocol}-1" in browser.text("#lag")
    browser.refresh()
    browser.wait(lambda: "No member" in browser.text("#members"))
    assert browser.messages() == []


def begin_queue(broker: EmbeddedBroker, group: str) -> None:
    begin = ["reset-offsets", group, "--share", "--topic", "tasks", "--to-earliest", "--execute"]
    result = CliRunner().invoke(app, ["groups", *begin, "-b", broker.bootstrap_servers])
    assert result.exit_code == 0, result.output


@contextmanager
def share_members(broker: EmbeddedBroker) -> Iterator[None]:
    """WORKERS members of a share group that has done all records but the first of partition 0,
    which was released."""
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    begin_queue(broker, QUEUE)
    with ExitStack() as members:
        worker = members.enter_context(closing(share_consumer(servers, 0)))
        done, released = 0, False

        def all_others_done() -> bool:
            nonlocal done, released
            for task in worker.poll(0.1):
                if (task.partition(), task.offset()) == (0, 0):
                    worker.acknowledge(task, AcknowledgeType.RELEASE)
                    released = True
                else:
                    worker.acknowledge(task, AcknowledgeType.ACCEPT)
                    done += 1
            worker.commit_sync()
            return done == MESSAGES - 1 and released

        wait_until(all_others_done, "the acknowledgements")
        for number in range(1, WORKERS):
            members.enter_context(closing(share_consumer(servers, number)))
        yield


def workers_of(browser: Browser, partition: int) -> list[str]:
    """The members that read this partition alone, in the order of the page."""
    rows = [each.text.split() for each in browser.all("#members tbody tr")]
    return [row[0] for row in rows if row[1:5] == ["127.0.0.1", "1", "tasks", str(partition)]]


def share_consumer(servers: dict[str, str], number: int) -> ShareConsumer:
    settings = {
        **servers,
        "group.id": QUEUE,
        "client.id": f"worker-{number}",
        "share.acknowledgement.mode": "explicit",
    }
    consumer = ShareConsumer(settings)
    consumer.subscribe(["tasks"])
    return consumer


@pytest.mark.usefixtures("looks_on_demand")
def test_share_group_has_its_members_and_what_is_done(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    with share_members(broker):
        browser.open(f"{address}/#/groups", "#groups tbody tr")
        row = f"{QUEUE} Stable share 2"
        look_until(browser, lambda: row in " ".join(browser.text("#groups").split()))
        browser.open(f"{address}/#/topics/tasks", "#readers table")
        look_until(browser, lambda: row in " ".join(browser.text("#readers").split()))
        browser.open(f"{address}/#/groups/{QUEUE}", "#members tbody tr")
        look_until(browser, lambda: len(workers_of(browser, 0) + workers_of(browser, 1)) == WORKERS)
        first, second = workers_of(browser, 0), workers_of(browser, 1)
        assert sorted(first + second) == [f"worker-{n}" for n in range(WORKERS)]
        assert len(first) == WORKERS // 2
        rows = [each.text.split() for each in browser.all("#lag tbody tr")]
        # Topic, partition, start offset, done after it, lag, of these remote. The start of what is
        # done moves with the next write of the state.
        assert rows[0][:6] == ["tasks", "0", "0", str(MESSAGES // 2 - 1), "1", "0"]
        assert (rows[1][:2], rows[1][4:6]) == (["tasks", "1"], ["0", "0"])
        assert int(rows[1][2]) + int(rows[1][3]) == MESSAGES // 2
        # Each partition has two members.
        assert [" ".join(each[-2:]) for each in rows] == [", ".join(first), ", ".join(second)]
        assert "records not yet done of 2 partitions" in browser.text(".figures")
        # Topic, partition, acknowledged, archived, released, their most deliveries.
        deliveries = browser.all("#deliveries tbody tr")[0].text.split()
        assert deliveries == ["tasks", "0", str(MESSAGES // 2 - 1), "0", "1", "1"]
    assert browser.messages() == []


def test_history_of_lag_grows_with_each_look(
    browser: Browser, address: str, broker: EmbeddedBroker
) -> None:
    commit(broker, "logins", 6)
    browser.open(f"{address}/#/groups/{GROUP}", "#history p")
    assert "begins with the next look" in browser.text("#history")
    send(broker, "logins")
    browser.refresh()
    browser.wait(lambda: browser.all("#history svg[role=img]"))
    points = browser.run("return document.querySelector('polyline').points.length")
    assert isinstance(points, int)
    assert points >= 2
    lag = browser.run("return document.querySelector('#history svg').ariaLabel")
    assert str(lag) == browser.text("#history div p")
    before, after = map(int, re.findall(r"([0-9]+) to ([0-9]+) offsets", str(lag))[0])
    # The group has committed offsets of one partition, which has half of the messages.
    assert after - before == MESSAGES // 2
    assert browser.messages() == []


def test_broker_has_its_disks_and_its_configuration(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/brokers", "main tbody a")
    assert "as Kafka 4.3" in browser.text("main tbody tr")
    browser.click("main tbody a")
    browser.wait(lambda: browser.all("#disks tbody tr"))
    assert browser.text("h1") == "Broker 1"
    log_dir = browser.text("#disks tbody td")
    assert Path(log_dir).name == "log"
    volume = shutil.disk_usage(log_dir).total
    assert f"{volume / 2**30:.1f} GiB" in browser.text("#disks tbody tr")
    assert "listeners" in browser.text("#settings > .rows")
    assert "--metrics" in browser.text("#errors")
    assert browser.messages() == []


def test_sensitive_settings_are_hidden(browser: Browser, tmp_path: Path) -> None:
    secret = "not-for-pages"
    settings = {"ssl.keystore.password": secret}
    with EmbeddedBroker(tmp_path, settings) as running:
        properties = {"bootstrap.servers": running.bootstrap_servers}
        with running_console(lambda: StorageReader(properties, SystemClock())) as address:
            browser.open(f"{address}/#/brokers/1", "#settings table")
            row = browser.text("#settings > .rows")
            assert "ssl.keystore.password hidden" in " ".join(row.split())
            assert secret not in str(browser.run("return document.documentElement.outerHTML"))


@pytest.mark.usefixtures("widths")
def test_new_pages_have_room_and_no_fault_of_access(
    browser: Browser, address: str, broker: EmbeddedBroker, axe: str
) -> None:
    commit(broker, "logins", 6)
    begin_queue(broker, IDLE_QUEUE)
    outside = """
      return [document.documentElement, ...document.querySelectorAll('.rows')]
        .filter((each) => each.scrollWidth > each.clientWidth)
        .map((each) => `${each.localName} ${each.ariaLabel} ${each.scrollWidth}`)"""
    for page, selector in (
        ("topics/visits", "#settings table"),
        (f"groups/{GROUP}", "#members"),
        (f"groups/{IDLE_QUEUE}", "#lag table"),
        ("brokers", "main table"),
        ("brokers/1", "#settings table"),
    ):
        for width in (1280, 375):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.open(f"{address}/#/{page}", selector)
            # A table becomes a list when it has its place, before it is painted.
            browser.wait(lambda: browser.run(outside) == [])
            assert findings(browser.driver, axe) == [], (page, width)


def test_tables_say_how_far_behind_they_are(browser: Browser, broker: EmbeddedBroker) -> None:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(properties)
    (described,) = admin.describe_topics(TopicCollection(["arrivals"])).values()
    topic_id = str(uuid.UUID(int=uuid_int(described.result().topic_id)))
    identity = Identity(topic="arrivals", topic_id=topic_id, value_format="json")
    table = ListedTable("iceberg", "kafka.arrivals", identity, 3, 1, FIRST_MS, {0: 7, 1: 20}, 2)
    newest = DeadLetter(0, 5, FIRST_MS, "not JSON")
    dead = DeadLetters(1, 2, 1, (("not JSON", 2),), (newest,))
    with running_console(
        lambda: StorageReader(properties, SystemClock()), tables=ScriptedTables([table], dead)
    ) as address:
        browser.open(f"{address}/#/tables", "main tbody tr")
        cells = [each.text for each in browser.all("main tbody td")]
        assert cells[:5] == ["kafka.arrivals", "arrivals", "3", f"{MESSAGES // 2 - 7}", "2"]
        browser.click("main tbody a")
        browser.wait(lambda: browser.text("h1") == "kafka.arrivals")
        assert browser.text("#dead-letters tbody tr").split() == ["not", "JSON", "2"]
        assert "the newest 2 in 1 file" in browser.text("#dead-letters")
        rows = [each.text.split() for each in browser.all("#partitions tbody tr")]
        assert rows == [["0", "7", "20", "13"], ["1", "20", "20", "0"]]
        link = browser.all("#dead-letters td a")[0].get_attribute("href")
        assert link == f"{address}/#/records/arrivals?partition=0&offset=5"
        browser.open(f"{address}/#/tables", "main tbody tr")
        browser.click("main tbody a", 1)
        browser.wait(lambda: browser.text("h1") == "arrivals")
    with running_console(lambda: StorageReader(properties, SystemClock())) as address:
        browser.open(f"{address}/#/tables", "main code")
        assert "--warehouse" in browser.text("main")
    assert browser.messages() == []


def uuid_int(topic_id: Uuid) -> int:
    most, least = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return (most % 2**64) << 64 | least % 2**64
