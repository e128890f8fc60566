"""Kafka's integration scenarios of tiered storage, those that one broker can play.

Source: storage/src/test/java/org/apache/kafka/tiered/storage/integration. Where Kafka's scenario
moves a leader, the broker restarts, which also starts a new epoch.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

K = [(b"k%d" % number, b"v%d" % number) for number in range(20)]


def test_offload_and_consume_from_leader(tiers: Any) -> None:
    """OffloadAndConsumeFromLeaderTest: one and two batches per segment."""
    tiers.create_topic("a")
    tiers.create_topic("b", 2)
    tiers.produce("a", *K[:3])
    tiers.expect_remote_ends("a", 0, 1)
    tiers.expect_earliest_local("a", 2)
    assert tiers.consume("a", 3) == K[:3]
    assert tiers.fetches("a") >= 2
    tiers.produce("b", *K[:5])
    tiers.expect_remote_ends("b", 1, 3)
    tiers.expect_earliest_local("b", 4)
    tiers.stop()
    tiers.start()
    assert tiers.consume("b", 5) == K[:5]
    tiers.produce("a", *K[3:5])
    tiers.expect_earliest_local("a", 4)
    assert tiers.consume("a", 4, offset=1) == K[1:5]


def test_delete_segments_by_retention_size(tiers: Any) -> None:
    check_deletion_of_segments(tiers, retention_bytes="1")


def test_delete_segments_by_retention_time(tiers: Any) -> None:
    check_deletion_of_segments(tiers, retention_ms="1")


def check_deletion_of_segments(tiers: Any, **limit: str) -> None:
    """BaseDeleteSegmentsTest: k3 is from the future, so that time does not take its segment."""
    tiers.create_topic("a")
    now = int(time.time() * 1000)
    future = now + 1_800_000
    tiers.produce("a", *K[:4], timestamps=[now, now, now, future])
    tiers.expect_remote_ends("a", 0, 1, 2)
    tiers.expect_earliest_local("a", 3)
    tiers.alter_topic("a", local_retention_bytes="-2", local_retention_ms="-2", **limit)
    tiers.expect_deletions("a", 3)
    tiers.expect_log_start("a", 3)
    assert tiers.epochs("a") == [(0, 3)]
    assert tiers.consume("a", 1, offset=3) == K[3:4]
    assert tiers.fetches("a") == 0
    tiers.expect_empty_remote("a")


def test_delete_segments_due_to_log_start_offset_breach(tiers: Any) -> None:
    tiers.create_topic("a", 2)
    tiers.produce("a", *K[:5])
    tiers.expect_remote_ends("a", 1, 3)
    tiers.expect_earliest_local("a", 4)
    tiers.delete_records("a", 3)
    tiers.expect_deletions("a", 1)
    assert tiers.epochs("a") == [(0, 3)]
    assert tiers.consume("a", 2, offset=3) == K[3:5]
    tiers.stop()
    tiers.start()
    tiers.produce("a", *K[5:9])
    # The restart left an entry in the active segment's time index, so 4 is alone in its segment.
    tiers.expect_remote_ends("a", 4, 6)
    tiers.expect_earliest_local("a", 7)
    tiers.delete_records("a", 7)
    tiers.expect_deletions("a", 3)
    assert tiers.epochs("a") == [(1, 7)]
    assert tiers.consume("a", 2, offset=7) == K[7:9]


def test_delete_topic(tiers: Any) -> None:
    tiers.create_topic("a", partitions=2)
    for partition in (0, 1):
        tiers.produce("a", *K[:3], partition=partition)
        tiers.expect_earliest_local("a", 2, partition)
    tiers.delete_topic("a")
    tiers.expect_empty_remote("a")
    tiers.expect_deletions("a", 4)


def test_disable_remote_log_on_topic(tiers: Any) -> None:
    tiers.create_topic("a")
    tiers.produce("a", *K[:3])
    tiers.expect_earliest_local("a", 2)
    tiers.alter_topic(
        "a",
        remote_log_copy_disable="true",
        local_retention_bytes="-2",
        local_retention_ms="-2",
    )
    assert tiers.consume("a", 3) == K[:3]
    tiers.produce("a", *K[3:6])
    assert tiers.consume("a", 6) == K[:6]
    tiers.expect_remote_ends("a", 0, 1)
    tiers.alter_topic("a", remote_storage_enable="false", remote_log_delete_on_disable="true")
    tiers.expect_empty_remote("a")
    tiers.expect_log_start("a", 2)
    assert tiers.consume("a", 4, offset=2) == K[2:6]


def test_enable_remote_log_on_topic(tiers: Any) -> None:
    tiers.create_topic("a", remote_storage_enable="false", local_retention_bytes="-2")
    tiers.produce("a", *K[:3])
    assert tiers.remote_objects("a") == []
    tiers.alter_topic("a", remote_storage_enable="true", local_retention_bytes="1")
    tiers.expect_remote_ends("a", 0, 1)
    tiers.expect_earliest_local("a", 2)
    tiers.produce("a", *K[3:5])
    tiers.expect_earliest_local("a", 4)
    assert tiers.consume("a", 5) == K[:5]


def test_enable_copying_again_goes_on_where_it_stopped(tiers: Any) -> None:
    tiers.create_topic("a")
    tiers.produce("a", *K[:3])
    tiers.expect_earliest_local("a", 2)
    tiers.alter_topic("a", remote_log_copy_disable="true", local_retention_bytes="-2")
    tiers.produce("a", *K[3:6])
    tiers.alter_topic("a", remote_log_copy_disable="false", local_retention_bytes="1")
    tiers.expect_remote_ends("a", 0, 1, 2, 3, 4)
    tiers.expect_earliest_local("a", 5)
    assert tiers.consume("a", 6) == K[:6]


@pytest.mark.parametrize("file", ["recovery-point-offset-checkpoint", ".kafka_cleanshutdown"])
def test_fetch_from_leader_with_corrupted_checkpoint(tiers: Any, file: str) -> None:
    """FetchFromLeaderWithCorruptedCheckpointTest erases them all; here also one by one."""
    tiers.create_topic("a")
    tiers.produce("a", *K[:7])
    tiers.expect_earliest_local("a", 6)
    tiers.stop()
    (tiers.directory / "log" / file).unlink()
    tiers.start()
    assert tiers.consume("a", 7) == K[:7]
    tiers.produce("a", *K[7:10])
    tiers.expect_earliest_local("a", 9)
    assert tiers.consume("a", 10) == K[:10]


def test_list_offsets(tiers: Any) -> None:
    tiers.create_topic("a")
    t = int(time.time() * 1000) - 10_000
    tiers.produce("a", *K[:3], timestamps=[t, t + 1, t + 2])
    tiers.expect_earliest_local("a", 2)
    tiers.stop()
    tiers.start()
    tiers.produce("a", *K[3:6], timestamps=[t + 3, t + 4, t + 5])
    tiers.expect_earliest_local("a", 5)
    assert offset_of(tiers, OffsetSpec.earliest()) == (0, 0)
    assert offset_of(tiers, OffsetSpec.latest()) == (6, 1)
    assert offset_of(tiers, OffsetSpec.max_timestamp()) == (5, 1)
    assert offset_of(tiers, OffsetSpec.for_timestamp(t - 1)) == (0, 0)
    for number, epoch in ((0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)):
        assert offset_of(tiers, OffsetSpec.for_timestamp(t + number)) == (number, epoch)
    assert offset_of(tiers, OffsetSpec.for_timestamp(t + 6))[0] == -1
    tiers.delete_records("a", 3)
    assert offset_of(tiers, OffsetSpec.earliest()) == (3, 1)
    tiers.delete_records("a", 5)
    tiers.expect_empty_remote("a")
    assert offset_of(tiers, OffsetSpec.earliest()) == (5, 1)
    assert offset_of(tiers, OffsetSpec.for_timestamp(t)) == (5, 1)


def offset_of(tiers: Any, spec: OffsetSpec) -> tuple[int, int]:
    asked = TopicPartition("a", 0)
    found = tiers.admin.list_offsets({asked: spec})[asked].result(300)
    return found.offset, found.leader_epoch


def test_offload_and_txn_consume_from_leader(tiers: Any) -> None:
    """Six segments without aborted transactions: each is fetched, and their empty transaction
    indexes are not. Kafka allows itself 12 fetches of each kind."""
    tiers.create_topic("a")
    tiers.produce("a", *K[:7])
    tiers.expect_remote_ends("a", 0, 1, 2, 3, 4, 5)
    tiers.expect_earliest_local("a", 6)
    assert tiers.consume("a", 7, isolation_level="read_committed") == K[:7]
    counts = tiers.store.counts("a")
    assert counts["transaction"] == 0
    assert counts["fetch"] <= 12
    assert counts["offset"] <= 12
    assert counts["timestamp"] <= 12


def test_partitions_expand(tiers: Any) -> None:
    tiers.create_topic("a")
    tiers.produce("a", *K[:3])
    tiers.expect_earliest_local("a", 2)
    tiers.expand("a", 3)
    for partition in (1, 2):
        tiers.produce("a", *K[:3], partition=partition)
        tiers.expect_earliest_local("a", 2, partition)
        assert tiers.consume("a", 3, partition=partition) == K[:3]
    tiers.produce("a", *K[3:5])
    tiers.expect_earliest_local("a", 4)
    assert tiers.consume("a", 5) == K[:5]


def test_roll_and_offload_active_segment(tiers: Any) -> None:
    tiers.create_topic("a", local_retention_ms="1")
    tiers.produce("a", *K[:4])
    tiers.expect_earliest_local("a", 4)
    tiers.expect_remote_ends("a", 0, 1, 2, 3)
    assert tiers.consume("a", 4) == K[:4]
    tiers.produce("a", *K[4:6])
    assert tiers.consume("a", 6) == K[:6]


def test_transactions_with_tiered_store(tiers: Any) -> None:
    """TransactionsWithTieredStoreTest, its basic case: committed and aborted transactions with
    records and markers in several remote segments."""
    tiers.create_topic("a")
    producer = Producer(
        {**tiers.client, "transactional.id": "t", "transaction.timeout.ms": 900_000, "linger.ms": 0}
    )
    producer.init_transactions(300)
    committed = []
    for number in range(8):
        producer.begin_transaction()
        for part in range(2):
            value = b"%d-%d" % (number, part)
            producer.produce("a", value, b"k", 0)
            assert producer.flush(300) == 0
            if number % 2 == 0:
                committed.append((b"k", value))
        if number % 2 == 0:
            producer.commit_transaction(300)
        else:
            producer.abort_transaction(300)
    end = tiers.log("a").log_end_offset
    assert end == 24
    tiers.expect_earliest_local("a", end - 1)
    found = tiers.consume("a", len(committed), isolation_level="read_committed")
    assert found == committed
    everything = tiers.consume("a", 16, isolation_level="read_uncommitted")
    assert len(everything) == 16
    # One for each ABORT marker in the remote tier; the last marker is local.
    assert tiers.store.counts("a")["transaction"] == 3
