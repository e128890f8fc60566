"""Chromium for tests: one for a test module, since it takes seconds to start."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

DRIVER = shutil.which("chromedriver")
NO_BROWSER = "there is no Chromium: apt-get install chromium chromium-driver"
WAIT_S = 300
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def wait(self, condition: Callable[[], object]) -> object:
        return WebDriverWait(self.driver, WAIT_S, 0.02).until(lambda _: condition())

    def open(self, address: str, selector: str) -> None:
        self.driver.get("about:blank")
        self.messages()
        self.driver.get(address)
        self.wait(lambda: self.all(selector))

    def go(self, address: str) -> None:
        """Open a page of the console, without a reload where only the hash is another."""
        if self.driver.current_url == address:
            # No event would tell the page to show itself again.
            self.driver.get("about:blank")
        self.run("document.querySelector('main h1')?.remove()")
        self.driver.get(address)
        self.wait(lambda: self.all("main h1"))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """The text of an element, or "" without one.

        Read in one step: pages replace their elements at any time.
        """
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def click(self, selector: str, number: int = 0) -> None:
        self.run(f"document.querySelectorAll({selector!r})[{number}].click()")

    def run(self, script: str) -> object:
        return self.driver.execute_script(script)

    def next_frames(self) -> None:
        """Wait until the page is painted, and tables have become lists, after a change of size."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )

    def refresh(self) -> None:
        """Make the page refresh now, not in five seconds, as when its tab becomes visible again."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def messages(self) -> list[str]:
        """Errors on the browser's console since the last call, for example of a script or a
        content policy.
        """
        driver: Any = self.driver
        return [entry["message"] for entry in driver.get_log("browser")]


@contextmanager
def open_browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
