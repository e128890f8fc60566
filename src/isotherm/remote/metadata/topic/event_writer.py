"""Appends metadata events as the feature level wants them.

At level 0 an event is one record of the metadata topic. At level 1 it is two, in this order:

    audit topic       the event
    metadata topic    the whole state that it leads to, under its key; then tombstones, if any

So every state that the metadata topic ever had is in the audit topic. An event whose append to the
metadata topic did not come about (a crash, an error) is the last one of its audit partition, because
writes to one partition come one after the other; it is appended before the next event, or when the
partition is read after a restart, whichever is first (docs/decisions/0026). Doing that is right for
every event: each is published only when what it states has happened, or may as well begin.

A tombstone that cannot be appended is left to the cleanup manager, and fails nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from isotherm.clock import Clock
from isotherm.errors import CorruptMetadataError, IsothermError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopic, NewMetadataRecord
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.topic.keyed_writes import (
    KeyedWrite,
    plan_write,
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
from isotherm.types import Offset

_logger = logging.getLogger(__name__)

LOST_TOMBSTONES = "isotherm_remote_log_metadata_lost_tombstones"
LOST_TOMBSTONES_TEXT = "Tombstones that could not be appended; the cleanup manager does it later."

_AUDIT_READ_MAX_BYTES = 1  # one record is read in any case


@dataclass(frozen=True, slots=True)
class KeyedMetadata:
    """What level 1 needs: the audit topic, which has as many partitions as the metadata topic, and
    which level holds for one of them now (it rises when the partition has been migrated)."""

    audit_topic: MetadataTopic
    level: Callable[[int], int]


class MetadataEventWriter:
    """One per metadata manager. `lock(number)` is held around every other call about `number`, so
    that writes to a metadata partition come one after the other, each after what the caches have
    read back."""

    def __init__(
        self, topic: MetadataTopic, keyed: KeyedMetadata | None, clock: Clock, metrics: Metrics
    ) -> None:
        self._topic = topic
        self._keyed = keyed
        self._clock = clock
        self._metrics = metrics
        self._locks = [threading.RLock() for _ in range(topic.partition_count)]
        self._torn: set[int] = set()

    def lock(self, number: int) -> threading.RLock:
        return self._locks[number]

    def is_keyed(self, number: int) -> bool:
        return self._keyed is not None and self._keyed.level(number) > 0

    def is_torn(self, number: int) -> bool:
        """Whether a write failed: the audit topic may have an event that the metadata topic lacks."""
        return number in self._torn

    def mark_whole(self, number: int) -> None:
        """The event of the write that failed is applied, or is in neither topic."""
        self._torn.discard(number)

    def write(self, number: int, event: KeyedEvent, cache: RemoteLogMetadataCache) -> Offset | None:
        """Append `event`; its offset in the metadata topic. It is visible once that is read back.

        None when there is nothing to record. Raises what `plan_write` and the topics raise; after
        an error of a topic the metadata partition may be torn. At level 0 every event is appended, as in Kafka,
        but for the end of a copy that is deleted.
        """
        if self._keyed is None or not self.is_keyed(number):
            refuse_finish_of_deleted(event, cache)
            return self._topic.append(number, None, encode_event(event), self._clock.now_ms())
        planned = plan_write(event, cache)
        if planned is None:
            return None
        try:
            self._keyed.audit_topic.append(
                number,
                planned.key.encode(),
                encode_keyed_event(planned.event),
                self._clock.now_ms(),
            )
            return self._append_state(number, planned)
        except BaseException:
            self._torn.add(number)
            raise

    def last_audited(self, number: int) -> KeyedEvent | None:
        """The last event of the audit partition, None when it is empty or holds no such thing."""
        if self._keyed is None:
            return None
        start, end = self._keyed.audit_topic.offsets(number)
        if start == end:
            return None
        (last,) = self._keyed.audit_topic.read(number, end - 1, _AUDIT_READ_MAX_BYTES)
        try:
            event = decode_event(last.value or b"")
        except CorruptMetadataError as error:
            _logger.warning(
                "last event of the audit topic cannot be read metadata_partition=%d offset=%d: %s",
                number,
                last.offset,
                error,
            )
            return None
        return None if isinstance(event, RemoteLogSegmentMetadataSnapshot) else event

    def append_unapplied(
        self, number: int, event: KeyedEvent, cache: RemoteLogMetadataCache
    ) -> Offset | None:
        """Append the state of an audited event that the metadata topic lacks."""
        planned = plan_write(event, cache)
        return None if planned is None else self._append_state(number, planned)

    def _append_tombstones(self, number: int, keys: tuple[MetadataKey, ...]) -> None:
        if not keys:
            return
        try:
            self._topic.append_all(number, self._tombstones(keys))
        except (IsothermError, OSError) as error:
            self._metrics.counter(LOST_TOMBSTONES, LOST_TOMBSTONES_TEXT).inc(len(keys))
            _logger.warning(
                "tombstones are left for later keys=%s: %s", list(map(str, keys)), error
            )

    def _tombstones(self, keys: tuple[MetadataKey, ...]) -> list[NewMetadataRecord]:
        now_ms = self._clock.now_ms()
        return [NewMetadataRecord(key.encode(), None, now_ms) for key in keys]

    def _append_state(self, number: int, planned: KeyedWrite) -> Offset:
        if planned.buried_first:
            self._topic.append_all(number, self._tombstones(planned.buried_first))
        offset = self._topic.append(
            number, planned.key.encode(), encode_keyed_event(planned.state), self._clock.now_ms()
        )
        self._append_tombstones(number, planned.tombstones)
        return offset


def is_unapplied(
    event: KeyedEvent,
    cache: RemoteLogMetadataCache,
    deletion: RemotePartitionDeleteMetadata | None,
) -> bool:
    """Whether the metadata topic lacks the last event of an audit partition.

    No event follows it, so the state in the metadata topic must be the state after it.
    """
    match event:
        case RemoteLogSegmentMetadata():
            return cache.get(event.segment_id) is None
        case RemoteLogSegmentMetadataUpdate():
            known = cache.get(event.segment_id)
            if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                return known is not None
            return known is not None and known.state is not event.state
        case RemotePartitionDeleteMetadata():
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                return deletion is not None
            return deletion is None or deletion.state is not event.state
