"""The columnar fold of a metadata topic gives the result of the fold record by record, whatever the
topic holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.folding.fold import Folded, fold_metadata_partition
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.metadata_histories import UNWANTED, Record, histories, orderly_histories


def folded(
    records: list[Record], *, by_columns: bool, run_max_bytes: int
) -> tuple[dict[str, Any], list[str]]:
    topic = MemoryMetadataTopic(1)
    for key, value in records:
        topic.append(0, key, value, 0)
    problems: list[str] = []
    result = fold_metadata_partition(
        topic,
        0,
        lambda partition: partition != UNWANTED,
        lambda error: problems.append(str(error)),
        columnar_records_min=0 if by_columns else 10**9,
        run_max_bytes=run_max_bytes,
    )
    assert result.next_offset == len(records)
    return {**described(result), "deleted": sorted(map(repr, result.deleted))}, problems


def described(result: Folded) -> dict[str, Any]:
    """All that the caches of a fold answer, and their inner state."""
    return {
        str(cache.partition): {
            "segments": cache.segments(),
            "keys": [(end, cache.keys_at(end)) for end in range(10)],
            "stale": sorted(cache.stale_keys()),
            "by key": [cache.find_by_key(end, e) for end in range(10) for e in (-2, -1, 0, 3)],
            "deletion": deletion,
            "epochs": {
                epoch: (
                    cache.segments(epoch),
                    cache.highest_offset_for_epoch(epoch),
                    [cache.find(epoch, offset) for offset in range(11)],
                    [cache.find_with_txn_index(epoch, offset) for offset in range(11)],
                )
                for epoch in range(3)
            },
            "inside": {
                epoch: (
                    *(state.referenced(), state.unreferenced, dict(state._hidden)),
                    *(bytes(state._marked), bytes(state._parted)),
                )
                for epoch, state in cache._epochs.items()
            },
        }
        for cache, deletion in result.partitions
    }


@given(st.one_of(histories, orderly_histories()), st.sampled_from([1, 150, 700, 1 << 20]))
@settings(max_examples=300)
def test_fold_by_columns_is_the_fold_record_by_record(
    records: list[Record], run_max_bytes: int
) -> None:
    state, problems = folded(records, by_columns=False, run_max_bytes=run_max_bytes)
    columns_state, columns_problems = folded(records, by_columns=True, run_max_bytes=run_max_bytes)
    assert [_place(problem) for problem in columns_problems] == [
        _place(problem) for problem in problems
    ]
    assert columns_state == state


def _place(problem: str) -> str:
    return problem.partition(" reason=")[0]


@given(histories)
@settings(max_examples=50)
def test_first_record_without_meaning_is_named_whichever_way_it_is_read(
    records: list[Record],
) -> None:
    topic = MemoryMetadataTopic(1)
    for key, value in records:
        topic.append(0, key, value, 0)
    named = []
    for columnar_records_min in (0, 10**9):
        try:
            fold_metadata_partition(
                topic,
                0,
                lambda partition: partition != UNWANTED,
                columnar_records_min=columnar_records_min,
            )
            named.append("none")
        except CorruptMetadataError as error:
            named.append(_place(str(error)))
    assert named[0] == named[1]
