"""The console's pages in Chromium. One browser for all of them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.webdriver.common.keys import Keys

from isotherm.clock import SystemClock
from isotherm.console.jobs import JobRunner
from isotherm.console.watched_metrics import MetricsAddresses
from isotherm.metrics.broker_topic_metrics import TopicMeter
from isotherm.spark.tables.schema_registry import RegisteredSchema, RegistrySettings
from isotherm.storage_view import registered_values
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.record_sources import ClusterRecords
from isotherm.storage_view.registered_values import RegisteredValues
from isotherm.testing.embedded_broker import EmbeddedBroker
from suites.results import SuiteUnavailableError
from tests.support.axe import axe_source, findings, findings_everywhere
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_server import running_console
from tests.support.metrics_server import LOGIN, TOPIC, MetricsServer
from tests.support.scripted_cluster import damaged_cluster
from tests.support.scripted_records import ScriptedRecords

GONE = "http://127.0.0.1:1/metrics"

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def metrics() -> Iterator[MetricsServer]:
    running = MetricsServer()
    yield running
    running.close()


@pytest.fixture(scope="module")
def address(metrics: MetricsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster, reports = damaged_cluster(), tmp_path_factory.mktemp("reports")
    (reports / "sweep-2026-01-31.jsonl").write_text(
        '{"kind": "partial_upload", "topic": "orders", "partition": 1, "start_offset": 2000}\n'
    )
    runner = JobRunner(reports, {"audit": [sys.executable, "-c", "print('{}')"]}, SystemClock())
    login = base64.b64encode(LOGIN).decode()
    with running_console(
        lambda: cluster,
        interval_s=5,
        reports=reports,
        runner=runner,
        metrics=MetricsAddresses([metrics.url, GONE], f"Basic {login}"),
    ) as running:
        yield running
    runner.close()


def test_overview_leads_to_a_topic(browser: Browser, address: str) -> None:
    browser.open(address, "table")
    assert "1,100" in browser.text("#sums")
    browser.all("input[type=search]")[0].send_keys("ord")
    assert browser.run("return document.querySelectorAll('#topics a').length") == 1
    browser.click("#topics a")
    browser.wait(lambda: len(browser.all("canvas[data-cells]")) == 2)
    assert browser.text("h1") == "orders"
    assert browser.messages() == []


def test_errors_of_the_last_hour_lead_to_their_topic(
    browser: Browser, address: str, metrics: MetricsServer
) -> None:
    browser.open(address, "#errors p")
    assert GONE in browser.text("#errors")
    assert "1 broker without metrics" in browser.text("#sums")
    metrics.topics.mark(TopicMeter.REMOTE_COPY_ERRORS, TOPIC, 1234)
    browser.wait(lambda: "1,234" in browser.text("#sums"))
    assert f"{TOPIC}\tRemoteCopyErrors" in browser.text("#errors")
    browser.wait(lambda: "1,234 copies failed" in browser.text("#problems"))
    browser.click("#errors a")
    browser.wait(lambda: browser.text("h1") == TOPIC)


def test_missing_segment_is_seen_and_reached_by_keys(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics/orders", "canvas[data-cells]")
    canvas = browser.all("canvas")[1]
    # The damage's colour is on this bar, and nowhere on the sound partition's.
    painted = """
      const wanted = getComputedStyle(document.body).getPropertyValue('--missing').trim();
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
      return [...document.querySelectorAll('canvas')].map((canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let at = 0; at < data.length; at += 4)
          count += data[at] === red && data[at + 1] === green && data[at + 2] === blue;
        return count > 0;
      });"""
    browser.wait(lambda: browser.run(painted) == [False, True])
    canvas.send_keys(Keys.HOME)
    labels = []
    for _ in range(11):
        canvas.send_keys(Keys.ARROW_RIGHT)
        labels.append(canvas.get_attribute("aria-valuetext"))
    assert "5,000 to 5,999 · missing: in no tier" in labels
    canvas.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ENTER)
    browser.wait(lambda: browser.all(".facts dd"))
    browser.wait(lambda: "COPY_SEGMENT_FINISHED" in browser.text(".facts"))
    assert "1,000 to 1,999" in browser.text(".facts")
    assert browser.messages() == []


def test_tier_map_of_an_earlier_time_is_reached_by_keys(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics/orders", "canvas[data-cells]")
    second = ".map:nth-of-type(2) header"
    assert "missing" in browser.text(second)
    browser.click("#lapse button")
    browser.wait(lambda: browser.all("#lapse input")[0].is_displayed())
    slider = browser.all("#lapse input")[0]
    assert slider.get_attribute("aria-valuetext") == "now"
    slider.send_keys(Keys.HOME)
    browser.wait(lambda: "missing" not in browser.text(second))
    assert "1 being copied" in browser.text(second)
    assert "UTC" in (slider.get_attribute("aria-valuetext") or "")
    assert "nothing has kept" in browser.text("#lapse p")
    for _ in range(4):
        slider.send_keys(Keys.PAGE_UP)
    browser.wait(lambda: "in the remote tier" in browser.text(second))
    assert "missing" not in browser.text(second)
    browser.run("document.querySelector('#lapse .lapse button:last-child').click()")
    browser.wait(lambda: "1 missing" in browser.text(second))
    assert slider.get_attribute("aria-valuetext") == "now"
    assert browser.messages() == []


def test_time_lapse_plays_to_the_present(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics/orders", "canvas[data-cells]")
    browser.click("#lapse button")
    browser.wait(lambda: browser.all("#lapse input")[0].is_displayed())
    browser.click("#lapse .lapse button")
    browser.wait(lambda: "UTC" in browser.text("#lapse .at"))
    assert browser.text("#lapse .lapse button") == "Pause"
    # The whole takes fifteen seconds. It goes on from where a user drags the slider.
    browser.run("const end = document.querySelector('#lapse input'); end.value = end.max - 5")
    browser.wait(lambda: browser.text("#lapse .at") == "now")
    browser.wait(lambda: browser.text("#lapse .lapse button") == "Play")


def test_hundred_thousand_segments_stay_few_cells(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics/history", "canvas[data-cells]")
    canvas = browser.all("canvas")[0]
    before = int(canvas.get_attribute("data-cells") or 0)
    assert 50 < before <= 1600
    assert "99,998 only remote · 1 missing" in browser.text(".map")
    for _ in range(8):
        shown = browser.text(".ends")
        canvas.send_keys("+")
        browser.wait(lambda shown=shown: browser.text(".ends") != shown)
    canvas.send_keys(Keys.HOME)
    assert "segment" in (canvas.get_attribute("aria-valuetext") or "")
    browser.wait(lambda: "segments" not in (canvas.get_attribute("aria-valuetext") or ""))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_and_its_words_can_be_read(
    browser: Browser, address: str, scheme: str
) -> None:
    """WCAG AA: a contrast of 4.5 for text, of 3 for graphics."""
    driver = browser.driver
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.open(f"{address}/#/topics/orders", "canvas[data-cells]")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    contrasts = browser.run("""
      const colour = (name) => getComputedStyle(document.body).getPropertyValue(`--${name}`).trim();
      const light = (hex) => {
        const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
          .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const contrast = (one, other) => {
        const [high, low] = [light(colour(one)), light(colour(other))].sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05);
      };
      const words = [['text', 'page'], ['text', 'card'], ['quiet', 'page'], ['quiet', 'card'],
        ['link', 'card'], ['alert', 'card'], ['alert', 'alert-page']];
      const painted = ['local', 'both', 'remote', 'missing', 'copying', 'deleting', 'orphan'];
      return [...words.map((pair) => [pair.join(), contrast(...pair), 4.5]),
        ...painted.map((kind) => [kind, contrast(kind, 'card'), 3])];""")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert isinstance(contrasts, list)
    assert [contrast for contrast in contrasts if contrast[1] < contrast[2]] == []


def test_groups_are_listed_with_the_tier_they_read(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/groups", "main table a")
    first = browser.text("main tbody tr")
    assert first.startswith("backfill")
    assert "the remote tier (1)" in first
    browser.click("main table a", 1)
    browser.wait(lambda: browser.text("h1") == "billing")
    assert "the local tier" in browser.text()
    assert browser.messages() == []


def test_records_are_found_in_steps_that_can_be_stopped(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics/history", "main a")
    browser.click("main p a")
    browser.wait(lambda: browser.all("#records tbody tr"))
    browser.click("form summary")
    # None of ten million offsets matches.
    browser.all("input[name=value]")[0].send_keys("no such flight")
    browser.click("form button")
    browser.wait(lambda: browser.text("p[role=status]").startswith("0 messages found"))
    assert browser.text("progress + button") == "Stop"
    browser.click("progress + button")
    browser.wait(lambda: browser.text("progress + button") == "Go on")
    assert float(str(browser.run("return document.querySelector('progress').value"))) < 1
    assert "0 messages found" in browser.text("p[role=status]")
    browser.run("document.querySelector('table[aria-label^=What]').closest('details').open = true")
    assert "local" in browser.text("table[aria-label='What it cost to fetch'] tbody")
    assert browser.messages() == []


def test_record_is_shown_as_json_text_or_hex(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/records/orders?partition=0&offset=8999", "#records details")
    assert [
        browser.text(f"#records tbody tr:nth-child({n}) td:nth-child(3)").strip() for n in (1, 2)
    ] == [
        "remote",
        "remote",
    ]
    browser.click("#records summary")
    browser.wait(lambda: browser.all("#records details pre"))
    # Shown as written: a parser of numbers would turn it into 1.1.
    assert browser.text("#records pre") == (
        '{\n  "flight": 8999,\n  "carrier": "UA",\n  "delay": 1.10\n}'
    )
    browser.click("#records summary", 1)
    browser.wait(lambda: len(browser.all("#records details pre")) == 2)
    assert "header trace" in browser.text("#records tbody tr:nth-child(2)")
    browser.run(
        "const choice = document.querySelector('select[name=format]'); choice.value = 'hex';"
        "choice.dispatchEvent(new Event('change'))"
    )
    assert "6b 65 79 2d 38 39 39 39" in browser.text("#records tbody tr:nth-child(1)")
    assert browser.messages() == []


def test_record_is_shown_by_its_schema(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = RegisteredSchema("JSON", "{}", ())
    monkeypatch.setattr(registered_values, "registered_schema", lambda *_: schema)
    registered = RegisteredValues(RegistrySettings("http://registry"), SystemClock())
    records = ScriptedRecords(frame=b"\0\0\0\0\7")
    with running_console(
        lambda: damaged_cluster(1), records=records, registered=registered
    ) as address:
        browser.open(f"{address}/#/records/orders?partition=0&offset=8999", "#records details")
        browser.click("#records summary")
        browser.wait(lambda: browser.all("#records details pre"))
        assert browser.text("#records summary").startswith('{"flight": 8999')
        assert '  "delay": 1.10\n' in browser.text("#records pre")
        assert "schema 7 (JSON)" in browser.text("#records details dl")
        browser.click("#records summary", 1)
        browser.wait(lambda: len(browser.all("#records details dl")) == 2)
        # The value at 9000 is no JSON.
        assert "it is not JSON" in browser.text("#records tbody tr:nth-child(2) dl")
    assert browser.messages() == []


def test_answers_stay_open_while_the_page_is_read_again(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/answers", "details.answer")
    closed = next(
        n for n, each in enumerate(browser.all("details.answer")) if not each.get_attribute("open")
    )
    browser.click("details.answer summary", closed)
    words = browser.text(f"details.answer:nth-of-type({closed + 1})")
    assert "from offset" in words
    browser.run("document.querySelector('h1').dataset.before = 'yes'")
    browser.refresh()
    browser.wait(lambda: not browser.all("h1[data-before]"))
    assert browser.text(f"details.answer:nth-of-type({closed + 1})") == words
    assert "upload was not finished" in browser.text("table[aria-label='Left over']")
    assert browser.text("#sweep").startswith("isotherm pipeline sweep --path")
    assert browser.messages() == []


def test_finding_of_a_job_leads_to_the_tier_map(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/jobs", "main table a")
    assert "sweep-2026-01-31.jsonl" in browser.text("main table")
    browser.run("location.hash = '#/jobs/sweep-2026-01-31.jsonl'")
    browser.wait(lambda: "partial_upload" in browser.text("main table"))
    browser.click("main tbody a")
    browser.wait(lambda: len(browser.all("canvas[data-cells]")) == 2)
    assert browser.text("h1") == "orders"
    assert browser.messages() == []


def test_job_is_started_by_a_button(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/jobs", "main button")
    browser.click("main button")
    browser.wait(lambda: "has begun" in browser.text("p[role=status]"))
    browser.wait(lambda: browser.refresh() or "audit-" in browser.text("main table"))
    assert browser.messages() == []


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except SuiteUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("/", "main table a"),
        ("/#/topics/orders", "canvas[data-cells]"),
        ("/#/records/orders?partition=0&offset=8999", "#records details"),
        ("/#/groups", "main table a"),
        ("/#/groups/backfill", "main table a"),
        ("/#/answers", "details.answer"),
        ("/#/jobs", "main table a"),
        ("/#/jobs/sweep-2026-01-31.jsonl", "main table a"),
    ],
)
def test_axe_finds_nothing(browser: Browser, address: str, axe: str, page: str, shown: str) -> None:
    browser.open(f"{address}{page}", shown)
    for opened in ("#records summary", "canvas", "#lapse button"):
        if browser.all(opened):
            browser.click(opened)
    assert findings_everywhere(browser.driver, axe) == []


def test_axe_would_find_something(browser: Browser, address: str, axe: str) -> None:
    browser.open(address, "main table a")
    browser.run("document.querySelector('input[type=search]').closest('label').firstChild.remove()")
    assert any("label" in finding for finding in findings(browser.driver, axe))


def commit(servers: str, position: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers"})
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def test_pages_work_below_a_path_of_a_reverse_proxy(browser: Browser) -> None:
    cluster = damaged_cluster()
    with running_console(lambda: cluster, path="/ops/tiers") as address:
        browser.open(f"{address}/", "#topics a")
        browser.click("#topics a")
        browser.wait(lambda: browser.all("canvas[data-cells]"))
        for page in ("records/orders?partition=0", "groups", "answers", "jobs"):
            browser.open(f"{address}/#/{page}", "main h1")
        browser.open(f"{address}/api/", "#paths section")
        browser.click("a.brand")
        browser.wait(lambda: browser.all("#topics a"))
        assert browser.messages() == []


def test_records_of_any_producer_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    markup = """<img src=x onerror="document.title='run'"><script>document.title='run'</script>"""
    nanoseconds, depth = 1_767_225_600_000_000_000, 32_000
    with EmbeddedBroker(tmp_path) as broker:
        properties = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(properties)
        any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        for created in admin.create_topics([NewTopic("odd", 1, 1, config=any_time)]).values():
            created.result()
        producer = Producer(properties)
        producer.produce("odd", markup, markup, headers=[(markup, markup.encode())])
        producer.produce("odd", "in nanoseconds", timestamp=nanoseconds)
        producer.produce("odd", "[" * depth + "]" * depth)
        producer.flush()
        clock = SystemClock()
        records = ClusterRecords(properties, clock)
        with running_console(lambda: StorageReader(properties, clock), records=records) as address:
            browser.open(f"{address}/#/records/odd?partition=0&order=oldest", "#records details")
            assert f"{nanoseconds} ms" in browser.text("#records")
            for number in range(3):
                browser.click("#records summary", number)
            browser.wait(lambda: len(browser.all("#records pre")) == 3)
            assert browser.text("#records pre") == markup
            assert f"header {markup}" in browser.text("#records dl")
            assert browser.all("#records img, #records script") == []
            assert browser.driver.title == "odd: messages · Isotherm console"
            browser.open(f"{address}/#/topics/%E0%A4%A", "#problem:not([hidden])")
            assert "no such topic" in browser.text("#problem")


def test_page_says_that_the_broker_is_gone_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        for created in admin.create_topics([NewTopic("letters", 1, 1)]).values():
            created.result()

        def opened() -> StorageReader:
            return StorageReader({"bootstrap.servers": servers}, SystemClock())

        commit(servers, TopicPartition("letters", 0, 0))
        with running_console(opened) as address:
            browser.open(f"{address}/#/groups/readers", "main table a")
            assert "the end of the log" in browser.text()
            browser.open(address, "main table a")
            assert "letters" in browser.text()
            assert not browser.all("#problem")[0].is_displayed()
            broker.stop()
            browser.refresh()
            browser.wait(lambda: browser.all("#problem")[0].is_displayed())
            assert "does not answer" in browser.text("#problem")
            assert servers in browser.text("#problem")
            assert "letters" in browser.text()
        # Now the console itself is gone.
        browser.refresh()
        browser.wait(lambda: "The console itself" in browser.text("#problem"))
