"""Take a picture of each page of the console: `PYTHONPATH=. .venv/bin/python
scripts/console_pages.py [CLUSTER ...]`.

In each cluster of tests/support/console_clusters.py, at the widths of a desk and of a phone, light
and dark: to look at before a release. The pictures are in build/console-pages, which git ignores.
Needs Chromium and its driver.
"""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path

from selenium import webdriver

from tests.support.browser import Browser, open_browser
from tests.support.console_clusters import CONSOLE_CLUSTERS, pages_of
from tests.support.console_server import running_console

FOLDER = Path(__file__).parents[1] / "build" / "console-pages"
WIDTHS = (1280, 375)
SCHEMES = ("light", "dark")
HEIGHT = 800
HEIGHT_MAX = 2400  # of a picture; a longer page is cut, and its height told


def main() -> None:
    names = sys.argv[1:] or list(CONSOLE_CLUSTERS)
    with open_browser() as browser:
        for name in names:
            folder = FOLDER / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            take_cluster(browser, name, folder)


def take_cluster(browser: Browser, name: str, folder: Path) -> None:
    looked_at = CONSOLE_CLUSTERS[name]()
    with running_console(
        lambda: looked_at.cluster, interval_s=60, tables=looked_at.tables
    ) as address:
        for page, place in pages_of(looked_at).items():
            set_size(browser.driver, WIDTHS[0], HEIGHT)
            browser.open(f"{address}/{place}", "main h1")
            for width in WIDTHS:
                set_size(browser.driver, width, HEIGHT)
                for scheme in SCHEMES:
                    set_scheme(browser.driver, scheme)
                    height = take(browser.driver, width, folder / f"{page}-{width}-{scheme}.png")
                print(f"{name} {page} {width} px wide: {height} px high")


def set_size(driver: webdriver.Chrome, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def set_scheme(driver: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def take(driver: webdriver.Chrome, width: int, path: Path) -> int:
    """Take the whole page, and return its height."""
    # Tables become lists, and bars are painted, in the frames after a change of size.
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    height = int(driver.execute_script("return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, HEIGHT_MAX), "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
    return height


if __name__ == "__main__":
    main()
