"""librdkafka's own tests that have a consumer, with the group protocol of KIP-848."""

from __future__ import annotations

import re
from pathlib import Path

from suites import librdkafka
from suites.librdkafka import broker, prepare
from suites.results import Outcomes

__all__ = ["broker", "prepare", "run"]

_CONSUMER = re.compile("[Cc]onsume")


def numbers(tests: Path) -> list[str]:
    """Those that the suite's own `run-consumer-tests.sh` chooses, by the same words."""
    return [number for number in librdkafka.numbers(tests) if _consumes(tests, number)]


def run(tests: Path, address: str, log: Path, only: list[str] | None = None) -> Outcomes:
    """As `librdkafka.run`."""
    return librdkafka.run(tests, address, log, only or numbers(tests), "consumer")


def _consumes(tests: Path, number: str) -> bool:
    sources = [*tests.glob(f"{number}-*.c"), *tests.glob(f"{number}-*.cpp")]
    return any(_CONSUMER.search(path.read_text(encoding="utf-8")) for path in sources)
