"""Consumers at offsets that no segment of the remote tier holds: an error, and never a jump."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.tools import CONSOLE_CONSUMER, run_tools_to_status
from tests.support.conditions import wait_until

pytestmark = pytest.mark.oracle

TOPIC = "holed"
COUNT = 14
DEADLINE_S = 300


# A time that retention.ms=-1 keeps.
START_MS = 1_700_000_000_000


class Hole:
    """The segment after the first is hidden from readers, as if no metadata named it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, config=TIERED_TOPIC)])[TOPIC].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(COUNT):
            # No two records share a millisecond, because a look-up by time finds the first with it.
            producer.produce(TOPIC, bytes(300_000), key=str(number), timestamp=START_MS + number)
            producer.flush()
        services = broker.node.services
        partition = services.replica_manager.find_partition(TOPIC, None, 0)
        reader = services.remote_log_manager.readers._reader  # type: ignore[union-attr]
        self._metadata: RemoteLogMetadataManager = reader._metadata
        wait_until(lambda: partition.log.local_log_start_offset >= COUNT - 3, "tiered")
        segments = self._metadata.list_remote_log_segments(partition.topic_id_partition)
        _, self.lost, self.after, *_ = segments
        self._find, self._list = (
            self._metadata.remote_log_segment_metadata,
            self._metadata.list_remote_log_segments,
        )
        replaced: Any = self._metadata
        replaced.remote_log_segment_metadata = lambda *asked: self._unless_lost(self._find(*asked))
        replaced.list_remote_log_segments = lambda *asked: [
            each for each in self._list(*asked) if self._unless_lost(each)
        ]

    def _unless_lost(self, segment: Any) -> Any:
        is_lost = segment is not None and segment.segment_id == self.lost.segment_id
        return None if is_lost else segment

    def mend(self) -> None:
        restored: Any = self._metadata
        restored.remote_log_segment_metadata = self._find
        restored.list_remote_log_segments = self._list


def read_on(consumer: Consumer, until: Callable[[list[int]], bool]) -> tuple[list[int], set[int]]:
    """Offsets and error codes, until an error or `until`."""
    offsets: list[int] = []
    while not until(offsets):
        message = consumer.poll(DEADLINE_S)
        assert message is not None, offsets
        error = message.error()
        if error is not None:
            return offsets, {error.code()}
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)
    return offsets, set()


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_librdkafka_stays_at_a_hole_until_it_is_mended(
    start_broker: Callable[..., EmbeddedBroker], policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    hole = Hole(broker)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": policy,
            "auto.offset.reset": policy,
            "fetch.error.backoff.ms": 50,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        offsets, errors = read_on(consumer, lambda found: len(found) == COUNT)
        assert offsets == list(range(hole.lost.start_offset))
        assert errors == {KafkaError.INVALID_MSG}
        for _ in range(3):
            assert read_on(consumer, bool) == ([], {KafkaError.INVALID_MSG})
        logged = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
        ]
        assert len(logged) == 1
        assert f"topic={TOPIC} partition=0 offset={hole.lost.start_offset} before=" in logged[0]
        times = [TopicPartition(TOPIC, 0, hole.lost.max_timestamp_ms)]
        with pytest.raises(KafkaException, match="INVALID_MSG"):
            consumer.offsets_for_times(times, timeout=DEADLINE_S)
        hole.mend()
        (found,) = consumer.offsets_for_times(times, timeout=DEADLINE_S)
        assert found.offset == hole.lost.end_offset_inclusive
        last: list[int] = []
        while not last:
            last, _ = read_on(consumer, lambda found: bool(found) and found[-1] == COUNT - 1)
        assert last == list(range(hole.lost.start_offset, COUNT))
    finally:
        consumer.close()


def test_librdkafka_goes_on_behind_a_hole_when_records_are_deleted(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = start_broker()
    hole = Hole(broker)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "deleted",
            "auto.offset.reset": "earliest",
            "fetch.error.backoff.ms": 50,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, hole.lost.start_offset)])
        assert read_on(consumer, bool) == ([], {KafkaError.INVALID_MSG})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        wanted = [TopicPartition(TOPIC, 0, hole.after.start_offset)]
        admin.delete_records(wanted)[wanted[0]].result()
        behind: list[int] = []
        while not behind:
            behind, _ = read_on(consumer, lambda found: bool(found) and found[-1] == COUNT - 1)
        assert behind == list(range(hole.after.start_offset, COUNT))
    finally:
        consumer.close()


def console_consumer(broker: EmbeddedBroker, policy: str, count: int = COUNT) -> list[str]:
    """A console consumer in a group with the policy's name.

    It prints the keys, which are the offsets.
    """
    return [
        *(CONSOLE_CONSUMER, f"--bootstrap-server={broker.bootstrap_servers}"),
        *(f"--topic={TOPIC}", f"--group={policy}", f"--max-messages={count}"),
        *("--timeout-ms=20000", f"--command-property=auto.offset.reset={policy}"),
        *("--formatter-property=print.key=true", "--formatter-property=print.value=false"),
    ]


def test_java_goes_on_at_a_hole_that_is_mended(
    start_broker: Callable[..., EmbeddedBroker], kafka_tools: Path
) -> None:
    broker = start_broker()
    hole = Hole(broker)
    at_hole = [TopicPartition(TOPIC, 0, hole.lost.start_offset)]
    committer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "earliest"})
    committer.commit(offsets=at_hole, asynchronous=False)
    committer.close()
    rest = [str(number) for number in range(hole.lost.start_offset, COUNT)]
    consume = console_consumer(broker, "earliest", len(rest))
    ((_, text),) = run_tools_to_status(consume)
    assert "corrupt message" in text.lower()
    hole.mend()
    ((_, text),) = run_tools_to_status(consume)
    assert [line for line in text.splitlines() if line.isdigit()] == rest


@pytest.mark.nightly
def test_java_stays_at_a_hole_until_records_are_deleted(
    start_broker: Callable[..., EmbeddedBroker], kafka_tools: Path
) -> None:
    broker = start_broker()
    hole = Hole(broker)

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for policy in ("earliest", "latest"):
        committer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": policy})
        committer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
        committer.close()
    (earliest, latest) = run_tools_to_status(
        console_consumer(broker, "earliest"), console_consumer(broker, "latest")
    )
    before = {str(number) for number in range(hole.lost.start_offset)}
    for _, text in (earliest, latest):
        assert {line for line in text.splitlines() if line.isdigit()} == before
        assert "corrupt message" in text.lower()
    wanted = [TopicPartition(TOPIC, 0, hole.after.start_offset)]
    admin.delete_records(wanted)[wanted[0]].result()
    behind = [str(number) for number in range(hole.after.start_offset, COUNT)]
    ((_, text),) = run_tools_to_status(console_consumer(broker, "earliest", len(behind)))
    assert [line for line in text.splitlines() if line.isdigit()] == behind
