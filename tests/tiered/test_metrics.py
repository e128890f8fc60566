"""What a dashboard sees of the remote tier, through the endpoint."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MOVED = [
    "kafka_server_brokertopicmetrics_remotecopybytes_total",
    "kafka_server_brokertopicmetrics_remotecopyrequests_total",
    "kafka_server_brokertopicmetrics_remotefetchbytes_total",
    "kafka_server_brokertopicmetrics_remotefetchrequests_total",
    "kafka_server_brokertopicmetrics_remotedeleterequests_total",
    "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems_count",
    "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidle_percent",
    "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidle_percent",
    "kafka_server_rlmcopy_byte_rate",
    "kafka_server_rlmfetch_byte_rate",
    "isotherm_remote_index_cache_misses",
]


@pytest.fixture
def tiers(tmp_path: Path, open_tiers: Any) -> Iterator[Any]:
    started = open_tiers(
        tmp_path / "broker",
        {
            "prometheus.listener": "127.0.0.1:0",
            "remote.log.index.file.cache.statistics.enable": "true",
        },
    )
    yield started
    started.stop()


def scrape(tiers: Any) -> dict[str, float]:
    """Sums over labels, by name."""
    url = f"http://127.0.0.1:{tiers.broker.node.metrics_port}/metrics"
    sums: dict[str, float] = {}
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                name, _, number = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0) + float(number)
    return sums


def test_traffic_of_the_remote_tier_moves_kafkas_metrics(tiers: Any) -> None:
    tiers.create_topic("a", 2)
    records = [(b"k", b"%d" % number) for number in range(9)]
    tiers.produce("a", *records)
    tiers.expect_earliest_local("a", 8)
    assert tiers.consume("a", 8, offset=1) == records[1:]
    assert scrape(tiers)["kafka_server_brokertopicmetrics_remotelogsizebytes"] >= 0
    tiers.delete_records("a", 8)
    tiers.expect_empty_remote("a")
    now = scrape(tiers)
    assert [name for name in MOVED if not now.get(name)] == []
