"""Folds and follows one partition of the metadata topic for its user partitions.

Invariants:
- a user partition gets each of its events once, in order of offset: the events below the end of the
  fold that follows its assignment are in the fold, and are skipped while the topic is followed;
- a user partition takes part only from that fold on;
- only `open` opens a user partition. The manager calls it once the partition's metadata is whole:
  the fold alone may lack an event that a crash left in the audit topic alone;
- a future of `expect` is done once the reader is past its offset, or fails with the reader.

Source: Kafka ConsumerTask, with one position per metadata partition.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

from isotherm.errors import (
    CorruptMetadataError,
    IsothermError,
    NotEnoughMemoryError,
    RemoteResourceNotFoundError,
    RequestTimedOutError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.folding.fold import COLUMNAR_RECORDS_MIN, fold_metadata_partition
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import (
    FoldedPartition,
    RemotePartitionMetadataStore,
)
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.events import decode_record, next_offset
from isotherm.types import Offset, TopicIdPartition

_logger = logging.getLogger(__name__)

SKIPPED_RECORDS = "isotherm_remote_log_metadata_skipped_records"
SKIPPED_RECORDS_TEXT = "Metadata records that could not be applied and were skipped."


@dataclass(slots=True)
class _User:
    """A user partition. Its events before `next_offset` are in its cache; None before its fold."""

    next_offset: Offset | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class _Expected:
    offset: Offset
    deadline_s: float
    future: Future[None]


class MetadataPartitionReader:
    """Thread-safe. `poll` runs in one thread at a time; the other methods never wait for it."""

    def __init__(
        self,
        topic: MetadataTopic,
        partition: int,
        store: RemotePartitionMetadataStore,
        settings: TopicBasedSettings,
        metrics: Metrics,
        listener: Callable[[Iterable[TopicIdPartition]], None] | None = None,
        *,
        columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    ) -> None:
        """`listener` gets the user partitions whose events were applied. For
        `columnar_records_min` see `fold_metadata_partition`."""
        self._topic = topic
        self._listener = listener
        self._partition = partition
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._columnar_records_min = columnar_records_min
        self._polling = threading.Lock()
        self._lock = threading.Lock()
        self._position: Offset = 0
        self._users: dict[TopicIdPartition, _User] = {}
        # A copy of them for the polls, made after each change.
        self._active: dict[TopicIdPartition, _User] | None = None
        # Those among them that are not folded yet, and those that are folded and not open, in
        # order. An idle poll looks at none.
        self._fresh: dict[TopicIdPartition, None] = {}
        self._unopened: dict[TopicIdPartition, None] = {}
        self._expected: deque[_Expected] = deque()
        self._failure: CorruptMetadataError | None = None

    @property
    def failure(self) -> CorruptMetadataError | None:
        """The record that stopped this reader, under the policy "refuse"."""
        return self._failure

    @property
    def position(self) -> Offset:
        """Every record below it is applied."""
        return self._position

    @property
    def is_idle(self) -> bool:
        """No user partition is left."""
        return not self._users

    def awaits_records(self) -> bool:
        """Whether a poll has nothing to do unless records lie behind `position`."""
        with self._lock:
            return not (self._fresh or self._unopened or self._expected)

    def assign(self, user: TopicIdPartition) -> None:
        """Fold the whole metadata partition for `user` at the next poll."""
        with self._lock:
            if user not in self._users:
                self._store.open(user)
                self._users[user] = _User()
                self._fresh[user] = None
                self._active = None
                self._failure = None

    def unassign(self, user: TopicIdPartition) -> None:
        with self._lock:
            if self._users.pop(user, None) is not None:
                self._fresh.pop(user, None)
                self._unopened.pop(user, None)
                self._active = None
                self._store.drop(user)
            orphaned = self._expected if not self._users else deque()
            self._expected = deque() if not self._users else self._expected
        # Without the lock: callbacks of the futures run in this thread, and may call the reader.
        _fail(
            orphaned,
            RemoteResourceNotFoundError(f"partition is not followed any more partition={user}"),
        )

    def serves(self, user: TopicIdPartition) -> bool:
        with self._lock:
            return user in self._users

    def has_read(self, offset: Offset) -> bool:
        """Whether the record at `offset` is applied."""
        return offset < self._position

    def note_read_to(self, end_offset: Offset) -> None:
        """Note that a poll has read everything below `end_offset`. Compaction may have left no
        record before it that would show this."""
        # A poll that runs meanwhile would set the position back.
        with self._polling:
            self._position = max(self._position, end_offset)
            self._complete_expected()

    def has_folded(self, user: TopicIdPartition) -> bool:
        """Whether the cache of `user` has all stored events."""
        with self._lock:
            return user in self._users and self._users[user].next_offset is not None

    def fold_apart(self, user: TopicIdPartition) -> FoldedPartition | None:
        """Fold the stored state of a partition that is not followed here; None if its deletion is
        finished. Raises CorruptMetadataError for a corrupt record; then this reader has failed,
        too.
        """
        selects = {user}.__contains__
        folded = fold_metadata_partition(self._topic, self._partition, selects, self._report)
        if folded.deleted:
            return None
        return next(iter(folded.partitions), FoldedPartition(RemoteLogMetadataCache(user), None))

    def unopened(self) -> list[TopicIdPartition]:
        """The user partitions that are folded and not open yet."""
        with self._lock:
            return list(self._unopened)

    def open(self, names: Iterable[TopicIdPartition]) -> None:
        """Open these partitions: their caches have all stored events."""
        with self._lock:
            for name in names:
                user, cache = self._users.get(name), self._store.get(name)
                if user is None or user.next_offset is None:
                    continue  # unassigned meanwhile, perhaps assigned again and not folded yet
                user.is_open = True
                self._unopened.pop(name, None)
                if cache is not None:
                    cache.mark_initialized()

    def check_room(self) -> None:
        """Raise NotEnoughMemoryError if too many events wait to be read back."""
        if len(self._expected) >= self._settings.remote_log_metadata_pending_writes_max:
            raise NotEnoughMemoryError(
                "too many metadata events wait to be read back"
                f" metadata_partition={self._partition} count={len(self._expected)}"
            )

    def expect(self, offset: Offset, deadline_s: float) -> Future[None]:
        """A future that is done once the event at `offset` has been applied."""
        future: Future[None] = Future()
        with self._lock:
            is_followed = bool(self._users)
            if is_followed:
                self._expected.append(_Expected(offset, deadline_s, future))
        if not is_followed:
            future.set_exception(
                RemoteResourceNotFoundError(
                    f"metadata partition is not followed any more partition={self._partition}"
                )
            )
        return future

    def expire(self, now_s: float) -> None:
        """Fail the futures whose deadline has passed."""
        with self._lock:
            late = deque(item for item in self._expected if item.deadline_s <= now_s)
            self._expected = deque(item for item in self._expected if item.deadline_s > now_s)
        _fail(
            late,
            RequestTimedOutError(
                f"metadata event was not read back in time metadata_partition={self._partition}"
            ),
        )

    def close(self, error: IsothermError) -> None:
        with self._lock:
            orphaned, self._expected = self._expected, deque()
        _fail(orphaned, error)

    def poll(self, *, wait: bool = True) -> bool:
        """Read to the end of the topic and apply its records.

        Returns False, having read nothing, if another thread polls and `wait` is False. Raises
        errors of the topic itself; the records before stay applied, and the next poll continues.
        """
        if not self._polling.acquire(blocking=wait):
            return False
        try:
            while self._failure is None and self._read_run():
                pass
        finally:
            self._polling.release()
        return True

    def _read_run(self) -> bool:
        """Read and apply one run of records; False at the end of the topic."""
        try:
            active = self._activate_users()
        except CorruptMetadataError:
            return False
        if not active:
            self._complete_expected()
            return False
        position = self._position
        records = self._topic.read(
            self._partition, position, self._settings.remote_log_metadata_read_max_bytes
        )
        changed: set[TopicIdPartition] = set()
        for record in records:
            try:
                self._apply(record, active, changed)
            except CorruptMetadataError as error:
                if not self._passes_over(error):
                    return False
        self._position = next_offset(records, position)
        if changed and self._listener is not None:
            self._listener(changed)
        self._complete_expected()
        return bool(records)

    def _activate_users(self) -> dict[TopicIdPartition, _User]:
        """The users that take part in this run; folds the topic for the new ones among them.

        Raises CorruptMetadataError if a record prevents the fold; then this reader has failed.
        """
        with self._lock:
            if self._active is None:
                self._active = dict(self._users)
            users, fresh = self._active, set(self._fresh)
        if fresh:
            folded = fold_metadata_partition(
                self._topic,
                self._partition,
                fresh.__contains__,
                self._report,
                columnar_records_min=self._columnar_records_min,
            )
            # Before `next_offset` is set, which states that the cache has the events
            # (`has_folded`).
            self._store.install(folded)
            with self._lock:
                for name in fresh:
                    users[name].next_offset = folded.next_offset
                    # Unassigned meanwhile, perhaps assigned again: then it is fresh again.
                    if self._users.get(name) is users[name]:
                        del self._fresh[name]
                        self._unopened[name] = None
            # The older users may be ahead of the fold: it ends where the replica ends now. The
            # lower position makes every user get its records; `_apply` skips those it has.
            is_alone = len(fresh) == len(users)
            ahead = folded.next_offset if is_alone else self._position
            self._position = min(ahead, folded.next_offset)
        return users

    def _report(self, error: CorruptMetadataError) -> None:
        if not self._passes_over(error):
            raise error

    def _apply(
        self,
        record: MetadataTopicRecord,
        active: dict[TopicIdPartition, _User],
        changed: set[TopicIdPartition],
    ) -> None:
        change = decode_record(record)
        partition = self._store.partition_of(change)
        user = active.get(partition) if partition is not None else None
        if partition is None or user is None or user.next_offset is None:
            return
        if record.offset < user.next_offset:
            return
        changed.add(partition)
        self._store.apply_record(record, change)
        user.next_offset = record.offset + 1

    def _passes_over(self, error: CorruptMetadataError) -> bool:
        if self._settings.remote_log_metadata_corrupt_record_policy == "skip":
            _logger.error("metadata record skipped: %s", error)
            self._metrics.counter(SKIPPED_RECORDS, SKIPPED_RECORDS_TEXT).inc()
            return True
        _logger.error("metadata partition is not followed any further: %s", error)
        with self._lock:
            self._failure = error
            orphaned, self._expected = self._expected, deque()
        _fail(orphaned, error)
        return False

    def _complete_expected(self) -> None:
        with self._lock:
            done = [item for item in self._expected if item.offset < self._position]
            self._expected = deque(item for item in self._expected if item.offset >= self._position)
        for item in done:
            _complete(item.future)


def _complete(future: Future[None]) -> None:
    try:
        future.set_result(None)
    except InvalidStateError:
        _logger.debug("a metadata write was given up before it was read back")


def _fail(expected: deque[_Expected], error: IsothermError) -> None:
    for item in expected:
        try:
            item.future.set_exception(error)
        except InvalidStateError:
            _logger.debug("a metadata write was given up before it failed")
