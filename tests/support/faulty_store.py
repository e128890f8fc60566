"""A RemoteStorageManager that fails on purpose, by script or by seed.

    store = FaultyStore(real, clock=clock, rng=random.Random(7))
    store.fail_next(Operation.COPY, Fault.ERROR_AFTER)      # one lost reply
    store.fail_always(Operation.FETCH_LOG, Fault.ERROR_BEFORE)   # down, until heal()
    store.fail_at_random(Operation.DELETE, Fault.THROTTLED, probability=0.2)

`trace` has every call with its fault. The same seed, script and order of calls give the same trace.
The class has only the methods of the interface, so that any other call is an AttributeError and not
a silent call of the real store.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from isotherm.clock import Clock
from isotherm.errors import (
    CorruptObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageThrottledError,
)
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.types import Position

Answer = TypeVar("Answer")


class Operation(enum.Enum):
    COPY = "copy"
    FETCH_LOG = "fetch_log"
    FETCH_INDEX = "fetch_index"
    DELETE = "delete"


class Fault(enum.Enum):
    """The fault of a call.

    ERROR_BEFORE  the request does not reach the store
    ERROR_AFTER   the store executes it, and the reply is lost
    THROTTLED     the store refuses it because of the request rate
    SHORT_BODY    the object is too short, which the manager detects
    CORRUPT_BODY  the object has its size and one wrong bit, which the manager cannot detect
    MISSING       the store reports that there is no such object
    FULL          writes fail; deletions and reads work
    SLOW          the call takes `slow_s` of the clock's time and then succeeds
    """

    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    THROTTLED = "throttled"
    SHORT_BODY = "short_body"
    CORRUPT_BODY = "corrupt_body"
    MISSING = "missing"
    FULL = "full"
    SLOW = "slow"


_READS = frozenset({Operation.FETCH_LOG, Operation.FETCH_INDEX})
_POSSIBLE = {
    Fault.SHORT_BODY: _READS,
    Fault.CORRUPT_BODY: _READS,
    Fault.MISSING: _READS,
    Fault.FULL: frozenset({Operation.COPY}),
}
"""Faults that only some operations can have."""


class Call(NamedTuple):
    operation: Operation
    segment_id: RemoteLogSegmentId
    fault: Fault | None


class FaultyStore:
    """A RemoteStorageManager (isotherm.remote.storage.api) around another one. Thread-safe.

    A call gets the next fault of its script, else the permanent fault, else a random one.
    """

    def __init__(
        self,
        inner: RemoteStorageManager,
        *,
        clock: Clock,
        rng: random.Random,
        slow_s: float = 10.0,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._scripts: dict[Operation, deque[Fault | None]] = {kind: deque() for kind in Operation}
        self._standing: dict[Operation, Fault] = {}
        self._random: dict[Operation, list[tuple[Fault, float]]] = {kind: [] for kind in Operation}
        self.trace: list[Call] = []

    def fail_next(self, operation: Operation, *faults: Fault | None) -> None:
        """Set the faults of the next calls, one for each. None lets a call succeed."""
        for fault in faults:
            _check_possible(operation, fault)
        with self._lock:
            self._scripts[operation].extend(faults)

    def fail_always(self, operation: Operation, fault: Fault) -> None:
        _check_possible(operation, fault)
        with self._lock:
            self._standing[operation] = fault

    def fail_at_random(self, operation: Operation, fault: Fault, probability: float) -> None:
        _check_possible(operation, fault)
        with self._lock:
            self._random[operation].append((fault, probability))

    def heal(self) -> None:
        """Remove all faults, so that every later call succeeds."""
        with self._lock:
            for kind in Operation:
                self._scripts[kind].clear()
                self._random[kind].clear()
            self._standing.clear()

    def faults_injected(self) -> int:
        with self._lock:
            return sum(call.fault is not None for call in self.trace)

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return self._call(
            Operation.COPY, metadata, lambda: self._inner.copy_log_segment_data(metadata, data)
        )

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        return self._call(
            Operation.FETCH_LOG,
            metadata,
            lambda: self._inner.fetch_log_segment(metadata, start_position, end_position_inclusive),
            lambda found: memoryview(self._damaged(found)),
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._call(
            Operation.FETCH_INDEX,
            metadata,
            lambda: self._inner.fetch_index(metadata, index_type),
            self._damaged,
        )

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._call(
            Operation.DELETE, metadata, lambda: self._inner.delete_log_segment_data(metadata)
        )

    def close(self) -> None:
        self._inner.close()

    def _call(
        self,
        operation: Operation,
        metadata: RemoteLogSegmentMetadata,
        perform: Callable[[], Answer],
        damage: Callable[[Answer], Answer] | None = None,
    ) -> Answer:
        fault = self._next_fault(operation, metadata)
        error = _REFUSALS.get(fault) if fault is not None else None
        if error is not None:
            raise error(f"injected {operation.value} segment={metadata.segment_id}")
        if fault is Fault.SLOW:
            self._clock.wait(threading.Event(), self._slow_s)
        answer = perform()
        if fault is Fault.ERROR_AFTER:
            raise RemoteStorageError(f"injected lost reply segment={metadata.segment_id}")
        if fault is Fault.CORRUPT_BODY and damage is not None:
            return damage(answer)
        return answer

    def _next_fault(self, operation: Operation, metadata: RemoteLogSegmentMetadata) -> Fault | None:
        with self._lock:
            fault: Fault | None = None
            if self._scripts[operation]:
                fault = self._scripts[operation].popleft()
            elif operation in self._standing:
                fault = self._standing[operation]
            else:
                for candidate, probability in self._random[operation]:
                    if self._rng.random() < probability:
                        fault = candidate
                        break
            self.trace.append(Call(operation, metadata.segment_id, fault))
            return fault

    def _damaged(self, content: bytes | memoryview) -> bytes:
        """The content with one bit flipped. Empty content is unchanged."""
        damaged = bytearray(content)
        if damaged:
            with self._lock:
                bit = self._rng.randrange(len(damaged) * 8)
            damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)


_REFUSALS: dict[Fault, type[Exception]] = {
    Fault.ERROR_BEFORE: RemoteStorageError,
    Fault.THROTTLED: RemoteStorageThrottledError,
    Fault.SHORT_BODY: CorruptObjectError,
    Fault.MISSING: RemoteResourceNotFoundError,
    Fault.FULL: RemoteStorageError,
}


def _check_possible(operation: Operation, fault: Fault | None) -> None:
    if fault is not None and operation not in _POSSIBLE.get(fault, Operation):
        raise ValueError(f"{operation.value} cannot meet this fault fault={fault.value}")
