"""The remote tier at an earlier time. The oracle is a broker's cache after the events up to that
time."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.lifecycle import is_valid_transition
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.storage_view.partition_storage import LocalTier
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.segment_history import SegmentExtent, SegmentHistory, past_log
from isotherm.types import TopicIdPartition

PLACE = TopicIdPartition(uuid.UUID(int=1), "orders", 0)
STATE = RemoteLogSegmentState
Event = tuple[int, STATE]  # of segment `number`; the time is its index in the list


def id_of(number: int) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(PLACE, uuid.UUID(int=number + 1))


def started(number: int, at_ms: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=id_of(number),
        start_offset=number * 10,
        end_offset_inclusive=number * 10 + 9,
        max_timestamp_ms=number,
        broker_id=1,
        event_timestamp_ms=at_ms,
        segment_size_in_bytes=100 + number,
        segment_leader_epochs={0: number * 10},
    )


def folded(events: list[Event]) -> RemoteSegments:
    cache = RemoteLogMetadataCache(PLACE)
    for at_ms, (number, state) in enumerate(events):
        if state is STATE.COPY_SEGMENT_STARTED:
            cache.apply_add(started(number, at_ms))
        else:
            cache.apply_update(
                RemoteLogSegmentMetadataUpdate(
                    segment_id=id_of(number), event_timestamp_ms=at_ms, state=state, broker_id=1
                )
            )
    return RemoteSegments.of_rows(cache.rows_and_keys()[0])


def history_of(events: list[Event], first: int = 0) -> SegmentHistory:
    history = SegmentHistory()
    for at_ms, (number, state) in list(enumerate(events))[first:]:
        extent = None
        if state is STATE.COPY_SEGMENT_STARTED:
            extent = SegmentExtent(number * 10, number * 10 + 9, 100 + number, number)
        history.note(id_of(number).id.bytes, state, at_ms, extent)
    return history


def rows(segments: RemoteSegments) -> list[tuple[object, ...]]:
    columns = (segments.start_offset, segments.end_offset, segments.size_in_bytes, segments.state)
    return list(zip(segments.ids, *(column.tolist() for column in columns), strict=True))


@st.composite
def lives(draw: st.DrawFn) -> list[Event]:
    """Events of a few segments. Each segment's events are in an order that its states allow,
    interleaved at random."""
    states: dict[int, STATE] = {}
    events = []
    for number in draw(st.lists(st.integers(0, 4), max_size=20)):
        choices = [
            state
            for state in STATE
            if state is not states.get(number) and is_valid_transition(states.get(number), state)
        ]
        if choices:
            states[number] = draw(st.sampled_from(choices))
            events.append((number, states[number]))
    return events


@given(lives(), st.data())
def test_past_is_what_the_events_up_to_then_came_to(
    events: list[Event], data: st.DataObject
) -> None:
    at_ms = data.draw(st.integers(-1, len(events)))
    past, unknown = history_of(events).as_of(folded(events), at_ms)
    assert rows(past) == rows(folded(events[: at_ms + 1]))
    assert unknown == 0


def test_past_before_the_first_event_that_is_kept_follows_from_it() -> None:
    events = [
        *((number, STATE.COPY_SEGMENT_STARTED) for number in range(4)),
        *((number, STATE.COPY_SEGMENT_FINISHED) for number in range(3)),
        (0, STATE.DELETE_SEGMENT_STARTED),
        (0, STATE.DELETE_SEGMENT_FINISHED),
        (1, STATE.DELETE_SEGMENT_STARTED),
        (3, STATE.COPY_SEGMENT_FINISHED),
    ]
    past, unknown = history_of(events, first=7).as_of(folded(events), 6)
    # Segment 0 is deleted, and no kept event has its offsets.
    assert unknown == 1
    assert rows(past) == rows(folded(events[:7]))[1:]


def test_copy_that_began_later_was_not_there_though_its_event_is_lost() -> None:
    events: list[Event] = [(0, STATE.COPY_SEGMENT_FINISHED), (1, STATE.COPY_SEGMENT_STARTED)]
    present = folded([(0, STATE.COPY_SEGMENT_STARTED), *events])
    past = [len(SegmentHistory().as_of(present, at_ms).segments) for at_ms in (1, 2)]
    assert past == [1, 2]


@pytest.mark.parametrize(
    ("at_ms", "offsets"), [(0, (0, 0, 10)), (2, (0, 0, 30)), (5, (0, 20, 40)), (7, (0, 40, 40))]
)
def test_past_log_reached_what_its_segments_prove(
    at_ms: int, offsets: tuple[int, int, int]
) -> None:
    """Segment n has no record newer than n ms, and its copy finished 4 + n ms after the
    beginning."""
    events: list[Event] = [(number, STATE.COPY_SEGMENT_STARTED) for number in range(4)]
    events += [(number, STATE.COPY_SEGMENT_FINISHED) for number in range(4)]
    present = folded(events)
    past, _ = history_of(events).as_of(present, at_ms)
    local = LocalTier(
        log_start_offset=0,
        local_log_start_offset=30,
        last_stable_offset=50,
        high_watermark=50,
        size_in_bytes=7,
    )
    then = past_log(local, present, past, at_ms)
    assert (then.log_start_offset, then.local_log_start_offset, then.high_watermark) == offsets


def test_past_log_began_where_its_first_segment_did() -> None:
    events = [
        (0, STATE.COPY_SEGMENT_STARTED), (0, STATE.COPY_SEGMENT_FINISHED),
        (0, STATE.DELETE_SEGMENT_STARTED), (0, STATE.DELETE_SEGMENT_FINISHED),
    ]  # fmt: skip
    local = LocalTier(
        log_start_offset=10,
        local_log_start_offset=10,
        last_stable_offset=10,
        high_watermark=10,
        size_in_bytes=0,
    )
    present, history = folded(events), history_of(events)
    began = [
        past_log(local, present, history.as_of(present, at_ms).segments, at_ms).log_start_offset
        for at_ms in range(4)
    ]
    assert began == [10, 0, 10, 10]
