"""How KafkaMetadataTopic uses its client: streams, budgets, time-outs and errors.

The client is a fake that answers as a script says, to inject what a cluster rarely does. The
conformance tests use a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from isotherm.errors import (
    RemoteStorageError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.topic import kafka_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic

TOPIC = "mine"
TIMEOUT_S = 0.3  # three waits of the client


class Told:
    """A message of the client: a record, or an error."""

    def __init__(
        self,
        offset: int | None,
        value: bytes | None = b"v",
        *,
        key: bytes | None = None,
        error: int | None = None,
    ) -> None:
        self._offset, self._value, self._key = offset, value, key
        self._error = None if error is None else KafkaError(error)

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 77


def end_at(offset: int) -> Told:
    return Told(offset, error=KafkaError._PARTITION_EOF)


class ScriptedConsumer:
    """Answers `consume` by the script, then with nothing. Refuses calls that it does not model."""

    def __init__(self, end: int, script: list[list[Told]]) -> None:
        self.end = end
        self.script = script
        self.calls: list[tuple[Any, ...]] = []
        self.described: Any = SimpleNamespace(error=None, partitions={0: None, 1: None})
        self.failure: int | None = None

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        if self.failure is not None:
            raise KafkaException(KafkaError(self.failure))
        assert (place.topic, timeout) == (TOPIC, TIMEOUT_S)
        return 3, self.end

    def assign(self, places: list[Any]) -> None:
        (place,) = places
        assert place.topic == TOPIC
        self.calls.append(("assign", place.partition, place.offset))

    def unassign(self) -> None:
        self.calls.append(("unassign",))

    def consume(self, count: int, timeout: float) -> list[Told]:
        self.calls.append(("consume", count))
        return self.script.pop(0) if self.script else []

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.calls.append(("list_topics",))
        return SimpleNamespace(topics={topic: self.described})

    def close(self) -> None:
        self.calls.append(("close",))


class ScriptedProducer:
    """Delivers the records at these offsets; None is one that stays undelivered, an error code one
    that fails."""

    def __init__(self, outcomes: list[int | KafkaError | None]) -> None:
        self.outcomes = outcomes
        self.sent: list[tuple[Any, ...]] = []
        self.properties: Mapping[str, Any] = {}

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        *,
        timestamp: int,
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        self.sent.append((topic, partition, key, value, timestamp))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, KafkaError):
            on_delivery(outcome, Told(None))
        elif outcome is not None:
            on_delivery(None, Told(outcome))

    def flush(self, timeout: float) -> None:
        assert timeout == TIMEOUT_S


class Scripted:
    """A topic over a scripted client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer = ScriptedConsumer(0, [])
        self.producer = ScriptedProducer([])
        monkeypatch.setattr(kafka_topic, "check_brokers", lambda *_, **__: None)
        monkeypatch.setattr(kafka_topic, "Consumer", lambda _: self.consumer)
        monkeypatch.setattr(kafka_topic, "Producer", self._producer)
        self.topic = KafkaMetadataTopic(
            {"bootstrap.servers": "b:1"}, topic=TOPIC, request_timeout_s=TIMEOUT_S
        )

    def _producer(self, properties: Mapping[str, Any]) -> ScriptedProducer:
        self.producer.properties = properties
        return self.producer

    def read(
        self, start: int, *answers: list[Told], end: int, max_bytes: int = 2**20, partition: int = 0
    ) -> list[int]:
        """The offsets that a read returns."""
        self.consumer.calls.clear()
        self.consumer.end, self.consumer.script = end, list(answers)
        return [each.offset for each in self.topic.read(partition, start, max_bytes)]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch)


def test_read_ends_at_the_end_of_the_partition_and_stops_the_client(scripted: Scripted) -> None:
    assert scripted.read(5, [Told(5), Told(7)], [Told(8)], end=9) == [5, 7, 8]
    assert scripted.consumer.calls == [
        ("assign", 0, 5),
        ("consume", 4),
        ("consume", 1),
        ("unassign",),
    ]


def test_read_at_the_end_asks_for_nothing(scripted: Scripted) -> None:
    assert scripted.read(9, end=9) == []
    assert scripted.consumer.calls == []
    assert scripted.topic.offsets(0) == (3, 9)


def test_client_is_asked_for_500_records_at_most(scripted: Scripted) -> None:
    scripted.read(0, [Told(offset) for offset in range(500)], [Told(500)], end=501)
    assert [call for call in scripted.consumer.calls if call[0] == "consume"] == [
        ("consume", 500),
        ("consume", 1),
    ]


def test_read_within_its_budget_is_continued_as_a_stream(scripted: Scripted) -> None:
    first = [Told(0, b"xx"), Told(1, None), Told(2, b"x")]
    assert scripted.read(0, [Told(0, b"xx"), Told(1, None)], first[2:], end=9, max_bytes=3) == [
        0, 1, 2
    ]  # fmt: skip
    assert ("unassign",) not in scripted.consumer.calls
    assert scripted.read(3, [Told(3, b"xxx")], end=9, max_bytes=3) == [3]
    assert scripted.consumer.calls == [("consume", 6)]
    assert scripted.read(2, [Told(2, b"xxx")], end=9, max_bytes=3) == [2]
    assert scripted.consumer.calls[0] == ("assign", 0, 2)
    assert scripted.read(3, [Told(3, b"xxx")], end=9, max_bytes=3, partition=1) == [3]
    assert scripted.consumer.calls[0] == ("assign", 1, 3)


def test_end_need_not_be_the_offset_of_a_record(scripted: Scripted) -> None:
    """The partition may end with offsets of transaction markers, or of records that are compacted
    away."""
    assert scripted.read(5, [Told(5), end_at(9)], end=9) == [5]
    assert scripted.consumer.calls[-1] == ("unassign",)
    assert scripted.read(5, [end_at(9)], end=9) == []


def test_end_that_is_older_than_the_last_appends_ends_nothing(scripted: Scripted) -> None:
    assert scripted.read(5, [Told(5), Told(6)], [end_at(6)], [Told(7)], end=8) == [5, 6, 7]
    assert scripted.consumer.calls.count(("consume", 1)) == 2


def test_read_without_an_answer_is_given_up(scripted: Scripted) -> None:
    with pytest.raises(RequestTimedOutError, match=f"topic={TOPIC} partition=0 timeout_s=0.3"):
        scripted.read(5, [], [Told(5)], [], [], end=9)
    assert [call for call in scripted.consumer.calls if call[0] == "consume"] == [
        ("consume", 4), ("consume", 4), ("consume", 3), ("consume", 3), ("consume", 3)
    ]  # fmt: skip
    assert scripted.read(5, [], [Told(5)], [], [Told(6)], end=7) == [5, 6]
    assert scripted.consumer.calls[0] == ("assign", 0, 5)


def test_read_with_late_answers_goes_on(scripted: Scripted) -> None:
    """The time-out is of one answer: together the waits are longer."""
    answers = [[], [], [Told(5)], [], [], [Told(6)], [], [], [Told(7)]]
    assert scripted.read(5, *answers, end=8) == [5, 6, 7]


def test_report_of_an_older_end_is_no_answer(scripted: Scripted) -> None:
    with pytest.raises(RequestTimedOutError):
        scripted.read(5, [], [end_at(5)], [], end=9)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopicOrPartitionError),
        (KafkaError._UNKNOWN_TOPIC, UnknownTopicOrPartitionError),
        (KafkaError._UNKNOWN_PARTITION, UnknownTopicOrPartitionError),
        (KafkaError._TRANSPORT, RemoteStorageError),
    ],
)
def test_error_of_the_client_is_named_and_ends_the_stream(
    scripted: Scripted, code: int, expected: type[Exception]
) -> None:
    scripted.read(0, [Told(0)], end=9, max_bytes=1)
    with pytest.raises(expected, match=f"topic={TOPIC} partition=0"):
        scripted.read(1, [Told(1), Told(None, error=code)], end=9)
    scripted.read(1, [Told(1)], end=9, max_bytes=1)
    assert scripted.consumer.calls[0] == ("assign", 0, 1)
    scripted.consumer.failure = code
    with pytest.raises(expected):
        scripted.topic.offsets(0)


def test_record_is_as_the_client_gave_it(scripted: Scripted) -> None:
    scripted.consumer.end = 2
    scripted.consumer.script = [[Told(0, None, key=b"k"), Told(1, b"v")]]
    tombstone, event = scripted.topic.read(1, 0, 100)
    assert (tombstone.partition, tombstone.key, tombstone.value) == (1, b"k", None)
    assert (event.offset, event.key, event.value, event.timestamp_ms) == (1, None, b"v", 77)


def test_columns_of_several_answers_are_one(scripted: Scripted) -> None:
    scripted.consumer.end = 3
    scripted.consumer.script = [[Told(0)], [end_at(1)], [Told(2, key=b"k")]]
    columns = scripted.topic.read_columns(0, 0, 100)
    assert (columns.offset.tolist(), columns.next_offset) == ([0, 2], 3)
    assert columns.key.to_pylist() == [None, b"k"]
    assert scripted.topic.read_columns(0, 3, 100).next_offset == 3


def test_columns_end_where_the_read_ended(scripted: Scripted) -> None:
    """The partition ends with a transaction marker."""
    scripted.consumer.end = 4
    scripted.consumer.script = [[Told(0), Told(2)], [end_at(4)]]
    columns = scripted.topic.read_columns(0, 0, 100)
    assert (columns.offset.tolist(), columns.next_offset) == ([0, 2], 4)
    scripted.consumer.script = [[end_at(4)]]
    columns = scripted.topic.read_columns(0, 3, 100)
    assert (columns.offset.tolist(), columns.next_offset) == ([], 4)


def test_number_of_partitions_is_asked_for_once(scripted: Scripted) -> None:
    scripted.consumer.described.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(UnknownTopicOrPartitionError):
        _ = scripted.topic.partition_count
    scripted.consumer.described.error = None
    assert (scripted.topic.partition_count, scripted.topic.partition_count) == (2, 2)
    assert scripted.consumer.calls == [("list_topics",)] * 2


def test_close_closes_the_client_once(scripted: Scripted) -> None:
    scripted.topic.close()
    scripted.topic.close()
    assert scripted.consumer.calls == [("close",)]
    assert scripted.topic.is_current(0)


# Appends


RECORDS = [NewMetadataRecord(b"k", b"v", 5), NewMetadataRecord(None, None, 6)]


def test_append_tells_the_first_offset_of_its_records(scripted: Scripted) -> None:
    """Deliveries may be reported in any order."""
    scripted.producer.outcomes = [12, 11]
    assert scripted.topic.append_all(1, RECORDS) == 11
    assert scripted.producer.sent == [(TOPIC, 1, b"k", b"v", 5), (TOPIC, 1, None, None, 6)]
    assert scripted.producer.properties["acks"] == "all"
    assert scripted.producer.properties["enable.idempotence"] is True
    scripted.producer.outcomes = [0]
    assert scripted.topic.append(0, b"k", b"w", 7) == 0


def test_append_that_fails_for_one_record_fails(scripted: Scripted) -> None:
    scripted.producer.outcomes = [11, KafkaError(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(RemoteStorageError, match=f"topic={TOPIC} partition=1"):
        scripted.topic.append_all(1, RECORDS)


def test_append_that_is_not_acknowledged_in_time_fails(scripted: Scripted) -> None:
    scripted.producer.outcomes = [11, None]
    with pytest.raises(RequestTimedOutError, match=f"topic={TOPIC} partition=1 timeout_s=0.3"):
        scripted.topic.append_all(1, RECORDS)
