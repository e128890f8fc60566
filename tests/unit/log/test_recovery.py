"""Which leftover files of a partition's directory a load deletes, renames or keeps. Some are cases
of Kafka's LogCleanerTest."""

from __future__ import annotations

import pytest

from isotherm.log.recovery import (
    first_segment_to_recover,
    loaded_log_start_offset,
    plan_leftovers,
    plan_segment_files,
    plan_swaps,
)
from isotherm.segment.file_names import segment_file_name

KINDS = (".log", ".index", ".timeindex", ".snapshot")


def files(base: int, *, suffix: str = "", kinds: tuple[str, ...] = KINDS) -> list[str]:
    return [segment_file_name(base, kind, suffix) for kind in kinds]


def test_files_marked_for_deletion_go() -> None:
    names = [*files(0, suffix=".deleted"), *files(10), "leader-epoch-checkpoint"]
    assert set(plan_leftovers(names).deletions) == set(files(0, suffix=".deleted"))


def test_checkpoint_files_of_raft_are_left_alone() -> None:
    assert plan_leftovers(["00000000000000000010-0000000001.checkpoint.deleted"]).deletions == ()


def test_unfinished_cleaning_is_rolled_back() -> None:
    """LogCleanerTest.testRecoveryAfterCrash, point 1: the `.cleaned` files and the originals
    exist."""
    names = [*files(0), *files(10), *files(0, suffix=".cleaned")]
    plan = plan_leftovers(names)
    assert set(plan.deletions) == set(files(0, suffix=".cleaned"))
    assert plan.swap_base_offsets == ()
    assert plan_swaps([*files(0), *files(10)], []).deletions == ()


def test_swap_not_finished_for_all_files_is_rolled_back() -> None:
    """Point 2: the `.log` is renamed to `.swap`, its indexes are still `.cleaned`."""
    names = [
        *files(0),
        *files(10),
        segment_file_name(0, ".log", ".swap"),
        segment_file_name(0, ".index", ".cleaned"),
    ]
    plan = plan_leftovers(names)
    assert set(plan.deletions) == set(names[8:])
    assert plan.swap_base_offsets == ()


def test_swap_below_the_first_cleaned_file_is_kept() -> None:
    names = [*files(0, suffix=".swap"), *files(10, suffix=".swap"), *files(10, suffix=".cleaned")]
    plan = plan_leftovers(names)
    assert plan.swap_base_offsets == (0,)
    assert set(plan.deletions) == set(names[4:])


def test_finished_swap_replaces_the_segments_it_covers() -> None:
    """Points 3 and 4: all are `.swap`; the originals are still there, with and without
    `.deleted`."""
    names = [*files(0), *files(10), *files(20), *files(0, suffix=".swap")]
    assert plan_leftovers(names).swap_base_offsets == (0,)
    plan = plan_swaps(names, [(0, 20)])
    assert set(plan.deletions) == {*files(0), *files(10)}
    assert set(plan.renames) == set(zip(files(0, suffix=".swap"), files(0), strict=True))


def test_rolled_back_swap_goes_before_the_cleaned_files_that_say_so() -> None:
    names = [*files(0, suffix=".cleaned"), *files(10, suffix=".swap")]
    assert plan_leftovers(names).deletions[: len(KINDS)] == tuple(sorted(files(10, suffix=".swap")))


def test_empty_swap_above_another_covers_what_nothing_is_left_of() -> None:
    cover = segment_file_name(20, ".log", ".swap")
    names = [*files(0), *files(10), *files(20), *files(30), *files(0, suffix=".swap"), cover]
    assert plan_leftovers(names).swap_base_offsets == (0, 20)
    plan = plan_swaps(names, [(0, 5), (20, 20)])
    assert set(plan.deletions) == {*files(0), *files(10), *files(20), cover}
    assert set(plan.renames) == set(zip(files(0, suffix=".swap"), files(0), strict=True))


def test_segment_that_became_empty_replaces_the_one_it_was_made_from() -> None:
    names = [*files(0), *files(10), *files(0, suffix=".swap")]
    plan = plan_swaps(names, [(0, 0)])
    assert set(plan.deletions) == set(files(0))
    assert set(plan.renames) == set(zip(files(0, suffix=".swap"), files(0), strict=True))


def test_segment_that_became_empty_replaces_no_other() -> None:
    names = [*files(0), *files(1), *files(0, suffix=".swap")]
    assert set(plan_swaps(names, [(0, 0)]).deletions) == set(files(0))


def test_swap_with_only_an_index_left_is_finished() -> None:
    """Point 5: only the time index is not renamed yet."""
    left = segment_file_name(0, ".timeindex", ".swap")
    names = [*files(0, kinds=(".log", ".index")), left, *files(20)]
    assert plan_leftovers(names).swap_base_offsets == ()
    plan = plan_swaps(names, [])
    assert plan.deletions == ()
    assert plan.renames == ((left, segment_file_name(0, ".timeindex")),)


def test_index_without_a_log_tells_of_a_log_that_is_lost() -> None:
    names = [*files(0), *files(10, kinds=(".log", ".timeindex")), *files(20, kinds=KINDS[1:])]
    plan = plan_segment_files(names)
    assert plan.base_offsets == (0, 10)
    assert plan.lost == (f"{20:020d}.log",)


def test_indexes_whose_log_was_renamed_before_a_crash_go_with_it() -> None:
    log = f"{10:020d}.log.deleted"
    names = [*files(0), log, *files(10, kinds=(".index", ".timeindex"))]
    plan = plan_leftovers(names)
    assert plan.deletions == (*files(10, kinds=(".index", ".timeindex")), log)
    # If the indexes of the deleted log are renamed too, these belong to a later segment.
    names += files(10, kinds=(".index.deleted", ".timeindex.deleted"))
    assert set(plan_leftovers(names).deletions).isdisjoint(
        files(10, kinds=(".index", ".timeindex"))
    )


def test_index_of_a_swap_stays_beside_the_old_log_that_waits_for_its_removal() -> None:
    left = segment_file_name(10, ".index", ".swap")
    names = [segment_file_name(10, ".log"), left, segment_file_name(10, ".log", ".deleted")]
    assert plan_leftovers(names).deletions == (names[2],)


def test_segments_with_a_transaction_index_are_known() -> None:
    names = [*files(0), *files(10), segment_file_name(10, ".txnindex")]
    plan = plan_segment_files(names)
    assert plan.with_transaction_index == {10}
    assert plan.lost == ()


@pytest.mark.parametrize(
    ("recovery_point", "first"), [(0, 0), (9, 0), (10, 1), (15, 1), (20, 2), (99, 2)]
)
def test_recovery_begins_with_the_segment_of_the_recovery_point(
    recovery_point: int, first: int
) -> None:
    bases = (0, 10, 20)
    assert first_segment_to_recover(bases, recovery_point, clean_shutdown=False) == first
    assert first_segment_to_recover(bases, recovery_point, clean_shutdown=True) == 3


def test_recovery_of_a_log_that_begins_above_the_recovery_point_takes_all() -> None:
    assert first_segment_to_recover((50, 60), 10, clean_shutdown=False) == 0


def test_log_start_is_the_checkpoint_only_under_tiered_storage() -> None:
    assert loaded_log_start_offset(5, 100, remote_log_enabled=True) == 5
    assert loaded_log_start_offset(5, 100, remote_log_enabled=False) == 100
    assert loaded_log_start_offset(150, 100, remote_log_enabled=False) == 150
