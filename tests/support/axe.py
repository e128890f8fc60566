"""axe-core checks a page's accessibility. It is npm's package, for tests only."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites.building import run_step
from suites.results import SuiteUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selenium import webdriver

VERSION = "4.14.1"
TOOLS = Path(__file__).parents[2] / ".tools"
# WCAG 2.2 at levels A and AA, and axe's own best practices.
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def axe_source() -> str:
    """The script, downloaded once. SuiteUnavailableError without npm or its registry."""
    kept = TOOLS / f"axe-core-{VERSION}.js"
    if not kept.exists():
        if shutil.which("npm") is None:
            raise SuiteUnavailableError("axe-core cannot be had: missing=npm")
        TOOLS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
            scratch = Path(folder)
            command = ["npm", "pack", "--silent", f"axe-core@{VERSION}"]
            packed = run_step(command, scratch, SuiteUnavailableError)
            with tarfile.open(scratch / packed.split()[-1]) as archive:
                archive.extract("package/axe.min.js", scratch, filter="data")
            (scratch / "package" / "axe.min.js").replace(kept)
    return kept.read_text(encoding="utf-8")


# Only these depend on the colours of a page.
_COLOUR_RULES = ["color-contrast", "link-in-text-block"]
_WIDTHS = (1280, 375)


def findings_everywhere(driver: webdriver.Chrome, source: str) -> list[str]:
    """The violations on the current page at the widths of a desk and of a phone, light and dark,
    each with its width and scheme. All rules in the light, those of colours in the dark too."""
    found = []
    for width in _WIDTHS:
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for scheme, rules in (("light", None), ("dark", _COLOUR_RULES)):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            # A table becomes a list in the frame after a change of width.
            driver.execute_async_script(
                "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
            )
            found += [f"{width} {scheme} {finding}" for finding in findings(driver, source, rules)]
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    return found


def findings(
    driver: webdriver.Chrome, source: str, rules: Sequence[str] | None = None
) -> list[str]:
    """The violations on the current page: impact, rule, and the first place of each.

    Of these rules alone if there are any.
    """
    if not driver.execute_script("return 'axe' in window"):
        driver.execute_script(source)
    options = json.dumps({"runOnly": rules or _TAGS, "resultTypes": ["violations"]})
    found: Any = driver.execute_async_script(
        f"const done = arguments[0]; axe.run(document, {options})"
        ".then((result) => done(result.violations), (error) =>"
        " done([{ id: String(error), nodes: [] }]))"
    )
    return [
        f"{each.get('impact')} {each['id']}: {each['nodes'][0]['html'] if each['nodes'] else ''}"
        for each in found
    ]
