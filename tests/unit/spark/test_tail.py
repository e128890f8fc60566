"""The tail is read from brokers to its end offset, with a timeout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from isotherm.errors import InvalidTimestampError, RequestTimedOutError
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.reading import tail
from isotherm.spark.rows import arrow_schema, schema_of
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

READ = BrokerRead(TopicPartition("a", 1), 5, 8)
BROKER = {"path": "s3://b", "subscribe": "a", "kafka.bootstrap.servers": "h:9092"}
SCHEMA = arrow_schema(schema_of(["offset", "timestamp"]))


class FakeConsumer:
    """A consumer that returns one list of messages after the other, then nothing. A poll that
    returns fewer messages than asked for takes its whole timeout."""

    def __init__(self, clock: SimClock, polls: list[list[Message]]) -> None:
        self._clock = clock
        self._polls = polls

    def assign(self, partitions: list) -> None:
        assert [(p.topic, p.partition, p.offset) for p in partitions] == [("a", 1, 5)]

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        messages = self._polls.pop(0) if self._polls else []
        if len(messages) < count:
            self._clock.advance(round(timeout_s * 1000))
        return messages

    def close(self) -> None:
        pass


def message(offset: int, timestamp_ms: int = 1) -> Message:
    timestamp = (TIMESTAMP_CREATE_TIME, timestamp_ms)
    return Message(topic="a", partition=1, offset=offset, value=b"v", timestamp=timestamp)


Read = Callable[..., list[int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The offsets read from these polls."""

    def run(
        *polls: list[Message], poll_timeout_ms: int = 120_000, clock: SimClock | None = None
    ) -> list[int]:
        clock = clock or SimClock()
        monkeypatch.setattr(tail, "Consumer", lambda _: FakeConsumer(clock, list(polls)))
        batches = tail.read_tail(
            READ,
            {},
            SCHEMA,
            clock=clock,
            batch_bytes=1,
            poll_timeout_ms=poll_timeout_ms,
            fail_on_data_loss=True,
        )
        return [offset for batch in batches for offset in batch.column(0).to_pylist()]

    return run


def test_tail_is_read_to_its_end_and_not_beyond(read: Read) -> None:
    assert read([message(5)], [], [message(7), message(8)]) == [5, 7]


def test_a_tail_with_a_record_for_each_offset_is_not_waited_for(read: Read) -> None:
    clock = SimClock()
    started_s = clock.monotonic_s()
    assert read([message(5), message(6), message(7)], clock=clock) == [5, 6, 7]
    assert clock.monotonic_s() == started_s


def test_silent_brokers_are_given_up_after_the_poll_timeout(read: Read) -> None:
    words = "topic=a partition=1 start_offset=5 end_offset=8 reached=6 timeout_ms=400"
    with pytest.raises(RequestTimedOutError, match=words):
        read([message(5)], poll_timeout_ms=400)
    # Each record restarts the timeout.
    assert read([message(5)], [], [], [], [message(6)], [], [], [message(7)], poll_timeout_ms=400)


def test_timestamp_beyond_what_a_row_can_hold_names_the_record(read: Read) -> None:
    words = f"topic a partition 1 offset 6 has timestamp value {2**62} that overflows"
    with pytest.raises(InvalidTimestampError, match=words):
        read([message(5), message(6, 2**62)])


@pytest.mark.parametrize(
    ("given", "group"),
    [({}, "isotherm-relation"), ({"groupIdPrefix": "g"}, "g"), ({"kafka.group.id": "own"}, "own")],
)
def test_consumers_have_the_group_id_that_is_asked_for_and_commit_nothing(
    given: dict[str, str], group: str
) -> None:
    options = parse_options(BROKER | given)
    properties = tail.consumer_properties(
        options.kafka_properties, options.group_id_prefix, options.isolation
    )
    assert properties["group.id"] == group
    assert properties["enable.auto.commit"] is False
    assert properties["auto.offset.reset"] == "error"
    assert properties["isolation.level"] == "read_uncommitted"
