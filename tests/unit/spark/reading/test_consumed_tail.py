"""The tail is consumed to its end offset, with a timeout, where only librdkafka can connect."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from isotherm.errors import InvalidTimestampError, RejectedError, RequestTimedOutError
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.reading import consumed_tail
from isotherm.spark.row_schema import arrow_schema, full_schema, schema_of
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

READ = BrokerRead(TopicPartition("a", 1), 5, 8)
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
        *polls: list[Message],
        poll_timeout_ms: int = 120_000,
        clock: SimClock | None = None,
        schema: pa.Schema = SCHEMA,
    ) -> list[int]:
        clock = clock or SimClock()
        monkeypatch.setattr(consumed_tail, "Consumer", lambda _: FakeConsumer(clock, list(polls)))
        batches = consumed_tail.consume_tail(
            READ,
            {},
            schema,
            clock=clock,
            batch_bytes=1,
            poll_timeout_ms=poll_timeout_ms,
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


def test_header_that_the_client_cannot_give_names_its_record(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Message):
        def headers(self) -> list | None:
            if self.offset() == 6:
                raise SystemError("returned a result with an exception set")
            return None

    monkeypatch.setattr(consumed_tail, "Message", Odd)
    schema = arrow_schema(full_schema(include_headers=True))
    with pytest.raises(RejectedError, match="not UTF-8 partition=a-1 offset=6"):
        read([message(5), message(6), message(7)], schema=schema)
