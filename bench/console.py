"""How long does a person wait for the console, with 100,000 remote segments in a partition?

    python -m bench.console [--quick]

A headless Chromium opens the pages of a console with a scripted cluster, so that the figures
contain no broker's answer: they are the time of the console's computation, of JSON, and of the
browser. Nothing else should run.

    first paint     from the start of the navigation to the browser's first contentful paint
    map             to the frame in which the tier map is painted with its cells (the pages: with
                    their table)
    zoom            from a key to the frame with the narrower window: a request to the console
    step            from an arrow key to the next frame, with the next cell chosen

Each round opens the page in a browser with an empty cache. Figures are the median and the maximum
of all rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections import defaultdict
from typing import Any

from selenium import webdriver

from bench.harness import Question, describe, keep
from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster

ROUNDS, ROUNDS_QUICK = 15, 3
ZOOMS, STEPS = 6, 20
SEGMENTS = 100_000
TIMEOUT_S = 60
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900")
# The element that exists once a page shows its content.
PAGES = {
    "overview": ("/", "main table a"),
    "tier map": ("/#/topics/history", "canvas[data-cells]"),
    "answers": ("/#/answers", "details.answer"),
}
QUESTION = Question(
    "console",
    "How long does a person wait for the console, with 100,000 segments in a partition?",
    lambda _: (),
)
# Runs in every page before its own scripts. Notes the time of the frame after the one that has the
# element.
_WATCH = """
  const look = () => {
    if (document.querySelector(SELECTOR)) requestAnimationFrame((at) => { window.paintedAt = at; });
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);"""
_OPENED = """
  const done = arguments[0];
  const wait = () => {
    const first = performance.getEntriesByName('first-contentful-paint')[0];
    if (window.paintedAt && first) done([first.startTime, window.paintedAt]);
    else requestAnimationFrame(wait);
  };
  wait();"""
# From the key to the frame after the first one in which `canvas[ATTRIBUTE]` has changed.
_KEY = """
  const [key, attribute, done] = arguments;
  const canvas = document.querySelector('canvas');
  const before = canvas.getAttribute(attribute);
  const began = performance.now();
  canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  const wait = () => {
    if (canvas.getAttribute(attribute) === before) requestAnimationFrame(wait);
    else requestAnimationFrame((at) => done(at - began));
  };
  requestAnimationFrame(wait);"""


def opened(driver: webdriver.Chrome, address: str, page: str) -> tuple[float, float]:
    """Open a page; return the milliseconds to its first paint, and to its content."""
    path, selector = PAGES[page]
    driver.get("about:blank")
    driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    script = {"source": _WATCH.replace("SELECTOR", repr(selector))}
    watch = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    driver.get(f"{address}{path}")
    first, whole = driver.execute_async_script(_OPENED)
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", watch)
    return float(first), float(whole)


def measure(driver: webdriver.Chrome, address: str) -> dict[str, list[float]]:
    """Measure each page once; milliseconds by page and step."""
    milliseconds: dict[str, list[float]] = defaultdict(list)
    for page in PAGES:
        first, whole = opened(driver, address, page)
        milliseconds[f"{page}: first paint"].append(first)
        milliseconds[f"{page}: painted whole"].append(whole)
        if page != "tier map":
            continue
        driver.execute_script("document.querySelector('canvas').focus()")
        for _ in range(ZOOMS):
            milliseconds["zoom"].append(
                float(driver.execute_async_script(_KEY, "+", "aria-valuemax"))
            )
        for _ in range(STEPS):
            milliseconds["step to the next cell"].append(
                float(driver.execute_async_script(_KEY, "ArrowRight", "aria-valuetext"))
            )
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="three rounds, and nothing is stored")
    options = parser.parse_args()
    rounds = ROUNDS_QUICK if options.quick else ROUNDS
    document = describe(QUESTION, rounds)
    browser = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        browser.add_argument(argument)
    driver = webdriver.Chrome(
        options=browser, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    driver.set_script_timeout(TIMEOUT_S)
    measured: dict[str, list[float]] = defaultdict(list)
    try:
        cluster = damaged_cluster(SEGMENTS)
        with running_console(lambda: cluster, interval_s=5) as address:
            measure(driver, address)
            for number in range(rounds):
                for name, values in measure(driver, address).items():
                    measured[name] += values
                print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        document["versions"]["chromium"] = driver.capabilities["browserVersion"]
    finally:
        driver.quit()
    document["waits"] = {name: _summary(values) for name, values in measured.items()}
    for name, figures in document["waits"].items():
        print(f"{name:<28} {figures['median_ms']:8.1f} ms, at most {figures['largest_ms']:.1f}")
    keep(document, is_whole=not options.quick)


def _summary(values: list[float]) -> dict[str, Any]:
    return {
        "count": len(values),
        "median_ms": round(statistics.median(values), 1),
        "largest_ms": round(max(values), 1),
    }


if __name__ == "__main__":
    main()
