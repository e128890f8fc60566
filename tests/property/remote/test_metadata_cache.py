"""RemoteLogMetadataCache against Kafka's rules in their simplest form, over random histories.

The model keeps, per epoch, a dict from start offset to segment, as Kafka does. Beside it, the model
keeps every finished segment, also those that the dict no longer finds. Where the dict answers, the
cache gives the same segment, or one that holds the offset too and that the dict no longer finds.
Where the dict does not answer, the cache still does if a segment holds the offset and no later
segment replaced it. Those are the differences from Kafka (docs/decisions/0011).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)
OFFSETS = range(14)
EPOCHS = range(3)
NEXT = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: (
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (RemoteLogSegmentState.DELETE_SEGMENT_STARTED,),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,),
}


@dataclass
class EpochModel:
    """Kafka's state of one leader epoch, with every finished segment beside it. `set_aside` are the
    segments that a later one replaced."""

    by_start: dict[int, RemoteLogSegmentId] = field(default_factory=dict)
    ends: dict[RemoteLogSegmentId, tuple[int, int]] = field(default_factory=dict)
    set_aside: set[RemoteLogSegmentId] = field(default_factory=set)
    highest: int | None = None

    def finish(self, segment: RemoteLogSegmentId, start: int, end: int) -> None:
        covers_the_tail = (self.highest or 0) <= end
        self.set_aside |= {
            each
            for each, (first, last) in self.ends.items()
            if (first >= start and covers_the_tail) or (first == start and last <= end)
        }
        while self.by_start and max(self.by_start) >= start and covers_the_tail:
            del self.by_start[max(self.by_start)]
        self.by_start[start] = segment
        self.ends[segment] = (start, end)
        self.highest = max(end, self.highest or end)

    def delete(self, segment: RemoteLogSegmentId) -> None:
        start, _ = self.ends.pop(segment, (-1, -1))
        if self.by_start.get(start) == segment:
            del self.by_start[start]

    def kafka_finds(self, offset: int) -> RemoteLogSegmentId | None:
        floor = max((start for start in self.by_start if start <= offset), default=None)
        if floor is None or self.ends[self.by_start[floor]][1] < offset:
            return None
        return self.by_start[floor]

    def holders(self, offset: int) -> set[RemoteLogSegmentId]:
        return {
            segment
            for segment, (start, end) in self.ends.items()
            if start <= offset <= end and segment not in self.set_aside
        }


@st.composite
def histories(draw: st.DrawFn) -> list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]:
    """Events of overlapping segments. Each segment goes through allowed states only."""
    live: dict[RemoteLogSegmentId, RemoteLogSegmentState] = {}
    history: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate] = []
    for number in range(draw(st.integers(1, 24))):
        if not live or draw(st.booleans()):
            start = draw(st.integers(0, 9))
            end = draw(st.integers(start, 12))
            first = draw(st.integers(0, 2))
            epochs = {first: start}
            if first < 2 and end > start and draw(st.booleans()):
                epochs[first + 1] = draw(st.integers(start + 1, end))
            segment_id = RemoteLogSegmentId(PARTITION, uuid.UUID(int=number))
            live[segment_id] = RemoteLogSegmentState.COPY_SEGMENT_STARTED
            history.append(
                RemoteLogSegmentMetadata(
                    segment_id=segment_id,
                    start_offset=start,
                    end_offset_inclusive=end,
                    max_timestamp_ms=0,
                    broker_id=0,
                    event_timestamp_ms=0,
                    segment_size_in_bytes=1,
                    segment_leader_epochs=epochs,
                    txn_index_empty=draw(st.booleans()),
                )
            )
            if draw(st.booleans()):
                history.append(_update(segment_id, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
                live[segment_id] = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        else:
            segment_id = draw(st.sampled_from(sorted(live, key=lambda each: each.id.int)))
            state = draw(st.sampled_from(NEXT[live[segment_id]]))
            history.append(_update(segment_id, state))
            live[segment_id] = state
            if state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                del live[segment_id]
    return history


def _update(
    segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id, event_timestamp_ms=0, state=state, broker_id=0
    )


def walk_to_txn_index(
    cache: RemoteLogMetadataCache, epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    """Kafka's look-up: one segment after the other."""
    found = cache.find(epoch, offset)
    while found is not None and found.txn_index_empty:
        found = cache.find(epoch, found.end_offset_inclusive + 1)
    return found


def _end(segment: RemoteLogSegmentMetadata | None) -> tuple[int, int] | None:
    return segment and (max(segment.segment_leader_epochs), segment.end_offset_inclusive)


def _start(segment: RemoteLogSegmentMetadata | None, epoch: int) -> int | None:
    return segment and segment.segment_leader_epochs[epoch]


@given(histories())
@settings(max_examples=200)
def test_cache_answers_as_kafkas_rules_say_and_loses_no_offset(
    history: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate],
) -> None:
    cache = RemoteLogMetadataCache(PARTITION)
    cache.mark_initialized()
    epochs = {epoch: EpochModel() for epoch in EPOCHS}
    live: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    for event in history:
        if isinstance(event, RemoteLogSegmentMetadata):
            cache.apply_add(event)
            live[event.segment_id] = event
            continue
        cache.apply_update(event)
        segment = live[event.segment_id]
        for span in epoch_spans(segment):
            if event.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                epochs[span.epoch].finish(
                    event.segment_id, span.start_offset, span.end_offset_inclusive
                )
            else:
                epochs[span.epoch].delete(event.segment_id)
        if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del live[event.segment_id]

    assert {segment.segment_id for segment in cache.segments()} == set(live)
    # What look-ups find begins and ends there.
    held = {epoch: [o for o in OFFSETS if cache.find(epoch, o) is not None] for epoch in EPOCHS}
    assert _end(cache.last_finished()) == max(
        ((epoch, offsets[-1]) for epoch, offsets in held.items() if offsets), default=None
    )
    for epoch, model in epochs.items():
        assert _start(cache.first_finished(epoch), epoch) == min(held[epoch], default=None)
        assert cache.highest_offset_for_epoch(epoch) == model.highest
        assert {segment.segment_id for segment in cache.segments(epoch)} == {
            segment_id
            for segment_id, segment in live.items()
            if epoch in segment.segment_leader_epochs
        }
        for offset in OFFSETS:
            found = cache.find(epoch, offset)
            assert cache.find_with_txn_index(epoch, offset) == walk_to_txn_index(
                cache, epoch, offset
            )
            kafkas = model.kafka_finds(offset)
            if kafkas is not None:
                assert found is not None
                assert found.segment_id == kafkas or (
                    found.segment_id in model.holders(offset)
                    and found.segment_id not in model.by_start.values()
                )
            elif found is not None:
                assert found.segment_id in model.holders(offset)
            else:
                assert not model.holders(offset)
