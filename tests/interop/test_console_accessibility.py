"""axe-core over each page of the console, at the widths of a desk and of a phone, light and dark;
and its main flows with the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from suites.results import SuiteUnavailableError
from tests.support.axe import axe_source, findings_everywhere
from tests.support.browser import DRIVER, NO_BROWSER, Browser, open_browser
from tests.support.console_clusters import CONSOLE_CLUSTERS, pages_of
from tests.support.console_server import running_console

pytestmark = pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)

TABS_MAX = 80
# These pages show nothing of a cluster.
OF_NO_CLUSTER = ("api", "missing")
_, *OTHERS = CONSOLE_CLUSTERS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_source()
    except SuiteUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", CONSOLE_CLUSTERS)
def test_axe_finds_nothing_on_any_page(browser: Browser, axe: str, name: str) -> None:
    looked_at = CONSOLE_CLUSTERS[name]()
    pages = pages_of(looked_at)
    if name in OTHERS:
        for page in OF_NO_CLUSTER:
            del pages[page]
    found = {}
    with running_console(
        lambda: looked_at.cluster, interval_s=60, tables=looked_at.tables
    ) as address:
        for page, place in pages.items():
            browser.go(f"{address}/{place}")
            if page == "messages":
                browser.wait(lambda: browser.all("#records tbody tr"))
                browser.click("form summary")
                browser.click("#records summary")
            if each := findings_everywhere(browser.driver, axe):
                found[page] = each
    assert found == {}


def press(browser: Browser, *keys: str) -> None:
    ActionChains(browser.driver).send_keys(*keys).perform()


def tab_to(browser: Browser, selector: str) -> None:
    """Press Tab until such an element has the focus, which must be seen."""
    for _ in range(TABS_MAX):
        press(browser, Keys.TAB)
        if browser.run(f"return document.activeElement.matches({selector!r})"):
            outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            return
    raise AssertionError(f"{TABS_MAX} tabs do not reach {selector}")


def test_main_flows_need_the_keyboard_alone(browser: Browser) -> None:
    looked_at = CONSOLE_CLUSTERS["failing-bucket"]()
    with running_console(lambda: looked_at.cluster, interval_s=60) as address:
        browser.open(f"{address}/", "#topics a")
        tab_to(browser, ".skip")
        press(browser, Keys.ENTER)
        assert browser.run("return document.activeElement.id") == "main"
        # From the problem to its topic, and the segment that failed.
        tab_to(browser, "#problems a")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.all("canvas[data-cells]"))
        assert browser.run("return document.activeElement.id") == "main"
        tab_to(browser, "canvas")
        press(browser, Keys.END, Keys.ENTER)
        browser.wait(lambda: browser.all(".facts dd"))
        # Its messages: a filter, a search, a message, the live tail.
        browser.open(f"{address}/#/topics/{looked_at.topic}", "canvas[data-cells]")
        tab_to(browser, "main a[href*=records]")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.all("#records tbody tr"))
        tab_to(browser, "form summary")
        press(browser, Keys.ENTER)
        tab_to(browser, "input[name=key]")
        press(browser, "key-7201999")
        tab_to(browser, "input[name=offset]")
        press(browser, "7201990", Keys.ENTER)
        browser.wait(lambda: "key=key-7201999" in browser.driver.current_url)
        browser.wait(lambda: len(browser.all("#records tbody tr")) == 1)
        tab_to(browser, "button[aria-pressed]")
        press(browser, Keys.SPACE)
        browser.wait(lambda: browser.all("button[aria-pressed=true]"))
        press(browser, Keys.SPACE)
        assert browser.all("button[aria-pressed=false]")
        tab_to(browser, "#records summary")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.all("#records pre"))
        tab_to(browser, "#records button[aria-label^='Copy value']")
        # Groups: sorted, found, and opened.
        browser.open(f"{address}/#/groups", "main table a")
        tab_to(browser, "input[type=search]")
        press(browser, "fulf")
        tab_to(browser, "thead button")
        press(browser, Keys.ENTER)
        assert browser.all("th[aria-sort]")
        tab_to(browser, "tbody a")
        press(browser, Keys.ENTER)
        browser.wait(lambda: browser.text("h1") == looked_at.group)
