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


FROM_THE_START = [
    *MOVED,
    "kafka_server_brokertopicmetrics_remotecopyerrors_total",
    "kafka_server_brokertopicmetrics_remotecopylagbytes",
    "kafka_server_delayedremotefetchmetrics_expires_total",
    "kafka_server_delayedremotelistoffsetsmetrics_expires_total",
    "isotherm_remote_log_copy_halted_partitions",
    "isotherm_remote_log_task_errors_total",
    "isotherm_remote_log_metadata_follow_errors_total",
    "isotherm_remote_log_metadata_skipped_records_total",
    "isotherm_remote_log_metadata_lost_tombstones_total",
    "isotherm_remote_log_metadata_cleaned_total",
    "isotherm_remote_log_metadata_cleanup_errors_total",
    "isotherm_remote_rewrite_replaced_segments_total",
    "isotherm_remote_rewrite_errors_total",
]


def scrape(tiers: Any, label: str = "") -> dict[str, float]:
    """Metric name -> sum over its samples that have `label`."""
    url = f"http://127.0.0.1:{tiers.broker.node.metrics_port}/metrics"
    sums: dict[str, float] = {}
    with urllib.request.urlopen(url, timeout=300) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#") and label in line:
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

    def unmoved() -> list[str]:
        now = scrape(tiers)
        return [name for name in MOVED if not now.get(name)]

    # A pool is at times not idle at all, and a fetch is counted behind its answer.
    tiers.expect(lambda: unmoved() == [], "all of them have moved")


def test_metrics_are_there_from_the_start_and_go_with_their_topic(tiers: Any) -> None:
    assert [name for name in FROM_THE_START if name not in scrape(tiers)] == []
    tiers.create_topic("a", 2, partitions=2)
    labelled = 'topic="a"'
    names = {name for name in FROM_THE_START if "brokertopic" in name}
    names |= {"kafka_log_remote_remotelogmanager_retentionsizein_percent"}
    tiers.expect(lambda: names <= scrape(tiers, labelled).keys(), "the metrics of a new topic")
    tiers.produce("a", *[(b"k", b"%d" % number) for number in range(5)])
    tiers.expect_earliest_local("a", 4)
    tiers.consume("a", 4)
    tiers.delete_topic("a")
    tiers.expect_empty_remote("a")
    remote = ("remote", "retentionsize")
    tiers.expect(
        lambda: (
            not [name for name in scrape(tiers, labelled) if any(each in name for each in remote)]
        ),
        "no metrics of the deleted topic",
    )
