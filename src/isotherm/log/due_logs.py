"""Which logs the background tasks have to look at, and from when on.

    a log changes ──► note ──► take, watch, look ──► note(due) if time alone makes it due
                        ▲                    │
                        └── next change ◄────┘ nothing noted: the log is idle

Ten thousand idle logs cost a task nothing. A change of a log that a task has looked at since the
change before is noted for every task; further changes until a task looks again cost a comparison
(`PartitionLog.watch`).
"""

from __future__ import annotations

import heapq
import threading

from isotherm.types import TimestampMs, TopicPartition

AT_ONCE: TimestampMs = 0

_STALE_ENTRIES_MIN = 64
"""Entries of the queue that may be out of date, besides as many as there are logs."""


class DueLogs:
    """The logs that one task has to look at. Thread-safe. Its lock is taken after all others.

    Holds at most one time for each partition. A log that is deleted stays until it is due.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed: dict[TopicPartition, None] = {}
        # Those that only time makes due. An entry of the queue whose time is not the partition's
        # is out of date.
        self._due_ms: dict[TopicPartition, TimestampMs] = {}
        self._queue: list[tuple[TimestampMs, TopicPartition]] = []

    def note(self, topic_partition: TopicPartition, due_ms: TimestampMs = AT_ONCE) -> None:
        """Return the log from the first `take` at this time or later. The earliest time counts."""
        with self._lock:
            if topic_partition in self._changed:
                return
            if due_ms == AT_ONCE:
                self._due_ms.pop(topic_partition, None)
                self._changed[topic_partition] = None
                return
            earlier_ms = self._due_ms.get(topic_partition)
            if earlier_ms is not None and earlier_ms <= due_ms:
                return
            self._due_ms[topic_partition] = due_ms
            heapq.heappush(self._queue, (due_ms, topic_partition))
            if len(self._queue) > 2 * len(self._due_ms) + _STALE_ENTRIES_MIN:
                self._queue = [(due, partition) for partition, due in self._due_ms.items()]
                heapq.heapify(self._queue)

    def take(self, now_ms: TimestampMs) -> list[TopicPartition]:
        """Remove and return the logs that are due."""
        with self._lock:
            due, self._changed = list(self._changed), {}
            while self._queue and self._queue[0][0] <= now_ms:
                due_ms, topic_partition = heapq.heappop(self._queue)
                if self._due_ms.get(topic_partition) == due_ms:
                    del self._due_ms[topic_partition]
                    due.append(topic_partition)
            return due


class LogWork:
    """The due logs of each background task. Thread-safe."""

    def __init__(self) -> None:
        self.flush = DueLogs()
        self.retention = DueLogs()
        self.file_deletion = DueLogs()
        self.checkpoint = DueLogs()
        self.high_watermark_checkpoint = DueLogs()
        self._after_changes = (
            self.flush,
            self.retention,
            self.checkpoint,
            self.high_watermark_checkpoint,
        )

    def changed(self, topic_partition: TopicPartition) -> None:
        """Note a log that is new or has changed for the tasks that depend on its offsets, segments
        and configuration. `file_deletion` is told of each file instead."""
        for due in self._after_changes:
            due.note(topic_partition)
