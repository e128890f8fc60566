"""The history of clients' requests and the answers, from which `checker` finds anomalies.

A history is a sequence of operations of numbered processes. A process is the life of one client,
which does one operation after the other. A new client is a new process. Operations and their
outcomes are those of Jepsen's Kafka workload (`jepsen.tests.kafka`). Its `:info`, an operation with
an unknown outcome, is `Outcome.UNKNOWN` here.

Values are numbers. A producing process writes each number once to one topic, so that a value that
is read identifies the attempts to write it.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from isotherm.types import Offset, TopicPartition

Value: TypeAlias = int

# A reader records this value for bytes that no writer makes.
UNREADABLE_VALUE: Value = -1


class Kind(enum.Enum):
    SEND = "send"
    """Records outside a transaction."""
    POLL = "poll"
    TXN = "txn"
    """Sends, and polls in between, of one transaction."""
    ASSIGN = "assign"
    """The process starts to read the named partitions from the named offsets."""
    SUBSCRIBE = "subscribe"
    """A group starts to assign partitions and offsets to the process."""
    CRASH = "crash"
    """The client was dropped without a close. This is the process's last operation."""


class Outcome(enum.Enum):
    OK = "ok"
    FAIL = "fail"
    """The operation did not happen: the broker refused it, or the transaction was aborted."""
    UNKNOWN = "unknown"


class Isolation(enum.Enum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Send(NamedTuple):
    """A written record. `offset` is that of the acknowledgement, None without one."""

    partition: TopicPartition
    value: Value
    offset: Offset | None = None


class Read(NamedTuple):
    """A record that a poll returned."""

    partition: TopicPartition
    offset: Offset
    value: Value


class Poll(NamedTuple):
    """The records of one poll, in the order in which the client returned them."""

    reads: tuple[Read, ...]


MicroOperation: TypeAlias = Send | Poll

_NOTHING: Mapping[TopicPartition, Offset] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a process. All times are seconds of the same monotonic clock."""

    process: int
    kind: Kind
    outcome: Outcome
    micro_operations: tuple[MicroOperation, ...] = ()
    isolation: Isolation = Isolation.READ_COMMITTED
    """The isolation level of its polls."""
    positions: Mapping[TopicPartition, Offset] = field(default_factory=lambda: _NOTHING)
    """For ASSIGN, the start offset of each partition."""
    invoked_s: float = 0.0
    completed_s: float = 0.0
    commit_invoked_s: float | None = None
    """For TXN, the time of the commit request. None if there was none."""
    error: str = ""
    out_of_range: tuple[tuple[TopicPartition, Offset], ...] = ()
    """The positions of its polls that the broker refused because they are outside the log."""

    def sends(self) -> tuple[Send, ...]:
        return tuple(step for step in self.micro_operations if isinstance(step, Send))

    def polls(self) -> tuple[Poll, ...]:
        return tuple(step for step in self.micro_operations if isinstance(step, Poll))


class History:
    """The operations in the order in which they completed. Any thread may add operations."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._next_process = 0
        self._lock = threading.Lock()

    def new_process(self) -> int:
        with self._lock:
            self._next_process += 1
            return self._next_process

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._operations.append(operation)

    def operations(self) -> tuple[Operation, ...]:
        with self._lock:
            return tuple(self._operations)
