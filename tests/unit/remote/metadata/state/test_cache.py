"""Cases of Kafka's RemoteLogLeaderEpochStateTest, RemoteLogMetadataCacheTest and
RemoteLogSegmentLifecycleTest, and the two in which Kafka loses offsets and Isotherm does not."""

from __future__ import annotations

import uuid
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.metadata.state import epoch_state
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.epoch_state import RemoteLogLeaderEpochState
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.segment.leader_epochs import EpochSpan
from isotherm.types import TopicIdPartition

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

MakeSegment = Callable[..., RemoteLogSegmentMetadata]
MakeUpdate = Callable[..., RemoteLogSegmentMetadataUpdate]


@pytest.fixture
def cache(partition: TopicIdPartition) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache(partition)
    cache.mark_initialized()
    return cache


@pytest.fixture
def finish(cache: RemoteLogMetadataCache, make_update: MakeUpdate) -> Callable[..., None]:
    def finish(*segments: RemoteLogSegmentMetadata) -> None:
        for segment in segments:
            cache.apply_add(segment)
            cache.apply_update(make_update(segment, FINISHED))

    return finish


def finished_ranges(
    *ranges: tuple[int, int],
) -> tuple[RemoteLogLeaderEpochState, list[bytes]]:
    state = RemoteLogLeaderEpochState()
    ids = [uuid.UUID(int=number).bytes for number in range(len(ranges))]
    for segment_id, (start, end) in zip(ids, ranges, strict=True):
        state.add_unreferenced(segment_id)
        state.finish(segment_id, start, end)
    return state, ids


def test_epoch_state_wider_segment_takes_the_place_of_the_one_it_covers() -> None:
    state, (first, second) = finished_ranges((10, 100), (5, 150))
    assert state.referenced() == [(5, second)]
    assert state.unreferenced == {first}
    assert state.highest_log_offset == 150


def test_epoch_state_widest_of_four_is_the_only_one_referenced() -> None:
    state, ids = finished_ranges((10, 100), (5, 150), (148, 155), (4, 200))
    assert state.referenced() == [(4, ids[3])]
    assert state.unreferenced == set(ids[:3])


def test_epoch_state_same_range_twice_refers_to_the_later_one() -> None:
    state, (first, second) = finished_ranges((10, 100), (10, 100))
    assert state.referenced() == [(10, second)]
    assert state.unreferenced == {first}


def test_epoch_state_same_range_again_in_the_middle_refers_to_the_later_one() -> None:
    state, (first, second, third) = finished_ranges((0, 50), (51, 100), (0, 50))
    assert state.referenced() == [(0, third), (51, second)]
    assert state.unreferenced == {first}


def test_epoch_state_same_start_and_lower_end_still_finds_the_longer_segment() -> None:
    """Kafka keeps only the shorter one and loses offsets 51 to 100 (decision 11, case 1)."""
    state, (longer, shorter) = finished_ranges((0, 100), (0, 50))
    assert state.find(10) == shorter
    assert state.find(50) == shorter
    assert state.find(51) == longer
    assert state.find(100) == longer
    assert state.find(101) is None
    assert set(state.segment_ids()) == {longer, shorter}
    state.start_deletion(shorter, 0)
    assert state.find(10) == longer


def test_epoch_state_offset_after_a_nested_segment_is_found_in_the_outer_one() -> None:
    """Kafka finds the inner one, sees that it ends before the offset, and answers nothing (decision
    11, case 2)."""
    state, (outer, inner, far) = finished_ranges((0, 100), (20, 30), (200, 300))
    assert [state.find(offset) for offset in (19, 20, 30, 31, 100)] == [
        outer,
        inner,
        inner,
        outer,
        outer,
    ]
    assert state.find(150) is None
    assert state.find(200) == far
    state.start_deletion(outer, 0)
    assert [state.find(offset) for offset in (19, 25, 31)] == [None, inner, None]


def test_epoch_spans_of_segment_over_three_epochs_are_its_parts(make_segment: MakeSegment) -> None:
    segment = make_segment(100, 199, {3: 180, 0: 100, 2: 150})
    assert list(epoch_spans(segment)) == [
        EpochSpan(0, 100, 149),
        EpochSpan(2, 150, 179),
        EpochSpan(3, 180, 199),
    ]


def test_cache_life_of_a_segment_shows_in_each_state_what_kafka_shows(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, make_update: MakeUpdate
) -> None:
    segment = make_segment(0, 99)
    visible = {}
    for state in RemoteLogSegmentState:
        if state is STARTED:
            cache.apply_add(segment)
        else:
            cache.apply_update(make_update(segment, state))
        visible[state] = (
            cache.find(0, 50) is not None,
            len(cache.segments(0)) == 1,
            len(cache.segments()) == 1,
        )
    assert visible == {
        STARTED: (False, True, True),
        FINISHED: (True, True, True),
        DELETE_STARTED: (False, True, True),
        DELETE_FINISHED: (False, False, False),
    }
    assert cache.highest_offset_for_epoch(0) == 99


def test_cache_find_in_segment_over_two_epochs_is_bound_to_the_epoch(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, finish: Callable[..., None]
) -> None:
    segment = make_segment(0, 99, {0: 0, 1: 40})
    finish(segment)
    found = cache.find(0, 39)
    assert found is not None
    assert found.segment_id == segment.segment_id
    assert cache.find(0, 40) is None
    assert cache.find(1, 39) is None
    assert cache.find(1, 99) is not None
    assert cache.find(1, 100) is None
    assert cache.find(2, 50) is None
    assert cache.highest_offset_for_epoch(0) == 39
    assert cache.highest_offset_for_epoch(1) == 99
    assert cache.highest_offset_for_epoch(2) is None


def test_cache_update_replaces_custom_metadata_broker_and_time(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, make_update: MakeUpdate
) -> None:
    segment = make_segment(0, 99)
    cache.apply_add(segment)
    cache.apply_update(make_update(segment, FINISHED, b"bucket-7"))
    finished = cache.find(0, 0)
    assert finished == replace(
        segment,
        state=FINISHED,
        custom_metadata=b"bucket-7",
        broker_id=1,
        event_timestamp_ms=3000,
    )
    cache.apply_update(make_update(segment, DELETE_STARTED))
    assert cache.segments()[0].custom_metadata is None


def test_cache_find_again_gives_what_holds_now(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, finish: Callable[..., None]
) -> None:
    """Repeated look-ups in a segment return the same object, until the segment changes."""
    segments = [make_segment(start, start + 99) for start in range(0, 1000, 100)]
    finish(*segments)
    for segment in segments:
        found = cache.find(0, segment.start_offset)
        assert found is not None
        assert found.segment_id == segment.segment_id
        assert cache.find(0, segment.end_offset_inclusive) is found
    last = cache.find(0, 999)
    assert last is not None
    changed = replace(last, custom_metadata=b"moved", segment_size_in_bytes=7)
    cache.put(changed)
    assert cache.find(0, 999) == changed


def test_cache_state_under_a_key_never_goes_back(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment
) -> None:
    """A later whole state replaces any earlier one; an earlier state changes nothing."""
    finished = replace(make_segment(0, 99), state=FINISHED)
    cache.put(finished)
    assert cache.find(0, 50) == finished
    cache.put(replace(finished, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
    assert cache.find(0, 50) == finished
    deleting = replace(finished, state=DELETE_STARTED)
    cache.put(deleting)
    cache.put(finished)
    assert cache.segments() == [deleting]


@pytest.mark.parametrize("state", [FINISHED, DELETE_STARTED, DELETE_FINISHED])
def test_cache_add_of_segment_in_later_state_is_refused(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, state: RemoteLogSegmentState
) -> None:
    with pytest.raises(ValueError, match="COPY_SEGMENT_STARTED only"):
        cache.apply_add(replace(make_segment(0, 1), state=state))


def test_cache_update_to_started_is_refused(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, make_update: MakeUpdate
) -> None:
    with pytest.raises(ValueError, match="COPY_SEGMENT_STARTED"):
        cache.apply_update(make_update(make_segment(0, 1), STARTED))


def test_cache_update_of_unknown_segment_is_an_error_only_once_initialized(
    partition: TopicIdPartition, make_segment: MakeSegment, make_update: MakeUpdate
) -> None:
    cache = RemoteLogMetadataCache(partition)
    update = make_update(make_segment(0, 1), FINISHED)
    cache.apply_update(update)
    assert cache.segments() == []
    cache.mark_initialized()
    with pytest.raises(RemoteResourceNotFoundError, match="not known"):
        cache.apply_update(update)


def test_cache_invalid_transition_is_dropped(
    cache: RemoteLogMetadataCache,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
    finish: Callable[..., None],
) -> None:
    segment = make_segment(0, 99)
    finish(segment)
    cache.apply_update(make_update(segment, DELETE_FINISHED))
    cache.apply_add(segment)
    assert [known.state for known in cache.segments()] == [FINISHED]


def test_cache_repeated_start_with_other_epochs_leaves_no_trace_of_the_first(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, make_update: MakeUpdate
) -> None:
    segment = make_segment(0, 99, {0: 0})
    cache.apply_add(segment)
    cache.apply_add(replace(segment, segment_leader_epochs={1: 0}))
    assert cache.segments(0) == []
    assert len(cache.segments(1)) == 1
    cache.apply_update(make_update(segment, DELETE_STARTED))
    cache.apply_update(make_update(segment, DELETE_FINISHED))
    assert cache.segments(0) == cache.segments(1) == cache.segments() == []


def test_cache_segments_are_ordered_by_start_offset(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, finish: Callable[..., None]
) -> None:
    later, unfinished, earlier = make_segment(100, 199), make_segment(50, 60), make_segment(0, 99)
    finish(later)
    cache.apply_add(unfinished)
    finish(earlier)
    assert [segment.start_offset for segment in cache.segments(0)] == [0, 50, 100]
    assert [segment.start_offset for segment in cache.segments()] == [0, 50, 100]
    assert cache.segments(5) == []


def test_cache_size_counts_every_state_and_the_unreferenced(
    cache: RemoteLogMetadataCache,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
    finish: Callable[..., None],
) -> None:
    covered, wider = make_segment(10, 100, size=1), make_segment(0, 150, size=20)
    going, started = make_segment(151, 160, size=300), make_segment(161, 170, size=4000)
    finish(covered, wider, going)
    cache.apply_update(make_update(going, DELETE_STARTED))
    cache.apply_add(started)
    assert cache.size_in_bytes(0) == 4321
    assert cache.size_in_bytes(1) == 0


def test_cache_next_segment_with_txn_index_walks_over_those_without(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, finish: Callable[..., None]
) -> None:
    empty = [make_segment(start, start + 9, txn_index_empty=True) for start in (0, 10, 20)]
    indexed, after_gap = make_segment(30, 39), make_segment(50, 59)
    finish(*empty, indexed, after_gap)
    found = cache.find_with_txn_index(0, 5)
    assert found is not None
    assert found.segment_id == indexed.segment_id
    assert cache.find_with_txn_index(0, 40) is None
    assert cache.find_with_txn_index(1, 0) is None


@pytest.mark.parametrize("count", [1, 40, 400])
@pytest.mark.parametrize("is_last_indexed", [False, True])
def test_cache_next_segment_with_txn_index_costs_the_same_however_many_are_without(
    cache: RemoteLogMetadataCache,
    make_segment: MakeSegment,
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    is_last_indexed: bool,
) -> None:
    segments = [
        make_segment(10 * number, 10 * number + 9, txn_index_empty=True) for number in range(count)
    ]
    last = make_segment(10 * count, 10 * count + 9, txn_index_empty=not is_last_indexed)
    finish(*segments, last)
    looked_up: list[int] = []

    def bisect_noted(starts: array[int], offset: int) -> int:
        looked_up.append(offset)
        return bisect_right(starts, offset)

    monkeypatch.setattr(epoch_state, "bisect_right", bisect_noted)
    found = cache.find_with_txn_index(0, 5)
    assert (found.segment_id if found else None) == (last.segment_id if is_last_indexed else None)
    assert len(looked_up) <= 3


def test_cache_next_segment_with_txn_index_is_found_after_all_were_buried(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, finish: Callable[..., None]
) -> None:
    gone = make_segment(0, 9)
    finish(gone)
    cache.bury([gone.segment_id.id.bytes])
    assert cache.find_with_txn_index(0, 0) is None
    empty, indexed = make_segment(10, 19, txn_index_empty=True), make_segment(20, 29)
    finish(empty, indexed)
    found = cache.find_with_txn_index(0, 10)
    assert found is not None
    assert found.segment_id == indexed.segment_id


def keyed(segment: RemoteLogSegmentMetadata, leader: int) -> RemoteLogSegmentMetadata:
    return replace(segment, state=FINISHED, broker_leader_epoch=leader)


@pytest.mark.parametrize(("own", "other"), [(6, 3), (3, 6)])
def test_cache_tombstone_drops_a_segment_only_under_the_key_of_its_state(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, own: int, other: int
) -> None:
    """A late record of a deposed leader gives a segment a second key, but no other state."""
    segment = replace(keyed(make_segment(0, 99), own), state=DELETE_STARTED)
    cache.put(segment)
    cache.put(keyed(segment, other))
    assert cache.keys() == [(99, 3), (99, 6)]
    cache.remove_key(99, other)
    assert cache.segments() == [segment]
    assert cache.keys() == [(99, own)]
    cache.remove_key(99, own)
    assert cache.is_empty()


@pytest.mark.parametrize(("own", "other"), [(6, 3), (3, 6)])
def test_cache_key_used_again_drops_its_segment_unless_that_has_its_state_elsewhere(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment, own: int, other: int
) -> None:
    segment = replace(keyed(make_segment(0, 99), own), state=DELETE_STARTED)
    cache.put(segment)
    cache.put(keyed(segment, other))
    for key, left in ((other, [segment]), (own, [])):
        following = replace(make_segment(0, 99), broker_leader_epoch=key)
        cache.put(following)
        assert [each for each in cache.segments() if each.state is DELETE_STARTED] == left


@pytest.mark.parametrize("state", [STARTED, FINISHED, DELETE_STARTED])
@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_cache_whole_state_with_other_epochs_leaves_no_trace_of_the_first(
    cache: RemoteLogMetadataCache,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    state: RemoteLogSegmentState,
    before: int,
    after: int,
) -> None:
    segment = replace(make_segment(0, 99), state=state)
    last = replace(segment, segment_leader_epochs={after: 0})
    cache.put(replace(segment, segment_leader_epochs={before: 0}))
    cache.put(last)
    alone = RemoteLogMetadataCache(partition)
    alone.put(last)
    for epoch in (before, after):
        assert cache.segments(epoch) == alone.segments(epoch)
        assert cache.find(epoch, 50) == alone.find(epoch, 50)


def test_cache_state_that_is_stored_twice_changes_nothing(
    cache: RemoteLogMetadataCache, make_segment: MakeSegment
) -> None:
    """The covered segment stays covered, also after later segments came between."""
    covered, wider, later = (keyed(make_segment(*each), 5) for each in ((5, 9), (0, 12), (13, 20)))
    for segment in (covered, wider, later, wider):
        cache.put(segment)
        if segment is not covered:
            assert cache.find(0, 7) == wider


def test_cache_laid_down_is_the_one_that_was_applied(
    cache: RemoteLogMetadataCache, partition: TopicIdPartition, make_segment: MakeSegment
) -> None:
    """The cache is at level 1. One of its two segments, each of two epochs, is then deleted."""
    first, second = (
        keyed(make_segment(start, start + 9, {start // 20: start, start // 20 + 1: start + 5}), 3)
        for start in (0, 20)
    )
    for segment in (first, second):
        cache.put(segment)
    laid = RemoteLogMetadataCache(partition)
    rows, keys = cache.rows_and_keys()
    laid.lay_down(rows, [(end, each.broker_leader_epoch, each.segment_id) for end, each in keys])
    for segment in (first, second):
        for epoch, start, end in epoch_spans(segment):
            laid.append_finished(
                epoch,
                [segment.segment_id.id.bytes],
                array("q", [start]),
                array("q", [end]),
                array("i", [3]),
                b"\x01",
            )
    assert shown(laid) == shown(cache)
    laid.bury([first.segment_id.id.bytes])
    for state in (DELETE_STARTED, DELETE_FINISHED):
        cache.put(replace(first, state=state))
    assert shown(laid) == shown(cache)
    assert laid.stale_keys() == [(9, 3, first.segment_id.id)]


def shown(cache: RemoteLogMetadataCache) -> list[object]:
    return [
        *(cache.segments(), cache.keys(), cache.stale_keys()),
        *(
            (
                cache.segments(epoch),
                cache.tail(epoch),
                [(cache.find(epoch, at), cache.find_with_txn_index(epoch, at)) for at in range(35)],
            )
            for epoch in range(3)
        ),
    ]
