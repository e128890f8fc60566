"""Workers that read: consumers with manual assignment, and members of a group."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from isotherm.types import Offset, TopicPartition
from tests.support.correctness.history import (
    Isolation,
    Kind,
    Operation,
    Outcome,
    Poll,
    Read,
)
from tests.support.correctness.workload import (
    EVENTS,
    REQUEST_TIMEOUT_S,
    Workload,
    decode_value,
)

POLL_RECORDS_MAX = 500
POLL_TIMEOUT_S = 0.2
POLLS_PER_LIFE_MAX = 60
SESSION_TIMEOUT_MS = 6_000

# Errors if the log does not have the offset that a consumer has reached.
_OUT_OF_RANGE = frozenset(
    {
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
    }
)


class Ends:
    """The ends that a consumer has met in its partitions. Not thread-safe."""

    def __init__(self) -> None:
        self.reached: set[TopicPartition] = set()
        """Partitions at the end of their log."""
        self.out_of_range: dict[TopicPartition, Offset] = {}
        """Offsets that the log does not have. There must never be any."""

    def clear(self) -> None:
        self.reached.clear()
        self.out_of_range.clear()


class AssignedReader:
    """A process that reads given partitions from given offsets on."""

    def __init__(self, workload: Workload, process: int, isolation: Isolation) -> None:
        self.process = process
        self.ends = Ends()
        """The ends since the last `assign`."""
        self.positions: dict[TopicPartition, Offset] = {}
        self._workload = workload
        self._isolation = isolation
        self._consumer = new_consumer(
            workload, isolation, group_id="unused", auto_offset_reset="error"
        )

    def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        self.positions = dict(positions)
        self.ends.clear()
        self._assign_positions()
        self._workload.history.add(
            Operation(
                self.process,
                Kind.ASSIGN,
                Outcome.OK,
                positions=MappingProxyType(dict(positions)),
                completed_s=self._workload.clock.monotonic_s(),
            )
        )

    def poll(self, count_max: int = POLL_RECORDS_MAX, timeout_s: float = POLL_TIMEOUT_S) -> Poll:
        """Poll once. The caller adds the result to the history."""
        reads = []
        for message in self._consumer.consume(count_max, timeout_s):
            read = to_read(message, self.ends)
            if read is not None:
                self.positions[read.partition] = read.offset + 1
                reads.append(read)
        return Poll(tuple(reads))

    def record_poll(self) -> int:
        """Poll once as an operation of its own. Returns the number of records."""
        invoked_s = self._workload.clock.monotonic_s()
        poll = self.poll()
        _add_poll(self._workload, self.process, self._isolation, (poll,), invoked_s, self.ends)
        self._pass_over_holes()
        return len(poll.reads)

    def _pass_over_holes(self) -> None:
        """Continue after an offset that is not in the log, so that the records after it are
        checked too.
        """
        if not self.ends.out_of_range:
            return
        for partition, offset in self.ends.out_of_range.items():
            self.positions[partition] = offset + 1
        self.ends.out_of_range.clear()
        # librdkafka has stopped the partition, so a seek would fail. Assign again instead.
        self._assign_positions()

    def _assign_positions(self) -> None:
        self._consumer.assign([ClientPartition(*each, at) for each, at in self.positions.items()])

    def close(self) -> None:
        self._consumer.close()


def run_assigned_reader(
    workload: Workload, rng: random.Random, isolation: Isolation, topic: str = EVENTS
) -> None:
    """Run one reader after the other.

    Some continue where the last one ended, others read from the start.
    """
    positions = dict.fromkeys(workload.partitions(topic), 0)
    while not workload.stopping.is_set():
        reader = AssignedReader(workload, workload.history.new_process(), isolation)
        reader.assign(positions)
        for _ in range(rng.randrange(1, POLLS_PER_LIFE_MAX)):
            if workload.stopping.is_set():
                break
            reader.record_poll()
        from_the_start = rng.random() < 0.3
        positions = dict.fromkeys(positions, 0) if from_the_start else reader.positions
        reader.close()


def read_to_the_end(
    workload: Workload,
    starts: Mapping[TopicPartition, Offset],
    isolation: Isolation,
    timeout_s: float,
) -> None:
    """Run the final polls: read all records from `starts` on, up to the ends or the time limit."""
    reader = AssignedReader(workload, workload.history.new_process(), isolation)
    reader.assign(starts)
    deadline_s = workload.clock.monotonic_s() + timeout_s
    while len(reader.ends.reached) < len(starts) and workload.clock.monotonic_s() < deadline_s:
        reader.record_poll()
    reader.close()


def run_group_member(
    workload: Workload, rng: random.Random, isolation: Isolation, group_settings: Mapping[str, Any]
) -> None:
    """Join a group, read, commit sometimes, leave or die, and join again."""
    while not workload.stopping.is_set():
        process = workload.history.new_process()
        rebalances: list[object] = []
        consumer = new_consumer(workload, isolation, auto_offset_reset="earliest", **group_settings)
        consumer.subscribe(
            [EVENTS],
            on_assign=lambda _, to: rebalances.append(to),  # noqa: B023 - of this life
            on_revoke=lambda _, to: rebalances.append(to),  # noqa: B023
        )
        workload.history.add(
            Operation(process, Kind.SUBSCRIBE, Outcome.OK, completed_s=workload.clock.monotonic_s())
        )
        for _ in range(rng.randrange(10, 2 * POLLS_PER_LIFE_MAX)):
            if workload.stopping.is_set():
                break
            rebalances.clear()
            invoked_s = workload.clock.monotonic_s()
            ends = Ends()
            reads = [to_read(m, ends) for m in consumer.consume(POLL_RECORDS_MAX, POLL_TIMEOUT_S)]
            poll = tuple(read for read in reads if read is not None)
            # Offsets from before and after a rebalance need not be consecutive.
            polls = [(Poll((read,)),) for read in poll] if rebalances else [(Poll(poll),)]
            for each in polls:
                _add_poll(workload, process, isolation, each, invoked_s, ends)
            if ends.out_of_range:
                break
            if rng.random() < 0.3:
                _commit(consumer)
        close_member(consumer)


def close_member(consumer: Consumer) -> None:
    """Leave the group and close, after all callbacks of the subscription were served.

    If `close` itself serves a revocation, librdkafka may wait for itself for ever and hold the
    interpreter's lock (its issue 4041).
    """
    consumer.unsubscribe()
    consumer.poll(0)
    while consumer.assignment():
        consumer.poll(POLL_TIMEOUT_S)
    consumer.close()


def _commit(consumer: Consumer) -> None:
    try:
        consumer.commit(asynchronous=True)
    except KafkaException as raised:
        # Nothing has been read yet.
        if raised.args[0].code() != KafkaError._NO_OFFSET:
            raise


def new_consumer(workload: Workload, isolation: Isolation, **settings: Any) -> Consumer:
    """A consumer that reports the ends of partitions, and commits only on request."""
    return Consumer(
        workload.client_config(
            isolation_level=isolation.value,
            enable_auto_commit=False,
            enable_partition_eof=True,
            check_crcs=True,
            fetch_wait_max_ms=100,
            socket_timeout_ms=REQUEST_TIMEOUT_S * 1000,
            **settings,
        )
    )


def to_read(message: Message, ends: Ends) -> Read | None:
    """The read of a message, or None if it is not a record.

    If it reports an end, that is added to `ends`.
    """
    topic, number, offset = message.topic(), message.partition(), message.offset()
    if topic is None or number is None or offset is None:
        return None  # an error of the whole client: its broker is down
    partition = TopicPartition(topic, number)
    error = message.error()
    if error is None:
        ends.reached.discard(partition)
        return Read(partition, offset, decode_value(message.value()))
    if error.code() == KafkaError._PARTITION_EOF:
        ends.reached.add(partition)
    elif error.code() in _OUT_OF_RANGE:
        ends.out_of_range[partition] = offset
    return None


def _add_poll(
    workload: Workload,
    process: int,
    isolation: Isolation,
    polls: tuple[Poll, ...],
    invoked_s: float,
    ends: Ends,
) -> None:
    workload.history.add(
        Operation(
            process,
            Kind.POLL,
            Outcome.OK,
            polls,
            out_of_range=tuple(ends.out_of_range.items()),
            isolation=isolation,
            invoked_s=invoked_s,
            completed_s=workload.clock.monotonic_s(),
        )
    )


def log_starts(
    workload: Workload, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset]:
    """The log start offset of each partition, from the broker."""
    consumer = new_consumer(workload, Isolation.READ_UNCOMMITTED, group_id="unused")
    starts = {
        partition: consumer.get_watermark_offsets(ClientPartition(*partition), REQUEST_TIMEOUT_S)[0]
        for partition in partitions
    }
    consumer.close()
    return starts
