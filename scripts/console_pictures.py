"""Make the pictures of docs/console.md: `PYTHONPATH=. .venv/bin/python
scripts/console_pictures.py`.

They show a cluster that is made by hand, with each kind of damage. Needs Chromium and its driver.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster

FOLDER = Path(__file__).parents[1] / "docs" / "console"
WAIT_S = 60
# Name, page, width, height, colour scheme.
PICTURES = (
    ("overview", "/", 1100, 780, "light"),
    ("topic", "/#/topics/orders", 1100, 880, "light"),
    ("groups", "/#/groups", 1100, 300, "light"),
    ("records", "/#/records/orders?partition=0&offset=8950", 1100, 700, "light"),
    ("answers", "/#/answers", 1100, 860, "light"),
    ("lapse", "/#/topics/orders", 1100, 880, "light"),
    ("history", "/#/topics/history", 1100, 560, "dark"),
    ("phone", "/#/topics/orders", 360, 900, "dark"),
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    cluster = damaged_cluster()
    with running_console(lambda: cluster, interval_s=60) as address:
        for name, page, width, height, scheme in PICTURES:
            take(driver, f"{address}{page}", (width, height), scheme)
            if name == "lapse":
                go_back(driver)
            driver.save_screenshot(str(FOLDER / f"{name}.png"))
    driver.quit()


def take(driver: webdriver.Chrome, url: str, size: tuple[int, int], scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")
    driver.get(url)
    wait = WebDriverWait(driver, WAIT_S)
    wait.until(lambda _: driver.find_elements(By.CSS_SELECTOR, "main table"))
    bars = driver.find_elements(By.CSS_SELECTOR, "canvas")
    if len(bars) > 1 and size[0] > size[1]:
        bars[1].send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
        wait.until(lambda _: len(driver.find_elements(By.CSS_SELECTOR, ".facts dd")) > 3)
    if size[0] < size[1]:
        driver.execute_script("document.querySelector('.legend').scrollIntoView()")
        # The bars are painted in the next frame.
        driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )


def go_back(driver: webdriver.Chrome) -> None:
    """Move the time slider to a moment at which a copy was running."""
    wait = WebDriverWait(driver, WAIT_S)
    driver.execute_script("document.querySelector('.facts').remove()")
    driver.find_element(By.CSS_SELECTOR, "#lapse button").click()
    slider = driver.find_element(By.CSS_SELECTOR, "#lapse input")
    wait.until(lambda _: slider.is_displayed())
    driver.execute_script(
        "arguments[0].value = 210; arguments[0].dispatchEvent(new Event('input'))", slider
    )
    first = driver.find_element(By.CSS_SELECTOR, ".map header")
    wait.until(lambda _: "being copied" in first.text)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


if __name__ == "__main__":
    main()
