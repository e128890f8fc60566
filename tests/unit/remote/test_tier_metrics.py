"""Every metric of the remote tier that is counted by topic changes with what it measures.

test_remote_log_manager.py, test_reader_pool.py and the tests of the broker's fetch and ListOffsets
cover the others. docs/metrics.md lists all.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import RemoteStorageError
from isotherm.metrics.broker_topic_metrics import TopicGauge, TopicMeter
from isotherm.metrics.registry import Metrics
from isotherm.remote.bounded_pool import BoundedPool
from isotherm.remote.periodic_tasks import PeriodicTasks
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.remote_tier_metrics import (
    COPIERS_IDLE,
    FETCHES_EXPIRED,
    LOCAL_RETENTION_SIZE,
    LOOKUPS_EXPIRED,
    READ_AHEAD_MEMORY,
    READ_TIME,
    READER_QUEUE,
    READERS_IDLE,
    RETENTION_SIZE,
    Expirations,
    ReadTimes,
    RetentionShares,
    publish_copiers,
    publish_quotas,
    publish_readers,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.testing.sim_clock import SimClock
from tests.support.faulty_store import Fault, Operation
from tests.support.tiered_partition import TieredPartition

PREFIX = "kafka_server_brokertopicmetrics_"
# Ends a test that hangs. No assertion depends on it.
WAIT_S = 300
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def copied(tiered: TieredPartition) -> TieredPartition:
    for number in range(14):
        tiered.append(b"%d" % number)
    tiered.copy_task.run()
    return tiered


def value(tiered: TieredPartition, name: str) -> float:
    """The topic's value. It must equal the broker's, because the broker has no other topic."""
    found = tiered.metrics.value(PREFIX + name, topic="flights")
    assert found == tiered.metrics.value(PREFIX + name, topic="")
    return found


def test_copy_lag_is_what_only_this_disk_holds_of_closed_segments(tiered: TieredPartition) -> None:
    for number in range(14):
        tiered.append(b"%d" % number)
    tiered.store.fail_always(Operation.COPY, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        tiered.copy_task.run()
    closed = tiered.log.segments()[:-1]
    assert len(closed) > 1
    assert value(tiered, "remotecopylagsegments") == len(closed)
    assert value(tiered, "remotecopylagbytes") == sum(each.size_in_bytes for each in closed)
    assert value(tiered, "remotecopyerrors_total") == 1
    tiered.store.heal()
    tiered.copy_task.run()
    assert value(tiered, "remotecopylagsegments") == 0
    assert value(tiered, "remotecopylagbytes") == 0


def test_copies_are_counted_with_their_bytes(copied: TieredPartition) -> None:
    segments = copied.segments()
    assert value(copied, "remotecopyrequests_total") == len(segments)
    assert value(copied, "remotecopybytes_total") == sum(
        segment.segment_size_in_bytes for segment in segments
    )


def test_delete_lag_is_what_waits_for_its_deletion(copied: TieredPartition) -> None:
    segments = copied.segments()
    copied.update_config(retention_bytes=0)
    copied.store.fail_next(Operation.DELETE, None, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        copied.expiration_task.run()
    left = segments[1:]
    assert value(copied, "remotedeletelagsegments") == len(left)
    assert value(copied, "remotedeletelagbytes") == sum(
        segment.segment_size_in_bytes for segment in left
    )
    assert value(copied, "remotedeleteerrors_total") == 1
    assert value(copied, "remotedeleterequests_total") == 2
    copied.expiration_task.run()
    assert value(copied, "remotedeletelagsegments") == 0


def test_size_and_number_of_remote_segments_leave_out_unfinished_copies(
    copied: TieredPartition,
) -> None:
    copied.expiration_task.run()
    segments = copied.segments()
    size = sum(segment.segment_size_in_bytes for segment in segments)
    assert value(copied, "remotelogmetadatacount") == len(segments)
    assert value(copied, "remotelogsizebytes") == size
    for _ in range(5):
        copied.append(b"more")
    for operation in (Operation.COPY, Operation.DELETE):
        copied.store.fail_always(operation, Fault.ERROR_BEFORE)
    for task in (copied.copy_task, copied.expiration_task):
        with contextlib.suppress(RemoteStorageError):
            task.run()
    assert {segment.state for segment in copied.segments()} >= {
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    }
    assert value(copied, "remotelogmetadatacount") == len(segments) + 1


def test_time_to_compute_the_size_is_that_of_the_plan(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isotherm.remote.tasks import expiration

    plan = expiration.plan_expiration

    def slow_plan(*arguments: object) -> object:
        copied.clock.advance(70)
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(expiration, "plan_expiration", slow_plan)
    copied.expiration_task.run()
    assert value(copied, "remotelogsizecomputationtime") == 70


def test_every_remote_metric_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = [each.value for each in (*TopicMeter, *TopicGauge) if each.value.startswith("Remote")]
    assert [name for name in names if name not in page] == []
    assert RemoteLogManagerConfig().remote_log_index_file_cache_statistics_enable is False


def test_expired_requests_are_counted_for_the_partition_and_for_all() -> None:
    """(DelayedRemoteFetchMetrics, DelayedRemoteListOffsetsMetrics)"""
    metrics = Metrics()
    expirations = Expirations(metrics)
    lookups = LOOKUPS_EXPIRED + "_total"
    assert metrics.value(lookups, topic="", partition="") == 0
    expirations.count_fetch()
    for topic, partition in (("a", 0), ("a", 1), ("a", 0), ("b", 0)):
        expirations.count_lookup(topic, partition)
    assert metrics.value(FETCHES_EXPIRED + "_total") == 1
    assert metrics.value(lookups, topic="", partition="") == 4
    assert metrics.value(lookups, topic="a", partition="0") == 2
    expirations.forget("a", 0)
    text = generate_latest(metrics.registry).decode()
    assert 'topic="a"' in text
    assert 'partition="0",topic="a"' not in text
    assert metrics.value(lookups, topic="a", partition="1") == 1
    assert metrics.value(lookups, topic="b", partition="0") == 1
    assert metrics.value(lookups, topic="", partition="") == 4


def test_share_of_retention_is_in_percent_and_0_without_a_limit() -> None:
    metrics = Metrics()
    shares = RetentionShares(metrics)
    shares.follow("a", 0)
    labels = {"topic": "a", "partition": "0"}
    names = (RETENTION_SIZE, LOCAL_RETENTION_SIZE)
    assert [metrics.value(name, **labels) for name in names] == [0, 0]
    shares.set("a", 0, total=(150, 100), local=(30, 40))
    assert [metrics.value(name, **labels) for name in names] == [150, 75]
    shares.set("a", 0, total=(2, 3), local=(1, 3))
    assert [metrics.value(name, **labels) for name in names] == [66, 33], "whole percents"
    shares.set("a", 0, total=(150, -1), local=(30, 0))
    assert [metrics.value(name, **labels) for name in names] == [0, 0]
    shares.set("a", 0, total=(3, 1), local=(1, 1))
    assert [metrics.value(name, **labels) for name in names] == [300, 100]
    shares.follow("a", 1)
    shares.forget("a", 0)
    text = generate_latest(metrics.registry).decode()
    assert 'partition="0"' not in text
    assert text.count('{partition="1",topic="a"}') == 2


def test_idle_shares_are_those_of_the_pools_at_the_moment_of_the_scrape() -> None:
    """(RemoteLogManagerTasksAvgIdlePercent, RemoteStorageThreadPool)"""
    metrics, clock = Metrics(), SimClock()
    copiers, readers = PeriodicTasks("copiers", 4, clock), BoundedPool("readers", 2, None)
    names = (COPIERS_IDLE, READER_QUEUE, READERS_IDLE)
    publish_copiers(metrics, copiers)
    publish_readers(metrics, readers, lambda: 7)
    assert [metrics.value(name) for name in names] == [1, 0, 1]
    assert metrics.value(READ_AHEAD_MEMORY) == 7
    go, begun = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        assert go.wait(WAIT_S)

    try:
        copiers.schedule("a", work)
        waiting = [readers.submit(work) for _ in range(3)]
        for _ in range(3):
            assert begun.acquire(timeout=WAIT_S)
        assert [metrics.value(name) for name in names] == [0.75, 1, 0]
    finally:
        go.set()
        for future in waiting:
            future.result(WAIT_S)
        copiers.close()
        readers.close()


def test_each_quota_has_its_own_rate_and_throttle_times() -> None:
    metrics, clock = Metrics(), SimClock()
    copy, fetch = (RemoteQuota(1000, QuotaWindows(1000, 2), clock) for _ in range(2))
    publish_quotas(metrics, copy, fetch)
    for quota, size in ((copy, 4000), (fetch, 600)):
        quota.record(size)
        for throttle_s in (size / 1000, size / 2000):
            quota.note_throttled(throttle_s)
    clock.advance(1000)
    assert metrics.value("kafka_server_rlmcopy_byte_rate") == copy.byte_rate() > 0
    assert metrics.value("kafka_server_rlmfetch_byte_rate") == fetch.byte_rate() > 0
    prefix = "kafka_server_remotelogmanager_remote_"
    for kind, average_ms, longest_ms in (("copy", 3000, 4000), ("fetch", 450, 600)):
        assert metrics.value(f"{prefix}{kind}_throttle_time_avg") == average_ms
        assert metrics.value(f"{prefix}{kind}_throttle_time_max") == longest_ms


def test_time_of_a_read_is_in_milliseconds() -> None:
    metrics, clock = Metrics(), SimClock()
    times = ReadTimes(metrics, clock)
    clock.advance(500)
    began_s = times.begin()
    clock.advance(70)
    times.end(began_s)
    assert metrics.value(READ_TIME + "_count") == 1
    assert metrics.value(READ_TIME + "_sum") == pytest.approx(70)
