"""Plans the records for a metadata event at feature level 1, and their keys. Pure.

The value of a key is always the whole state. A segment keeps the key of its upload, with one
exception: a deletion by the leader of a later epoch is written under that leader's epoch, as in
KIP-1266's Scenario 4, if that key has no record. Several uploads of one segment may be deleted
under one epoch, and the record of one must not replace another's that is still needed.

Tombstones follow DELETE_SEGMENT_FINISHED and DELETE_PARTITION_FINISHED, which state that the
objects are gone. Every key with a record of the segment or partition gets one. The key of the last
state comes last, so that it stays in force if the tombstones are cut off anywhere.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from isotherm.errors import RemoteResourceNotFoundError, SegmentKeyTakenError
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache, log_dropped
from isotherm.remote.metadata.state.lifecycle import is_valid_transition
from isotherm.remote.metadata.wire.keys import (
    MetadataKey,
    SegmentKey,
    partition_key,
    segment_key,
)
from isotherm.remote.metadata.wire.serde import KeyedEvent
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch, TopicIdPartition

_logger = logging.getLogger(__name__)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class KeyedWrite(NamedTuple):
    """`event` goes to the audit topic, `state` to the compacted one, both under `key`; then the
    tombstones, in order. The tombstones of `buried_first` must be written before `state`."""

    key: MetadataKey
    state: RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata
    event: KeyedEvent
    tombstones: tuple[MetadataKey, ...] = ()
    buried_first: tuple[MetadataKey, ...] = ()


def plan_write(event: KeyedEvent, cache: RemoteLogMetadataCache) -> KeyedWrite | None:
    """The records for `event`; `cache` has all earlier ones.

    None if there is nothing to record: a deletion of an unknown segment, or a state that cannot
    follow. Raises RemoteResourceNotFoundError for a COPY_SEGMENT_FINISHED of such a segment, so
    that its copy fails, and for a compacted segment (a whole COPY_SEGMENT_FINISHED) that replaces
    none. Raises SegmentKeyTakenError for a start under the key of a segment that must be deleted
    first.
    """
    match event:
        case RemoteLogSegmentMetadata() if event.state is FINISHED:
            return _plan_replacement(event, cache)
        case RemoteLogSegmentMetadata():
            return _plan_start(event, cache)
        case RemoteLogSegmentMetadataUpdate():
            return _plan_update(event, cache)
        case RemotePartitionDeleteMetadata():
            return _plan_partition_delete(event, cache)


def key_of(metadata: RemoteLogSegmentMetadata) -> SegmentKey:
    """The key of a state with a broker leader epoch."""
    return segment_key(
        metadata.topic_id_partition, metadata.end_offset_inclusive, metadata.broker_leader_epoch
    )


def key_of_start(metadata: RemoteLogSegmentMetadata) -> SegmentKey:
    """Same as `key_of`. Without the leader's epoch the last epoch of the records is used: the
    leader cannot have a lower one."""
    epoch = metadata.broker_leader_epoch
    if epoch == NO_LEADER_EPOCH:
        epoch = max(metadata.segment_leader_epochs)
    return segment_key(metadata.topic_id_partition, metadata.end_offset_inclusive, epoch)


def _plan_start(
    started: RemoteLogSegmentMetadata, cache: RemoteLogMetadataCache
) -> KeyedWrite | None:
    current = cache.get(started.segment_id)
    if current is not None and current.state is not STARTED:
        log_dropped(started.segment_id, current.state, started.state)
        return None
    key = key_of_start(started)
    state = replace(started, broker_leader_epoch=key.broker_leader_epoch)
    keys = cache.keys_at(key.end_offset)
    before = dict(keys).get(key.broker_leader_epoch)
    if before is None or before == started.segment_id.id:
        return KeyedWrite(key, state, state)
    occupant = cache.get(RemoteLogSegmentId(started.topic_id_partition, before))
    # No metadata would name its objects once its record is overwritten (docs/decisions/0026).
    if occupant is not None and occupant.state is not STARTED:
        raise SegmentKeyTakenError(
            "a segment cannot be copied again while an earlier copy has this key"
            f" key={key} segment={occupant.segment_id} state={occupant.state.name}"
        )
    # The record under this key may be the deletion of `before`. Once it is overwritten, an older
    # record under another key would bring that segment back: those keys are buried first.
    stale = (
        key._replace(broker_leader_epoch=epoch)
        for epoch, segment in keys
        if segment == before and epoch != key.broker_leader_epoch
    )
    return KeyedWrite(key, state, state, buried_first=tuple(stale))


def _plan_replacement(
    replacement: RemoteLogSegmentMetadata, cache: RemoteLogMetadataCache
) -> KeyedWrite:
    """A compacted segment takes the key of the finished one with the same offsets, which is dropped
    because no record of it remains."""
    key = key_of(replacement)
    occupant = cache.find_by_key(key.end_offset, key.broker_leader_epoch)
    if occupant is not None and occupant.segment_id == replacement.segment_id:
        return KeyedWrite(key, replacement, replacement)
    # Other bounds or epochs would leave offsets of the old segment without a segment.
    if (
        occupant is None
        or occupant.state is not FINISHED
        or occupant.start_offset != replacement.start_offset
        or occupant.segment_leader_epochs != replacement.segment_leader_epochs
    ):
        raise RemoteResourceNotFoundError(
            "there is no finished segment that this one could take the place of"
            f" segment={replacement.segment_id} key={key}"
            f" found={occupant.segment_id if occupant is not None else None}"
        )
    return KeyedWrite(key, replacement, replacement)


def refuse_finish_of_deleted(event: KeyedEvent, cache: RemoteLogMetadataCache) -> None:
    """Raise RemoteResourceNotFoundError for the end of a copy whose segment is deleted or being
    deleted: neither the copier nor local retention may count on it."""
    if not isinstance(event, RemoteLogSegmentMetadataUpdate) or event.state is not FINISHED:
        return
    segment = cache.get(event.segment_id)
    if segment is None or not is_valid_transition(segment.state, FINISHED):
        raise RemoteResourceNotFoundError(
            "the copy of a segment that is deleted or being deleted cannot be finished"
            f" segment={event.segment_id}"
            f" state={segment.state.name if segment is not None else None}"
        )


def _plan_update(
    update: RemoteLogSegmentMetadataUpdate, cache: RemoteLogMetadataCache
) -> KeyedWrite | None:
    refuse_finish_of_deleted(update, cache)
    current = cache.get(update.segment_id)
    source = current.state if current is not None else None
    if current is None and update.state is DELETE_FINISHED:
        _logger.info("segment is deleted already segment=%s", update.segment_id)
        return None
    if current is None or not is_valid_transition(source, update.state):
        log_dropped(update.segment_id, source, update.state)
        return None
    published_under = update.broker_leader_epoch
    if published_under == NO_LEADER_EPOCH:
        published_under = current.broker_leader_epoch
    state = replace(
        current.updated(update),
        broker_leader_epoch=_epoch_of_key(current, update.state, published_under, cache),
    )
    event = replace(
        update,
        broker_leader_epoch=published_under,
        end_offset_inclusive=current.end_offset_inclusive,
    )
    key = key_of(state)
    if update.state is not DELETE_FINISHED:
        return KeyedWrite(key, state, event)
    others = [
        segment_key(state.topic_id_partition, state.end_offset_inclusive, epoch)
        for epoch, segment in cache.keys_at(state.end_offset_inclusive)
        if segment == state.segment_id.id
    ]
    return KeyedWrite(key, state, event, (*(other for other in others if other != key), key))


def _epoch_of_key(
    segment: RemoteLogSegmentMetadata,
    target: RemoteLogSegmentState,
    published_under: LeaderEpoch,
    cache: RemoteLogMetadataCache,
) -> LeaderEpoch:
    own = segment.broker_leader_epoch
    if target in (STARTED, FINISHED) or published_under <= own:
        return own
    taken = {epoch for epoch, _ in cache.keys_at(segment.end_offset_inclusive)}
    return own if published_under in taken else published_under


def _plan_partition_delete(
    delete: RemotePartitionDeleteMetadata, cache: RemoteLogMetadataCache
) -> KeyedWrite:
    partition = delete.topic_id_partition
    tombstones: tuple[MetadataKey, ...] = ()
    if delete.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
        # The deletion's own key stays (KIP-1266, Scenario 5).
        tombstones = tuple(_keys_of_partition(partition, cache))
    return KeyedWrite(partition_key(partition), delete, delete, tombstones)


def _keys_of_partition(
    partition: TopicIdPartition, cache: RemoteLogMetadataCache
) -> list[SegmentKey]:
    return [segment_key(partition, end, epoch) for end, epoch in sorted(cache.keys())]
