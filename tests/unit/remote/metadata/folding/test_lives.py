"""How a window of records is sorted: which are dropped, laid down, buried, or left to the cache.

test_columnar_fold.py compares the results. Here it is shown that records of orderly lives do not go
one by one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from isotherm.kernels.event_table import TOMBSTONE
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, decode_run
from isotherm.remote.metadata.folding.lives import Window, weigh
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.wire.events import columns_of
from tests.unit.remote.metadata.folding.test_columnar_fold import (
    DELETED,
    DELETING,
    FINISHED,
    PARTITION,
    STARTED,
    Record,
    added,
    life,
    partition_deleted,
    put,
    tombstone,
    updated,
)


def run_of(records: list[Record]) -> DecodedRun:
    numbered = [MetadataTopicRecord(0, at, 0, *record) for at, record in enumerate(records)]
    return decode_run(columns_of(numbered, 0))


def weighed(
    records: list[Record],
    before: RemoteLogMetadataCache | None = None,
    places: list[int] | None = None,
) -> Window:
    run = run_of(records)
    place = np.where(run.events["kind"] < TOMBSTONE, 0, -1) if places is None else np.array(places)
    empty = RemoteLogMetadataCache(PARTITION)
    return weigh(run, place, lambda _: empty if before is None else before)


def sorted_into(window: Window) -> dict[str, list[int]]:
    return {
        "first": window.first.tolist(),
        "last": window.last.tolist(),
        "buried": window.buried.tolist(),
        "others": window.others.tolist(),
        "survivors": window.survivors.tolist(),
    }


def finished(number: int, start: int, end: int) -> list[Record]:
    return life(number, {0: start}, end)[:2]


def cache_of(records: list[Record]) -> RemoteLogMetadataCache:
    fold = ColumnarFold(lambda _: True, lambda offset, reason: pytest.fail(f"{offset} {reason}"))
    fold.feed(run_of(records))
    fold.finish()
    cache = fold.partitions.cache(PARTITION)
    assert cache is not None
    return cache


def test_whole_lives_are_dropped_and_finished_segments_are_laid_down() -> None:
    gone = [record for n in range(6) for record in life(n + 1, {0: 10 * n}, 10 * n + 9)]
    kept = [record for n in range(6, 9) for record in finished(n + 1, 10 * n, 10 * n + 9)]
    window = weighed([*gone, *kept])
    assert sorted_into(window) == {
        "first": [24, 26, 28],
        "last": [25, 27, 29],
        "buried": [],
        "others": [],
        "survivors": [24, 25, 26, 27, 28, 29],
    }
    spans = window.spans
    assert spans.life.tolist() == [0, 1, 2]
    assert spans.epoch.tolist() == [0, 0, 0]
    assert spans.start.tolist() == [60, 70, 80]
    assert spans.end.tolist() == [69, 79, 89]
    assert spans.borders().tolist() == [0, 3]


def test_farthest_segment_of_an_epoch_is_left_to_the_cache() -> None:
    """The highest offset of an epoch outlives its segments (KAFKA-12641)."""
    window = weighed([record for n in range(5) for record in life(n + 1, {0: 10 * n}, 10 * n + 9)])
    last = [16, 17, 18, 19]
    assert sorted_into(window) == {
        "first": [], "last": [], "buried": [], "others": last, "survivors": last,
    }  # fmt: skip


def test_spans_of_several_epochs_are_sorted_by_epoch_and_start() -> None:
    window = weighed(
        [
            *life(1, {1: 20, 2: 25}, 29)[:2],
            *life(2, {0: 0, 1: 5}, 9)[:2],
            *life(3, {1: 10}, 19)[:2],
        ]
    )
    assert window.first.tolist() == [0, 2, 4]
    assert window.others.tolist() == []
    spans = window.spans
    assert list(
        zip(
            spans.epoch.tolist(),
            spans.start.tolist(),
            spans.end.tolist(),
            spans.life.tolist(),
            strict=True,
        )
    ) == [(0, 0, 4, 1), (1, 5, 9, 1), (1, 10, 19, 2), (1, 20, 24, 0), (2, 25, 29, 0)]
    assert spans.borders().tolist() == [0, 1, 4, 5]


def test_segments_of_earlier_windows_are_buried() -> None:
    known = [record for n in range(3) for record in finished(n + 1, 10 * n, 10 * n + 9)]
    deletions = [updated(number, state) for number in (2, 1) for state in (DELETING, DELETED)]
    window = weighed(deletions, cache_of(known))
    assert sorted_into(window) == {
        "first": [], "last": [], "buried": [0, 2], "others": [], "survivors": [0, 1, 2, 3],
    }  # fmt: skip
    begun = weighed([*deletions[:2], updated(1, DELETING)], cache_of(known))
    assert (begun.buried.tolist(), begun.others.tolist()) == ([0], [2])
    unknown = weighed([updated(9, DELETING), updated(9, DELETED)], cache_of(known))
    assert (unknown.buried.tolist(), unknown.others.tolist()) == ([], [0, 1])


def test_new_segments_are_laid_down_above_those_of_earlier_windows() -> None:
    known = cache_of(finished(1, 0, 9))
    assert weighed(finished(2, 10, 19), known).first.tolist() == [0]
    for start in (9, 0):
        assert weighed(finished(2, start, 19), known).others.tolist() == [0, 1]
    # The same segment again is for the cache to decide.
    assert weighed(finished(1, 10, 19), known).others.tolist() == [0, 1]


def test_segments_below_an_overlap_are_laid_down_and_all_others_left_to_the_cache() -> None:
    window = weighed(
        [
            *finished(1, 0, 4),
            *finished(2, 10, 19),
            *finished(3, 19, 24),
            *finished(4, 30, 39),
            # Another epoch has no overlap.
            *life(5, {1: 40}, 49)[:2],
        ]
    )
    assert window.first.tolist() == [0, 8]
    assert window.others.tolist() == [2, 3, 4, 5, 6, 7]


def test_failed_copy_is_dropped_in_an_epoch_of_finished_segments() -> None:
    failed = [added(7, {0: 20}, 29), updated(7, DELETING), updated(7, DELETED)]
    window = weighed([*failed, *finished(8, 20, 29)])
    assert (window.first.tolist(), window.others.tolist()) == ([3], [])
    alone = weighed([*failed, *life(8, {1: 20}, 29)[:2]])
    assert (alone.first.tolist(), alone.others.tolist()) == ([3], [0, 1, 2])


def test_unfinished_lives_are_left_to_the_cache() -> None:
    window = weighed([added(1, {0: 0}, 9), *life(2, {0: 10}, 19)[:3], *finished(3, 20, 29)])
    assert (window.first.tolist(), window.others.tolist()) == ([4], [0, 1, 2, 3])


def test_keyed_states_are_laid_down_if_their_key_is_theirs_alone() -> None:
    window = weighed(
        [
            put(1, {0: 0}, 9, FINISHED),
            put(2, {0: 10}, 19, FINISHED),
            put(3, {0: 20}, 29, FINISHED),
            tombstone(19),
            put(4, {0: 30}, 39, STARTED),
        ]
    )
    assert (window.first.tolist(), window.last.tolist()) == ([0, 2], [0, 2])
    assert window.others.tolist() == [1, 3, 4]
    known = cache_of([put(5, {0: 0}, 9, FINISHED)])
    other_leader = put(6, {0: 10}, 9 + 10, FINISHED, leader=4)
    assert weighed([other_leader], known).first.tolist() == [0]
    same_end = put(6, {1: 0}, 9, FINISHED, leader=4)
    assert weighed([same_end], known).others.tolist() == [0]


def test_records_of_a_deleted_partition_are_dropped_up_to_its_deletion() -> None:
    records = [*life(1, {0: 0}, 9), *finished(2, 10, 19), partition_deleted()]
    window = weighed([*records, partition_deleted(), *finished(3, 0, 9)])
    assert (window.first.tolist(), window.others.tolist()) == ([], [6])
    # Records that contradict their kind must be reported, those after the deletion are ignored.
    bad = added(4, {0: 0}, 9, state=FINISHED)
    assert weighed([bad, *records, bad]).others.tolist() == [0, 7]


def test_unwanted_records_are_dropped_and_those_without_a_meaning_are_kept() -> None:
    damaged: Record = (None, b"odd")
    records = [*finished(1, 0, 9), damaged, *finished(1, 0, 9), tombstone(9)]
    window = weighed(records, places=[-1, -1, -1, 0, 0, -1])
    assert (window.first.tolist(), window.others.tolist()) == ([3], [2, 5])


def test_lives_are_sorted_by_partition() -> None:
    """The same ids in two partitions are two segments."""
    both = list(itertools.chain(*(finished(number, 0, 9) for number in (1, 1))))
    window = weighed(both, places=[1, 1, 0, 0])
    assert (window.first.tolist(), window.last.tolist()) == ([2, 0], [3, 1])
    assert window.spans.place.tolist() == [0, 1]
    assert window.spans.life.tolist() == [0, 1]
    assert window.spans.borders().tolist() == [0, 1, 2]
