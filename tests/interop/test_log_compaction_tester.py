"""Kafka's torture test of the log cleaner: the last record of each key is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import run_tool
from oracle.tools import LOG_COMPACTION_TESTER

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

SETTINGS = {
    # The smallest segments, because only closed ones are cleaned.
    "log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.001",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
}


@pytest.mark.nightly
def test_log_compaction_tester_finds_the_last_value_of_each_key(
    kafka_tools: Path, start_broker: Callable[..., EmbeddedBroker]
) -> None:
    broker = start_broker(SETTINGS)
    printed = run_tool(
        *(LOG_COMPACTION_TESTER, f"--bootstrap-server={broker.bootstrap_servers}"),
        *("--messages=80000", "--duplicates=10", "--percent-deletes=10", "--sleep=2"),
    )
    assert "0 mismatches" in printed
    assert "Data verification is completed" in printed
    reduction = re.search(r"\(([\d.]+)% reduction\)", printed)
    assert reduction is not None
    assert float(reduction[1]) > 10, "the cleaner has not come to it"
