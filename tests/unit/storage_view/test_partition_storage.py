"""The sums of a partition's tiers. The model is the set of its offsets, each of which counts as one
byte."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.expiration_plan import ExpirationState, plan_expiration
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.storage_view.partition_storage import (
    LocalTier,
    Retention,
    StorageSums,
    added,
    last_tiered_offset,
    partition_sums,
)
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import TopicIdPartition

OWNER = TopicIdPartition(uuid.UUID(int=7), "topic", 0)
STATE = RemoteLogSegmentState
NOW_MS = 1_000_000
# First offset, number of offsets, state, largest timestamp.
Shape = tuple[int, int, RemoteLogSegmentState, int]

shapes = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(1, 20),
        st.sampled_from((*STATE,)[:3]),
        st.integers(NOW_MS - 1000, NOW_MS),
    ),
    max_size=8,
)


def metadata_of(shapes: Iterable[Shape]) -> list[RemoteLogSegmentMetadata]:
    return [
        RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(OWNER, uuid.UUID(int=number + 1)),
            start_offset=start,
            end_offset_inclusive=start + count - 1,
            max_timestamp_ms=max_timestamp_ms,
            broker_id=1,
            event_timestamp_ms=NOW_MS - 500,
            segment_size_in_bytes=count,
            segment_leader_epochs={0: start},
            state=state,
        )
        for number, (start, count, state, max_timestamp_ms) in enumerate(shapes)
    ]


def local_tier(log_start: int, local_start: int, end: int) -> LocalTier:
    return LocalTier(
        log_start_offset=log_start,
        local_log_start_offset=local_start,
        last_stable_offset=end,
        high_watermark=end,
        size_in_bytes=end - local_start,
    )


def sums_of(shapes: Iterable[Shape], local: LocalTier, retention: Retention) -> StorageSums:
    segments = RemoteSegments.of_metadata(metadata_of(shapes))
    return partition_sums(local, segments, retention, NOW_MS, is_tiered=True, segment_bytes=0)


@given(shapes, st.tuples(*[st.integers(0, 90)] * 3))
def test_no_offset_is_counted_twice(shapes: list[Shape], borders: tuple[int, ...]) -> None:
    log_start, local_start, end = sorted(borders)
    found = sums_of(shapes, local_tier(log_start, local_start, end), Retention())
    of_each = [
        range(start, start + count)
        for start, count, state, _ in shapes
        if state is STATE.COPY_SEGMENT_FINISHED
    ]
    remote = {offset for each in of_each for offset in each}
    log = set(range(log_start, end))
    local = {offset for offset in log if offset >= local_start}
    # Copies past the high watermark are of another history, which the brokers have dropped.
    beyond = {offset for offset in remote if offset >= end}
    assert found.local_bytes == len(local)
    assert found.remote_bytes == sum(map(len, of_each))
    assert found.missing_offsets == len(log - local - remote)
    if not beyond:
        assert found.overlap_bytes == len(local & remote)
        assert found.total_bytes == len(local | (remote & log))
        assert found.copy_lag_bytes == len(local - remote) or found.copy_lag_offsets == 0
        assert found.copy_lag_offsets == end - max([log_start, *(each + 1 for each in remote)])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(NOW_MS - 1000, NOW_MS)), max_size=8),
    st.sampled_from([-1, 0, 300, 700]),
    st.sampled_from([-1, 0, 5, 20]),
    st.integers(0, 20),
    st.integers(0, 9),
)
def test_deletion_lag_is_what_an_expiration_would_delete(
    history: list[tuple[int, int]], ms: int, size: int, log_start: int, tail: int
) -> None:
    """The lag is what an expiration on a broker with the same log and copies would delete next."""
    shapes: list[Shape] = []
    end = 0
    for count, newest_ms in history:
        shapes.append((end, count, STATE.COPY_SEGMENT_FINISHED, newest_ms))
        end += count
    log_start = min(log_start, end)
    plan = plan_expiration(
        metadata_of(shapes),
        ExpirationState(
            lineage=[EpochEntry(0, 0)],
            log_start_offset=log_start,
            log_end_offset=end + tail,
            local_segments=[(end, tail)],
            copied_offset=end - 1,
            retention_ms=ms,
            retention_bytes=size,
            now_ms=NOW_MS,
            broker_id=1,
        ),
        copying=(),
    )
    # The plan counts a segment across the log start wholly, as a broker's disk does.
    across = any(start < log_start < start + count for start, count, *_ in shapes)
    found = sums_of(shapes, local_tier(log_start, end, end + tail), Retention(ms, size))
    if size == -1 or not across:
        assert found.deletion_lag_segments == len(plan.deletions)
        deleted = [deletion.metadata.segment_size_in_bytes for deletion in plan.deletions]
        assert found.deletion_lag_bytes == sum(deleted)


def test_deletion_that_has_begun_is_late_since_its_event() -> None:
    found = sums_of(
        [(0, 10, STATE.DELETE_SEGMENT_STARTED, NOW_MS)], local_tier(10, 10, 20), Retention()
    )
    assert (found.deletion_lag_segments, found.deletion_lag_bytes) == (1, 10)
    assert found.deletion_lag_s == 0.5


def test_copy_lag_is_the_age_of_the_newest_copied_record() -> None:
    copied: Shape = (0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS - 90_000)
    assert sums_of([copied], local_tier(0, 0, 11), Retention()).copy_lag_s == 90
    assert sums_of([copied], local_tier(0, 0, 10), Retention()).copy_lag_s == 0
    assert sums_of([], local_tier(0, 0, 10), Retention()).copy_lag_s is None


def test_copies_in_progress_run_since_the_oldest_of_them() -> None:
    started = STATE.COPY_SEGMENT_STARTED
    copied: Shape = (0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS - 90_000)
    begun: list[Shape] = [(10, 10, started, NOW_MS), (20, 10, started, NOW_MS)]
    found = sums_of([copied, *begun], local_tier(0, 0, 30), Retention())
    # The events of `metadata_of` are half a second old.
    assert (found.copying_segments, found.copying_s) == (2, 0.5)
    idle = sums_of([copied], local_tier(0, 0, 11), Retention())
    assert (idle.copying_segments, idle.copying_s) == (0, None)
    both = added([idle, found])
    assert (both.copying_segments, both.copying_s) == (2, 0.5)


def test_topic_that_is_not_tiered_has_no_lag() -> None:
    found = partition_sums(
        local_tier(5, 5, 20),
        RemoteSegments.of_metadata([]),
        Retention(),
        NOW_MS,
        is_tiered=False,
        segment_bytes=0,
    )
    assert (found.copy_lag_offsets, found.copy_lag_bytes, found.copy_lag_s) == (0, 0, 0)


def test_local_log_that_compaction_made_smaller_than_its_copy_overlaps_wholly() -> None:
    local = LocalTier(
        log_start_offset=0,
        local_log_start_offset=0,
        last_stable_offset=10,
        high_watermark=10,
        size_in_bytes=4,
    )
    found = sums_of([(0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS)], local, Retention())
    assert (found.overlap_bytes, found.total_bytes) == (4, 10)


def test_segment_across_the_local_start_counts_for_its_share() -> None:
    found = sums_of(
        [(0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS)], local_tier(0, 7, 12), Retention()
    )
    assert (found.overlap_bytes, found.total_bytes) == (3, 12)


def test_sums_are_added_and_the_longest_lag_stands() -> None:
    one = sums_of(
        [(0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS - 2000)], local_tier(0, 0, 20), Retention()
    )
    other = sums_of([], local_tier(0, 0, 5), Retention())
    both = added([one, other])
    assert (both.local_bytes, both.remote_bytes, both.copy_lag_s) == (25, 10, 2)
    assert added([]).copy_lag_s is None


def test_last_tiered_offset_is_of_finished_segments() -> None:
    shapes: list[Shape] = [
        (0, 10, STATE.COPY_SEGMENT_FINISHED, 0),
        (10, 10, STATE.COPY_SEGMENT_STARTED, 0),
    ]
    assert last_tiered_offset(RemoteSegments.of_metadata(metadata_of(shapes))) == 9
    assert last_tiered_offset(RemoteSegments.of_metadata([])) == -1


def test_active_segment_of_an_idle_topic_is_no_lag() -> None:
    """Kafka's RemoteCopyLagBytes leaves the active segment out."""
    copied: Shape = (0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS - 90_000)
    begun: Shape = (10, 4, STATE.COPY_SEGMENT_STARTED, NOW_MS)

    def lag(shapes: list[Shape], end: int) -> tuple[int | None, int | None, float | None]:
        found = partition_sums(
            local_tier(0, 0, end),
            RemoteSegments.of_metadata(metadata_of(shapes)),
            Retention(),
            NOW_MS,
            is_tiered=True,
            segment_bytes=5,
        )
        return found.copy_lag_offsets, found.copy_lag_bytes, found.copy_lag_s

    assert lag([copied], 15) == (0, 0, 0)
    assert lag([copied], 17) == (2, 2, 90)
    # An upload has begun, so its segment is closed, however small.
    assert lag([copied, begun], 15) == (4, 4, 90)


def test_copy_lag_is_unknown_if_the_leader_shows_no_bytes() -> None:
    """A read replica has the leader's offsets and none of its files. What is not tiered may be the
    active segment alone, which is no lag, or many segments."""
    copied: Shape = (0, 10, STATE.COPY_SEGMENT_FINISHED, NOW_MS)

    def sums(end: int) -> StorageSums:
        local = replace(local_tier(0, 10, end), size_in_bytes=0, shows_bytes=False)
        return sums_of([copied], local, Retention())

    behind, even = sums(15), sums(10)
    assert (behind.copy_lag_offsets, behind.copy_lag_bytes, behind.copy_lag_s) == (None, None, None)
    assert (even.copy_lag_offsets, even.copy_lag_bytes, even.copy_lag_s) == (0, 0, 0)
    total = added([behind, even])
    assert (total.copy_lag_offsets, total.copy_lag_bytes) == (None, None)
    assert total.remote_bytes == 20
