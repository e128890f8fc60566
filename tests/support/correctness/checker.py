"""Finds anomalies in a history. Their names are those of Jepsen's Kafka workload. Pure.

    inconsistent-offsets     two values at one offset
    duplicate                one value at two offsets of its topic
    lost-write               an acknowledged record was never read, though later ones were
    unseen                   an acknowledged or committed record was never read (after the final
                             polls)
    G1a                      a record that certainly failed, or of an aborted transaction, was read
    precommitted-read        a transaction read its own write
    int-poll-skip            inside one operation a poll leaves out a record between two
    int-nonmonotonic-poll    ... or steps back
    poll-skip                the same from one operation to the next of an assigned consumer
    nonmonotonic-poll
    int-nonmonotonic-send    inside one operation a later send got a lower offset
    nonmonotonic-send        ... or in a later operation of the process

and four that Jepsen's model does not have:

    out-of-range             the log does not have an offset that a reader has reached
    unwritten-read           a read value was written by no client, or its bytes are of no writer
    early-read               a read_committed reader got a record before its commit was requested
    uncopied                 a consume-transform-produce chain has left out a record

Jumps between the polls of a subscribed consumer are not anomalies, because a rebalance causes them.
Writes of two transactions may interleave in a Kafka log, and a reader of both may see any order. So
Jepsen's cycles (G0, G1c) are not searched for.

A read_uncommitted reader sees aborted records too, and a value may be written again after an abort.
So for values written in transactions only read_committed readers count.
"""

from __future__ import annotations

import bisect
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from isotherm.types import Offset, TopicPartition
from tests.support.correctness.history import (
    Isolation,
    Kind,
    Operation,
    Outcome,
    Read,
    Send,
    Value,
)

_NO_STARTS: Mapping[TopicPartition, Offset] = MappingProxyType({})
_NOTHING: Mapping[TopicPartition, Mapping[Offset, Value]] = MappingProxyType({})

Place: TypeAlias = tuple[TopicPartition, Offset]
TopicValue: TypeAlias = tuple[str, Value]


class Anomaly(NamedTuple):
    name: str
    detail: str


class Write(NamedTuple):
    """An attempt to write a value."""

    operation: Operation
    send: Send

    @property
    def place(self) -> Place | None:
        offset = self.send.offset
        return None if offset is None else (self.send.partition, offset)


class Observation(NamedTuple):
    operation: Operation
    read: Read

    @property
    def place(self) -> Place:
        return (self.read.partition, self.read.offset)

    @property
    def of_committed(self) -> bool:
        return self.operation.isolation is Isolation.READ_COMMITTED


class Evidence:
    """A history, indexed by value and by place."""

    def __init__(
        self,
        operations: Sequence[Operation],
        log_starts: Mapping[TopicPartition, Offset],
        erased: Mapping[TopicPartition, Mapping[Offset, Value]] = _NOTHING,
    ) -> None:
        """`log_starts` has the log start offsets of partitions whose first records were deleted on
        purpose, `erased` the records that readers may miss because they were erased."""
        self.operations = operations
        self.log_starts = log_starts
        self.erased_places = {(place, at) for place, records in erased.items() for at in records}
        self.erased_values = {
            (partition.topic, value)
            for partition, records in erased.items()
            for value in records.values()
        }
        self.observations = [
            Observation(operation, read)
            for operation in operations
            for poll in operation.polls()
            for read in poll.reads
        ]
        self.writes: dict[TopicValue, list[Write]] = defaultdict(list)
        for operation in operations:
            for send in operation.sends():
                self.writes[send.partition.topic, send.value].append(Write(operation, send))
        self.seen: dict[TopicValue, list[Observation]] = defaultdict(list)
        for observation in self.observations:
            read = observation.read
            self.seen[read.partition.topic, read.value].append(observation)

    def in_transaction(self, value: TopicValue) -> bool:
        attempts = self.writes.get(value, ())
        return any(attempt.operation.kind is Kind.TXN for attempt in attempts)

    def trusted_observations(self, value: TopicValue) -> list[Observation]:
        """The observations that prove that the value is in its topic to stay."""
        found = self.seen.get(value, [])
        if self.in_transaction(value):
            return [observation for observation in found if observation.of_committed]
        return found

    @functools.cached_property
    def committed_writes(self) -> list[Write]:
        """The writes of operations that succeeded, or of which a reader saw a committed value."""
        return list(self._committed_writes())

    def _committed_writes(self) -> Iterator[Write]:
        for operation in self.operations:
            writes = [Write(operation, send) for send in operation.sends()]
            if operation.outcome is Outcome.OK or (
                operation.kind is Kind.TXN
                and operation.outcome is Outcome.UNKNOWN
                and any(self._seen_at_its_place(write) for write in writes)
            ):
                yield from writes

    def _seen_at_its_place(self, write: Write) -> bool:
        found = self.seen.get((write.send.partition.topic, write.send.value), ())
        return any(o.of_committed and o.place == write.place for o in found)


def check(
    operations: Sequence[Operation],
    log_starts: Mapping[TopicPartition, Offset] = _NO_STARTS,
    erased: Mapping[TopicPartition, Mapping[Offset, Value]] = _NOTHING,
) -> list[Anomaly]:
    """All anomalies of a history. Its operations must be in the order in which they completed.

    `log_starts` has the final log start offsets of partitions whose oldest records expire, `erased`
    the erased records, which readers may have seen or not.
    """
    evidence = Evidence(operations, log_starts, erased)
    return [Anomaly(name, detail) for find in _SEARCHES for name, detail in find(evidence)]


_Found: TypeAlias = Iterator[tuple[str, str]]


def check_copies(operations: Sequence[Operation], source: str, target: str) -> list[Anomaly]:
    """The values that are committed in one topic and not in the other. Call it when all records are
    copied.

    `check` finds values that are there twice.
    """
    evidence = Evidence(operations, _NO_STARTS)
    committed = {
        topic: {
            observation.read.value
            for observation in evidence.observations
            if observation.of_committed and observation.read.partition.topic == topic
        }
        for topic in (source, target)
    }
    left_out = sorted(committed[source] - committed[target])
    return [Anomaly("uncopied", f"value={value} from={source} to={target}") for value in left_out]


def _inconsistent_offsets(evidence: Evidence) -> _Found:
    values: dict[Place, set[Value]] = defaultdict(set)
    for attempts in evidence.writes.values():
        for write in attempts:
            if write.place is not None:
                values[write.place].add(write.send.value)
    for observation in evidence.observations:
        values[observation.place].add(observation.read.value)
    for (partition, offset), found in values.items():
        if len(found) > 1:
            yield "inconsistent-offsets", f"{partition}@{offset} values={sorted(found)}"


def _duplicates(evidence: Evidence) -> _Found:
    for key in evidence.writes.keys() | evidence.seen.keys():
        places = {observation.place for observation in evidence.trusted_observations(key)}
        places |= {
            write.place
            for write in evidence.writes.get(key, ())
            if write.place is not None and write.operation.outcome is Outcome.OK
        }
        if len(places) > 1:
            yield "duplicate", f"topic={key[0]} value={key[1]} at={_places(places)}"


def _lost_and_unseen(evidence: Evidence) -> _Found:
    furthest: dict[tuple[TopicPartition, bool], Offset] = defaultdict(lambda: -1)
    for observation in evidence.observations:
        for committed in {False, observation.of_committed}:
            key = (observation.read.partition, committed)
            furthest[key] = max(furthest[key], observation.read.offset)
    for write in evidence.committed_writes:
        partition, value, offset = write.send
        topic_value = (partition.topic, value)
        if topic_value in evidence.erased_values or evidence.trusted_observations(topic_value):
            continue
        log_start = evidence.log_starts.get(partition)
        if log_start is not None and (offset is None or offset < log_start):
            continue
        by_committed = evidence.in_transaction(topic_value)
        passed = offset is not None and furthest[partition, by_committed] > offset
        name = "lost-write" if passed else "unseen"
        yield name, f"{partition}@{offset} value={value} process={write.operation.process}"


def _aborted_reads(evidence: Evidence) -> _Found:
    for observation in evidence.observations:
        read = observation.read
        attempts = evidence.writes.get((read.partition.topic, read.value), ())
        if not attempts:
            yield "unwritten-read", _reading(observation)
            continue
        if evidence.in_transaction((read.partition.topic, read.value)):
            if not observation.of_committed:
                continue
            here = [write for write in attempts if write.place == observation.place]
            attempts = here or attempts
        if all(write.operation.outcome is Outcome.FAIL for write in attempts):
            yield "G1a", _reading(observation)


def _early_reads(evidence: Evidence) -> _Found:
    for observation in evidence.observations:
        if not observation.of_committed:
            continue
        read = observation.read
        for write in evidence.writes.get((read.partition.topic, read.value), ()):
            operation = write.operation
            if operation is observation.operation:
                yield "precommitted-read", _reading(observation)
            elif (
                write.place == observation.place
                and operation.commit_invoked_s is not None
                and observation.operation.completed_s < operation.commit_invoked_s
            ):
                yield "early-read", _reading(observation)


def _out_of_range(evidence: Evidence) -> _Found:
    places = {place for operation in evidence.operations for place in operation.out_of_range}
    for partition, offset in sorted(places):
        yield "out-of-range", f"{partition}@{offset}"


def _send_order(evidence: Evidence) -> _Found:
    before: dict[tuple[int, TopicPartition], Offset] = {}
    for operation in evidence.operations:
        inside: dict[TopicPartition, Offset] = {}
        for partition, value, offset in operation.sends():
            if offset is None:
                continue
            detail = f"{partition}@{offset} value={value} process={operation.process}"
            if offset <= inside.get(partition, -1):
                yield "int-nonmonotonic-send", f"{detail} after={inside[partition]}"
            elif offset <= before.get((operation.process, partition), -1):
                yield (
                    "nonmonotonic-send",
                    f"{detail} after={before[operation.process, partition]}",
                )
            inside[partition] = offset
        before |= {(operation.process, place): offset for place, offset in inside.items()}


def _poll_order(evidence: Evidence) -> _Found:
    known = {isolation: _known_offsets(evidence, isolation) for isolation in Isolation}
    expected: dict[tuple[int, TopicPartition], Offset] = {}
    subscribed: set[int] = set()
    for operation in evidence.operations:
        process = operation.process
        if operation.kind is Kind.SUBSCRIBE:
            subscribed.add(process)
        elif operation.kind is Kind.ASSIGN:
            subscribed.discard(process)
            expected |= {(process, place): at for place, at in operation.positions.items()}
        inside: dict[TopicPartition, Offset] = {}
        for read in (read for poll in operation.polls() for read in poll.reads):
            partition = read.partition
            there = known[operation.isolation][partition]
            if partition in inside:
                found = _step(read, inside[partition], there)
                yield from _named("int-", found, process)
            elif process not in subscribed:
                found = _step(read, expected.get((process, partition), 0), there)
                yield from _named("", found, process)
            inside[partition] = read.offset + 1
        expected |= {(process, place): at for place, at in inside.items()}


def _step(read: Read, expected: Offset, known: Sequence[Offset]) -> tuple[str, str] | None:
    """The anomaly of a read after which the offset should have been `expected` or, after gaps, a
    later one.

    `known` has the offsets, in order, of records that the reader must see.
    """
    where = f"{read.partition}@{read.offset} expected={expected}"
    if read.offset < expected:
        return "nonmonotonic-poll", where
    skipped = known[bisect.bisect_left(known, expected) : bisect.bisect_left(known, read.offset)]
    return ("poll-skip", f"{where} skipped={_some(skipped)}") if skipped else None


def _named(prefix: str, found: tuple[str, str] | None, process: int) -> _Found:
    if found is not None:
        yield f"{prefix}{found[0]}", f"{found[1]} process={process}"


def _known_offsets(
    evidence: Evidence, isolation: Isolation
) -> defaultdict[TopicPartition, list[Offset]]:
    """The offsets, in order, of records that every reader with this isolation level must see."""
    places = {write.place for write in evidence.committed_writes if write.place is not None}
    if isolation is Isolation.READ_UNCOMMITTED:
        places |= {observation.place for observation in evidence.observations}
    else:
        places |= {o.place for o in evidence.observations if o.of_committed}
    known: defaultdict[TopicPartition, list[Offset]] = defaultdict(list)
    for partition, offset in sorted(places - evidence.erased_places):
        known[partition].append(offset)
    return known


_SEARCHES: tuple[Callable[[Evidence], _Found], ...] = (
    _inconsistent_offsets,
    _duplicates,
    _lost_and_unseen,
    _aborted_reads,
    _early_reads,
    _out_of_range,
    _send_order,
    _poll_order,
)


def _reading(observation: Observation) -> str:
    operation, (partition, offset, value) = observation
    return f"{partition}@{offset} value={value} process={operation.process}"


def _places(places: Iterable[Place]) -> str:
    return _some([f"{partition}@{offset}" for partition, offset in sorted(places)])


def _some(items: Sequence[object]) -> str:
    shown = ",".join(str(item) for item in items[:5])
    return f"[{shown}]" if len(items) <= 5 else f"[{shown},... {len(items)} in all]"
