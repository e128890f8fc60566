"""What keeps the bytes of a partition in the local tier, by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.local_holds import Hold, HoldCause, TierSettings, local_holds
from isotherm.storage_view.partition_storage import LocalTier, Retention, partition_sums
from isotherm.storage_view.remote_segments import RemoteSegments
from tests.support.scripted_cluster import NOW_MS, local_tier, remote_segment

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
HOUR_MS = 3_600_000
SIZE = 1000
KEPT = TierSettings(Retention(), SIZE, is_copy_disabled=False)


def finished(count: int, age_ms: int = 60_000) -> list[RemoteLogSegmentMetadata]:
    return [
        remote_segment(n + 1, n * 10, n * 10 + 9, size=SIZE, age_ms=age_ms) for n in range(count)
    ]


def started(number: int, start: int, age_ms: int) -> RemoteLogSegmentMetadata:
    return remote_segment(number, start, start + 9, STARTED, size=SIZE, age_ms=age_ms)


def holds(
    local: LocalTier,
    listed: Sequence[RemoteLogSegmentMetadata],
    settings: TierSettings = KEPT,
    *,
    is_tiered: bool = True,
) -> list[Hold]:
    segments = RemoteSegments.of_metadata(listed)
    sums = partition_sums(
        local, segments, Retention(), NOW_MS, is_tiered=is_tiered, segment_bytes=0
    )
    return local_holds(local, segments, sums, settings, NOW_MS, is_tiered=is_tiered)


def causes(found: list[Hold]) -> dict[HoldCause, int]:
    return {each.cause: each.size_in_bytes for each in found}


def test_topic_that_is_not_tiered_is_all_local() -> None:
    assert causes(holds(local_tier(0, 0, 50, 777), [], is_tiered=False)) == {
        HoldCause.NOT_TIERED: 777
    }


def test_copied_segments_are_kept_by_local_retention_until_they_are_due() -> None:
    local = local_tier(0, 0, 45, 4 * SIZE + 500)
    assert causes(holds(local, finished(4))) == {
        HoldCause.LOCAL_RETENTION: 4 * SIZE,
        HoldCause.ACTIVE_SEGMENT: 500,
    }
    by_time = replace(KEPT, local_retention=Retention(ms=HOUR_MS))
    late, _ = holds(local, finished(4, age_ms=2 * HOUR_MS), by_time)
    assert (late.cause, late.size_in_bytes) == (HoldCause.DELETION_LATE, 4 * SIZE)
    assert late.since_ms == NOW_MS - HOUR_MS
    # 2,600 of 4,500 bytes may stay. One segment can be deleted; after a second one too few would be
    # left.
    by_size = replace(KEPT, local_retention=Retention(bytes=2600))
    assert causes(holds(local, finished(4), by_size))[HoldCause.DELETION_LATE] == SIZE


def test_upload_is_at_work_or_has_failed() -> None:
    local = local_tier(0, 20, 35, 1500)
    at_work = holds(local, [*finished(2), started(9, 20, age_ms=1000)])
    assert causes(at_work) == {HoldCause.COPYING: SIZE, HoldCause.ACTIVE_SEGMENT: 500}
    again = [*finished(2), started(8, 20, age_ms=9000), started(9, 20, age_ms=1000)]
    failed = holds(local, again)[0]
    assert (failed.cause, failed.size_in_bytes, failed.attempts) == (
        HoldCause.COPY_FAILED,
        SIZE,
        2,
    )
    assert failed.since_ms == NOW_MS - 1000
    old = holds(local, [*finished(2), started(9, 20, age_ms=2 * HOUR_MS)])[0]
    assert old.cause is HoldCause.COPY_FAILED


def test_closed_segments_without_an_upload_wait() -> None:
    local = local_tier(0, 20, 60, 4 * SIZE)
    assert causes(holds(local, finished(2))) == {
        HoldCause.COPY_WAITS: 3 * SIZE,
        HoldCause.ACTIVE_SEGMENT: SIZE,
    }
    disabled = replace(KEPT, is_copy_disabled=True)
    assert causes(holds(local, finished(2), disabled)) == {HoldCause.COPY_DISABLED: 4 * SIZE}


def test_open_transaction_holds_what_lies_above_it() -> None:
    local = replace(local_tier(0, 20, 60, 4 * SIZE), last_stable_offset=30)
    found = {hold.cause: hold for hold in holds(local, finished(2))}
    # The transaction holds 30 of the 40 offsets back. The last segment is the active one.
    assert found[HoldCause.OPEN_TRANSACTION].size_in_bytes == 3 * SIZE
    assert found[HoldCause.OPEN_TRANSACTION].first_offset == 30
    assert HoldCause.COPY_WAITS not in found


@given(
    copied=st.integers(0, 6),
    local_start=st.integers(0, 6),
    size=st.integers(0, 9 * SIZE),
    stable=st.integers(0, 90),
    attempts=st.lists(st.tuples(st.integers(6, 8), st.integers(0, 2 * HOUR_MS)), max_size=3),
    limit=st.sampled_from([Retention(), Retention(ms=1000), Retention(bytes=SIZE)]),
)
def test_causes_add_up_to_the_local_log(
    copied: int,
    local_start: int,
    size: int,
    stable: int,
    attempts: list[tuple[int, int]],
    limit: Retention,
) -> None:
    local = replace(local_tier(0, local_start * 10, 90, size), last_stable_offset=stable)
    uploads = [started(50 + n, at * 10, age) for n, (at, age) in enumerate(attempts)]
    settings = replace(KEPT, local_retention=limit)
    found = holds(local, [*finished(copied), *uploads], settings)
    assert sum(each.size_in_bytes for each in found) == size


def with_signs(
    local: LocalTier, listed: Sequence[RemoteLogSegmentMetadata], signs: CopySigns | None
) -> dict[HoldCause, int]:
    segments = RemoteSegments.of_metadata(listed)
    sums = partition_sums(local, segments, Retention(), NOW_MS, is_tiered=True, segment_bytes=0)
    return causes(local_holds(local, segments, sums, KEPT, NOW_MS, is_tiered=True, signs=signs))


def test_failed_copy_that_left_nothing_behind_is_known_from_metrics() -> None:
    local = local_tier(0, 20, 60, 3 * SIZE + 500)
    failing = with_signs(local, finished(2), CopySigns(failures=18, lag_bytes=3 * SIZE))
    assert failing == {HoldCause.COPY_FAILED: 3 * SIZE, HoldCause.ACTIVE_SEGMENT: 500}
    waiting = with_signs(local, finished(2), CopySigns(lag_bytes=3 * SIZE))
    assert waiting == {HoldCause.COPY_WAITS: 3 * SIZE, HoldCause.ACTIVE_SEGMENT: 500}
    halted = with_signs(local, finished(2), CopySigns(9, 3 * SIZE, halted_partitions=1))
    assert halted == {HoldCause.COPY_HALTED: 3 * SIZE, HoldCause.ACTIVE_SEGMENT: 500}


def test_small_segment_that_time_has_rolled_is_none_that_is_active() -> None:
    local = local_tier(0, 20, 30, 300)
    assert with_signs(local, finished(2), None) == {HoldCause.ACTIVE_SEGMENT: 300}
    assert with_signs(local, finished(2), CopySigns(failures=1)) == {HoldCause.COPY_FAILED: 300}
    known = with_signs(local, finished(2), CopySigns(failures=1, lag_bytes=200))
    assert known == {HoldCause.COPY_FAILED: 200, HoldCause.ACTIVE_SEGMENT: 100}
    # The copies failed a moment ago, and have caught up since.
    assert with_signs(local, finished(2), CopySigns(failures=1, lag_bytes=0)) == {
        HoldCause.ACTIVE_SEGMENT: 300
    }


def test_copy_whose_remains_cannot_be_deleted_has_failed() -> None:
    local = local_tier(0, 20, 60, 3 * SIZE + 500)
    given_up = remote_segment(
        9, 20, 29, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, size=SIZE, age_ms=1000
    )
    # The segments behind the failed one wait for it.
    assert causes(holds(local, [*finished(2), given_up])) == {
        HoldCause.COPY_FAILED: 2 * SIZE + 500,
        HoldCause.ACTIVE_SEGMENT: SIZE,
    }
