"""A read replica in front of a broker: its store does not answer for a while, a segment is damaged,
a partition has no leader, or a transaction is open where the tier ends."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from isotherm.broker.cluster import upstream_cluster
from isotherm.broker.read_replica import ReplicaNode
from isotherm.errors import CorruptDataError, RemoteStorageError
from isotherm.protocol.api_keys import ApiKey
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica
from tests.support.raw_client import RawClient

TOPIC = "kept"


def test_a_history_that_could_not_be_read_is_read_once_the_store_answers(
    tiers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def write(*values: bytes) -> None:
        tiers.produce(TOPIC, *((b"k", value) for value in values))

    tiers.create_topic(TOPIC)
    write(b"0", b"1", b"2")
    tiers.expect_remote_ends(TOPIC, 0, 1)
    bucket, upstream = tiers.directory / "bucket", tiers.broker.bootstrap_servers
    with EmbeddedReplica(tmp_path / "scratch", bucket, upstream=upstream) as replica:

        def end_of_tier() -> int:
            partition = replica.node.services.replica_manager.find_partition(TOPIC, None, 0)
            return int(partition.log.log_end_offset)

        def fail(*arguments: object) -> NoReturn:
            raise RemoteStorageError("the store does not answer")

        wait_until(lambda: end_of_tier() == 2, "the first history")
        assert isinstance(replica.node, ReplicaNode)
        monkeypatch.setattr(replica.node._replica.storage, "fetch_index", fail)
        write(b"3", b"4")
        wait_until(lambda: "the store does not answer" in caplog.text, "a failed look")
        assert end_of_tier() == 2
        monkeypatch.undo()
        wait_until(lambda: end_of_tier() == 4, "the history")


def test_clients_get_all_from_the_leader_if_a_new_segment_is_damaged(
    tiers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*values: bytes) -> None:
        tiers.produce(TOPIC, *((b"k", value) for value in values))

    def fail(*arguments: object) -> NoReturn:
        raise CorruptDataError("the segment is damaged")

    tiers.create_topic(TOPIC)
    write(b"0", b"1", b"2")
    tiers.expect_remote_ends(TOPIC, 0, 1)
    bucket, upstream = tiers.directory / "bucket", tiers.broker.bootstrap_servers
    with EmbeddedReplica(tmp_path / "scratch", bucket, upstream=upstream) as replica:
        log = replica.node.services.replica_manager.find_partition(TOPIC, None, 0).log
        wait_until(lambda: log.log_end_offset == 2, "the first history")
        monkeypatch.setattr(upstream_cluster, "read_history", fail)
        write(b"3", b"4")
        wait_until(lambda: log.log_end_offset == 0, "no history")
        consumer = Consumer({"bootstrap.servers": replica.bootstrap_servers, "group.id": "x"})
        place = TopicPartition(TOPIC, 0, 0)
        assert consumer.get_watermark_offsets(place, 300, cached=False) == (0, 5)
        consumer.assign([place])
        messages = [consumer.poll(300) for _ in range(5)]
        assert [message and message.value() for message in messages] == [
            b"0", b"1", b"2", b"3", b"4"
        ]  # fmt: skip
        consumer.close()


def test_the_log_start_stays_while_a_partition_has_no_leader(
    tiers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*values: bytes) -> None:
        tiers.produce(TOPIC, *((b"k", value) for value in values))

    tiers.create_topic(TOPIC, 2)
    write(b"0", b"1", b"2", b"3", b"4")
    tiers.expect_remote_ends(TOPIC, 1, 3)
    # The first segment stays, for the record at offset 1.
    tiers.delete_records(TOPIC, 1)
    bucket, upstream = tiers.directory / "bucket", tiers.broker.bootstrap_servers
    with EmbeddedReplica(tmp_path / "scratch", bucket, upstream=upstream) as replica:

        def history() -> tuple[int, int]:
            log = replica.node.services.replica_manager.find_partition(TOPIC, None, 0).log
            return log.log_start_offset, log.log_end_offset

        wait_until(lambda: history() == (1, 4), "the first history")
        # As of partitions without a leader.
        monkeypatch.setattr(upstream_cluster, "read_offsets", lambda *arguments: {})
        write(b"5", b"6")
        wait_until(lambda: history()[1] == 6, "the next segment")
        assert history() == (1, 6)


def test_the_last_tiered_offset_is_told_though_a_transaction_is_open_there(
    tiers: Any, tmp_path: Path
) -> None:
    tiers.create_topic(TOPIC)
    producer = Producer({**tiers.client, "transactional.id": "ended-behind-the-tier"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(TOPIC, b"0", partition=0)
    producer.flush()
    tiers.produce(TOPIC, (b"k", b"1"))
    # The marker at offset 2 stays in the active segment.
    producer.commit_transaction()
    tiers.expect_remote_ends(TOPIC, 0, 1)
    bucket, upstream = tiers.directory / "bucket", tiers.broker.bootstrap_servers

    def last_tiered(server: str) -> int:
        entry = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -5}
        topics = [{"name": TOPIC, "partitions": [entry]}]
        with closing(RawClient(server)) as client:
            answer = client.ask(
                ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=1, topics=topics
            )
        ((found,),) = (topic.partitions for topic in answer.topics)
        assert found.error_code is ErrorCode.none
        return int(found.offset)

    with EmbeddedReplica(tmp_path / "scratch", bucket, upstream=upstream) as replica:
        partition = replica.node.services.replica_manager.find_partition(TOPIC, None, 0)
        wait_until(lambda: partition.log.log_end_offset == 2, "the history")
        assert partition.log.last_stable_offset == 0
        assert last_tiered(upstream) == 1
        assert last_tiered(replica.bootstrap_servers) == 1
