"""Appends metadata events in the form of the feature level.

At level 0 an event is one record of the metadata topic. At level 1 it is two batches, in this
order:

    audit topic       the event
    metadata topic    the whole state that it leads to, under its key; tombstones before and after
                      it

So the audit topic has every state that the metadata topic ever had. A batch is appended only if its
log still ends where it did when the event was decided (docs/decisions/0103). Hence, however many
brokers write, an event is recorded only if all events before it are applied and none was recorded
since the decision.

A crash or an error may leave an event in the audit topic alone. Then it is the last one of its
audit partition, and the metadata partition ends where it did when the event was decided. Any broker
applies it before the next event, or when it reads the partition from the start
(docs/decisions/0026). That is right for every event: each is published only when what it states has
happened, or may as well begin.

Tombstones that do not fit into one batch are left to the cleanup manager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.clock import Clock
from isotherm.errors import (
    CorruptMetadataError,
    EventOvertakenError,
    LogEndMovedError,
    RemoteStorageNotReadyError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import ConditionalMetadataTopic, NewMetadataRecord
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.topic.keyed_writes import (
    KeyedWrite,
    refuse_finish_of_deleted,
)
from isotherm.remote.metadata.wire.keys import MetadataKey
from isotherm.remote.metadata.wire.serde import (
    KeyedEvent,
    RemoteLogSegmentMetadataSnapshot,
    decode_event,
    encode_event,
    encode_keyed_event,
)
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import Offset, TimestampMs

_logger = logging.getLogger(__name__)

LOST_TOMBSTONES = "isotherm_remote_log_metadata_lost_tombstones"
LOST_TOMBSTONES_TEXT = "Tombstones that could not be appended; the cleanup manager does it later."

_READ_MAX_BYTES = 1  # one record is read in any case
_TOMBSTONES_MAX = 1000
"""The most tombstones of one event: they are well below one batch."""


@dataclass(frozen=True, slots=True)
class KeyedMetadata:
    """The parts that level 1 needs: the audit topic, which has as many partitions as the metadata
    topic, and the present level of a metadata partition (it rises when the partition has been
    migrated). `check_writable` raises a RetriableError while nothing may be written at level 1."""

    audit_topic: ConditionalMetadataTopic
    level: Callable[[int], int]
    check_writable: Callable[[], None] = lambda: None


class Ends(NamedTuple):
    """The ends of an audit partition and of its metadata partition, with every audited event
    applied."""

    audit: Offset
    state: Offset


class LastAudited(NamedTuple):
    """The last event of an audit partition that ends at `end`.

    `event` is None if it is known to be applied, or if the last record is not one. The metadata
    partition ended at `decided_at` when the event was decided: the event's state is there, or
    belongs there. `decided_at` is None if an earlier version wrote the event. The metadata
    partition ends at `state_end` or later.
    """

    end: Offset
    state_end: Offset
    decided_at: Offset | None = None
    event: KeyedEvent | None = None


class MetadataEventWriter:
    """One per metadata manager. The caller holds `lock(number)` around every other call for a
    metadata partition, so that writes to it come one after the other, each after the caches have
    read back the one before."""

    def __init__(
        self,
        topic: ConditionalMetadataTopic,
        keyed: KeyedMetadata | None,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._topic = topic
        self._keyed = keyed
        self._clock = clock
        self._metrics = metrics
        # Reentrant: a caller publishes within `exclusively`.
        self._locks = [threading.RLock() for _ in range(topic.partition_count)]
        self._torn: set[int] = set()
        self._settled: dict[int, Ends] = {}

    def lock(self, number: int) -> threading.RLock:
        return self._locks[number]

    def is_keyed(self, number: int) -> bool:
        return self._keyed is not None and self._keyed.level(number) > 0

    def is_torn(self, number: int) -> bool:
        """Whether a write has failed, so that the audit topic may have an event that the metadata
        topic lacks."""
        return number in self._torn

    def note_settled(self, number: int, ends: Ends) -> None:
        """Note that every event audited below these ends is applied."""
        self._settled[number] = ends
        self._torn.discard(number)

    def write_event(self, number: int, event: KeyedEvent, cache: RemoteLogMetadataCache) -> Offset:
        """Level 0: append `event`; returns its offset. Every event is appended, as in Kafka, except
        the end of a copy whose segment is deleted or being deleted."""
        refuse_finish_of_deleted(event, cache)
        return self._topic.append(number, None, encode_event(event), self._clock.now_ms())

    def audit(self, number: int, planned: KeyedWrite, ends: Ends) -> None:
        """Level 1, first step: record an event that was decided on the records below `ends`.

        Raises EventOvertakenError, with nothing recorded, if another event was recorded meanwhile.
        After any other error of the topic the metadata partition may be torn.
        """
        assert self._keyed is not None
        self._keyed.check_writable()
        record = NewMetadataRecord(
            planned.key.encode(),
            encode_keyed_event(planned.event),
            self._clock.now_ms(),
            decided_at=ends.state,
        )
        try:
            self._keyed.audit_topic.append_at(number, ends.audit, [record])
        except LogEndMovedError as error:
            raise EventOvertakenError(
                "another metadata event was recorded meanwhile"
                f" metadata_partition={number} key={planned.key}"
            ) from error
        except BaseException:
            # The outcome is unknown: the event may be in the audit topic, or still get there.
            self._torn.add(number)
            raise

    def append_state(self, number: int, planned: KeyedWrite, end_offset: Offset) -> Offset:
        """Level 1, second step: append the state to the metadata partition, which must end at
        `end_offset`; returns its new end. Raises LogEndMovedError, with nothing appended, if it
        ends elsewhere. The partition is torn after any error."""
        assert self._keyed is not None
        now_ms = self._clock.now_ms()
        kept, lost = planned.tombstones[:_TOMBSTONES_MAX], planned.tombstones[_TOMBSTONES_MAX:]
        # One batch, all or none: a tombstone by itself would hide that a state is missing
        # (docs/decisions/0103).
        records = [
            *self._tombstones(planned.buried_first, now_ms),
            NewMetadataRecord(planned.key.encode(), encode_keyed_event(planned.state), now_ms),
            *self._tombstones(kept, now_ms),
        ]
        try:
            # Again: an interrupted event is applied without `audit`.
            self._keyed.check_writable()
            self._topic.append_at(number, end_offset, records)
        # Of any kind: the event is in the audit topic, its state perhaps not.
        except BaseException:
            self._torn.add(number)
            raise
        if lost:
            self._metrics.counter(LOST_TOMBSTONES, LOST_TOMBSTONES_TEXT).inc(len(lost))
            _logger.info("tombstones are left for later key=%s count=%d", planned.key, len(lost))
        return end_offset + len(records)

    def last_audited(self, number: int) -> LastAudited:
        """Read the last event of an audit partition. Raises RemoteStorageNotReadyError if a replica
        of the audit topic does not have it yet."""
        assert self._keyed is not None
        topic = self._keyed.audit_topic
        start, end = topic.offsets(number)
        settled = self._settled.get(number, Ends(0, 0))
        # A replica that is behind, or a deposed leader, shows an earlier end.
        if end < settled.audit:
            raise RemoteStorageNotReadyError(
                "an audit partition ends before its last known event"
                f" metadata_partition={number} end={end} known={settled.audit}"
            )
        # No read if the partition is empty, or ends where its last settled event ended.
        if end in (start, settled.audit):
            return LastAudited(end, settled.state)
        # The audit topic is not compacted, so its last offset has a record.
        records = topic.read(number, end - 1, _READ_MAX_BYTES)
        if not records:
            raise RemoteStorageNotReadyError(
                f"the audit topic is still being replicated metadata_partition={number} end={end}"
            )
        last = records[0]
        state_end = max(settled.state, last.decided_at or 0)
        try:
            event = decode_event(last.value or b"")
        except CorruptMetadataError as error:
            _logger.warning(
                "last event of the audit topic cannot be read metadata_partition=%d offset=%d: %s",
                number,
                last.offset,
                error,
            )
            return LastAudited(end, state_end)
        if isinstance(event, RemoteLogSegmentMetadataSnapshot):
            return LastAudited(end, state_end)
        return LastAudited(end, state_end, last.decided_at, event)

    def _tombstones(
        self, keys: tuple[MetadataKey, ...], now_ms: TimestampMs
    ) -> list[NewMetadataRecord]:
        return [NewMetadataRecord(key.encode(), None, now_ms) for key in keys]


def is_unapplied(
    event: KeyedEvent,
    cache: RemoteLogMetadataCache,
    deletion: RemotePartitionDeleteMetadata | None,
) -> bool:
    """Whether the metadata topic lacks the last event of an audit partition, for an event without
    `decided_at`.

    No event follows it, so the state in the metadata topic must be the state after it.
    """
    match event:
        case RemoteLogSegmentMetadata():
            return cache.get(event.segment_id) is None
        case RemoteLogSegmentMetadataUpdate():
            segment = cache.get(event.segment_id)
            if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                return segment is not None
            return segment is not None and segment.state is not event.state
        case RemotePartitionDeleteMetadata():
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                return deletion is not None
            return deletion is None or deletion.state is not event.state
