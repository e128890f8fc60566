"""What all pages of the console share, in Chromium: navigation, tables, the theme, and room for
long names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_server import CLIENT_ARGUMENTS, running_console
from tests.support.scripted_cluster import ScriptedCluster, busy_cluster, local_tier

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

CLUSTER = busy_cluster()
TOPIC = min(CLUSTER.read().topics)
GROUP = CLUSTER.groups[0].group_id
PAGES = (
    "",
    "topics",
    f"topics/{TOPIC}",
    "groups",
    f"groups/{GROUP}",
    "brokers",
    "records",
    "answers",
    "jobs",
    "nothing/of/this",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_console(lambda: CLUSTER, interval_s=60) as running:
        yield running


@pytest.fixture
def widths(browser: Browser) -> Iterator[None]:
    yield
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def set_width(browser: Browser, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page[:12] or "overview")
@pytest.mark.usefixtures("widths")
def test_long_names_push_no_value_out_of_view(browser: Browser, address: str, page: str) -> None:
    outside = """
      const shown = (each) => each.getClientRects().length;
      return [document.documentElement, ...document.querySelectorAll('.rows')]
        .filter((each) => each.scrollWidth > each.clientWidth)
        .map((each) => `${each.localName} ${each.ariaLabel} ${each.scrollWidth}`)
        .concat([...document.querySelectorAll('td:not(.name)')].filter(shown)
          .filter((each) => each.scrollWidth > each.clientWidth + 1)
          .map((each) => each.textContent));"""
    browser.go(f"{address}/#/{page}")
    for width in (1280, 1024, 800, 375):
        set_width(browser, width)
        # The browser tells the page of its new width in its own time.
        browser.wait(lambda: browser.run(outside) == [])


@pytest.mark.usefixtures("widths")
def test_phone_shows_what_matters_of_a_row_as_a_list(browser: Browser, address: str) -> None:
    set_width(browser, 375)
    browser.open(f"{address}/#/topics", "main table a")
    shown = """
      return [...document.querySelectorAll('tbody tr')[0].children]
        .filter((each) => each.getClientRects().length).map((each) => each.dataset.label)"""
    assert browser.run(shown) == ["topic", "in all", "copy lag", "missing"]
    browser.click("button.all-values")
    labels = browser.run(shown)
    assert isinstance(labels, list)
    assert "a month" in labels
    browser.click("button.all-values")
    assert browser.run(shown) == ["topic", "in all", "copy lag", "missing"]


def choose_theme(browser: Browser, theme: str) -> None:
    browser.run(
        f"const choice = document.querySelector('#theme'); choice.value = '{theme}';"
        "choice.dispatchEvent(new Event('change'))"
    )


def test_rows_are_sorted_by_each_column_with_the_keyboard(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/topics", "main table a")
    first = "return document.querySelector('tbody a').textContent.slice(0, 7)"
    assert browser.run(first) == "team-49"
    assert browser.all("thead button")[0].text == "topic"
    for expected in ("team-00", "team-49"):
        browser.all("thead button")[0].send_keys(Keys.ENTER)
        assert browser.run(first) == expected
    assert browser.all("th")[0].get_attribute("aria-sort") == "descending"
    browser.all("thead button")[3].send_keys(Keys.SPACE, Keys.SPACE)
    # The least local bytes come first; numbers are no text.
    assert browser.run(first) == "team-00"
    # The order, and the keyboard's place, stay when the page is made anew.
    browser.open(f"{address}/#/groups", "main table a")
    browser.all("thead button")[4].send_keys(Keys.ENTER, Keys.ENTER)
    browser.run("document.querySelector('table').dataset.before = 'yes'")
    browser.refresh()
    browser.wait(lambda: not browser.all("table[data-before]"))
    assert browser.text("tbody a").startswith("reader-11")
    assert browser.run("return document.activeElement.textContent") == "lag, offsets"
    assert browser.messages() == []


def test_unknown_address_has_a_way_back(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/nothing/of/this", "#missing a")
    assert browser.text("h1") == "No such page"
    browser.click("#missing a", 1)
    browser.wait(lambda: browser.text("h1") == "Topics")
    browser.open(f"{address}/any/where", "main a")
    assert browser.text("h1") == "No such page"
    assert any("404" in message for message in browser.messages())
    browser.click("main a")
    browser.wait(lambda: browser.text("h1") == "Overview")
    assert browser.messages() == []


def test_unknown_topic_is_asked_for_once(browser: Browser) -> None:
    cluster = ScriptedCluster()
    with running_console(lambda: cluster) as address:
        browser.open(f"{address}/#/topics/none", "#missing a")
        assert "no such topic: none" in browser.text("#problem")
        assert "no such topic" not in browser.text("#missing")  # it is told once
        before = browser.run("return performance.getEntriesByType('resource').length")
        browser.refresh()
        assert browser.run("return performance.getEntriesByType('resource').length") == before
        cluster.add("none", [], local_tier(0, 0, 10, 100))
        browser.click("#missing button")
        browser.wait(lambda: browser.all("canvas"))
        assert browser.text("h1") == "none"
        assert not browser.all("#problem")[0].is_displayed()


@pytest.mark.usefixtures("widths")
def test_a_long_name_takes_two_lines_and_is_whole_on_demand(browser: Browser) -> None:
    def lines() -> int:
        script = """
          const heading = document.querySelector('h1');
          return heading.clientHeight / parseFloat(getComputedStyle(heading).lineHeight)"""
        return round(float(str(browser.run(script))))

    set_width(browser, 375)
    with running_console(lambda: CLUSTER) as address:
        for page in (f"topics/{TOPIC}", f"groups/{GROUP}", f"records/{TOPIC}"):
            browser.open(f"{address}/#/{page}", ".whole-name:not([hidden])")
            assert lines() == 2
            browser.click(".whole-name")
            assert lines() > 2
            # As long as the page is made anew: its heading is there before it is whole again.
            browser.refresh()
            browser.wait(lambda: browser.text(".whole-name") == "Shorten the name" and lines() > 2)
            browser.click(".whole-name")
            assert lines() == 2
        browser.open(f"{address}/#/brokers/1", "p.long")
        assert not browser.all(".whole-name")[0].is_displayed()
    assert browser.messages() == []


def test_theme_is_that_of_the_system_until_one_is_chosen(browser: Browser, address: str) -> None:
    def emulate(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    page = "return getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 247, 249)", "rgb(18, 22, 27)"
    emulate("light")
    browser.open(address, "main table a")
    assert browser.run(page) == light
    emulate("dark")
    browser.wait(lambda: browser.run(page) == dark)
    choose_theme(browser, "light")
    assert browser.run(page) == light
    browser.open(f"{address}/api/", "main code")
    assert browser.run(page) == light
    choose_theme(browser, "automatic")
    assert browser.run(page) == dark
    emulate("light")


def test_commands_name_the_cluster_of_the_console(browser: Browser, address: str) -> None:
    for page in (f"topics/{TOPIC}", f"groups/{GROUP}", "jobs", "answers"):
        browser.open(f"{address}/#/{page}", ".command button")
        commands = browser.run(
            "return [...document.querySelectorAll('.command code')].map((each) => each.textContent)"
        )
        assert isinstance(commands, list)
        assert commands
        assert all(CLIENT_ARGUMENTS in command for command in commands), commands
    browser.open(f"{address}/#/topics/{TOPIC}", ".read-only")
    assert "This console only reads" in browser.text(".read-only")
    assert f"isotherm produce {TOPIC} {CLIENT_ARGUMENTS}" in browser.text(".read-only")


def test_section_of_the_page_is_marked(browser: Browser, address: str) -> None:
    browser.open(f"{address}/#/groups/{GROUP}", "main table a")
    assert browser.text("nav a[aria-current]") == "Groups"
