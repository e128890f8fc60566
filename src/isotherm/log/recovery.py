"""Plans how to load a partition's directory from the file names in it. Pure.

`.deleted` files wait to be removed. `.cleaned` files are the output of a cleaner that did not
finish. `.swap` files are finished output that replaces its sources. The names alone show whether a
crash came before the replacement took effect (roll back) or after (roll forward), since the cleaner
renames `.cleaned` to `.swap` from the highest base offset down. Source: Kafka LogLoader.java,
KIP-58 swap protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isotherm.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SegmentFileName,
    parse_segment_file_name,
    segment_file_name,
)
from isotherm.types import Offset

_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class LeftoverPlan:
    """First step: remove `deletions`, in this order. Then the caller finds the end offsets of
    `swap_base_offsets`."""

    deletions: tuple[str, ...]
    swap_base_offsets: tuple[Offset, ...]


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """Second step: remove the originals that the swap files replace, then rename the swap
    files."""

    deletions: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SegmentFilesPlan:
    """Third step: the segments.

    `lost` has the names of missing `.log` files with an existing index. A log file is created
    before its indexes and removed after them, so it must have been lost.
    """

    base_offsets: tuple[Offset, ...]
    with_transaction_index: frozenset[Offset]
    lost: tuple[str, ...]


def plan_leftovers(names: Iterable[str]) -> LeftoverPlan:
    files = _segment_files(names)
    cleaned = [file.base_offset for file in files if file.temporary_suffix == CLEANED_SUFFIX]
    min_cleaned = min(cleaned, default=None)
    rolled_back: list[str] = []
    unused: list[str] = []
    swaps: set[Offset] = set()
    for file in files:
        is_swap = file.temporary_suffix == SWAP_SUFFIX
        # A `.cleaned` at or below shows that not all were renamed: the old ones are still there.
        if is_swap and min_cleaned is not None and file.base_offset >= min_cleaned:
            rolled_back.append(segment_file_name(*file))
        elif file.temporary_suffix in (DELETED_SUFFIX, CLEANED_SUFFIX):
            unused.append(segment_file_name(*file))
        elif is_swap and file.suffix == LOG_SUFFIX:
            swaps.add(file.base_offset)
    # Swap files first: after another crash a swap file without its `.cleaned` file would take
    # effect. Indexes go before their log file, which shows that they are left over.
    indexes = _indexes_on_their_way_out(files)
    return LeftoverPlan((*rolled_back, *indexes, *unused), tuple(sorted(swaps)))


def plan_swaps(names: Iterable[str], swapped_ranges: Sequence[tuple[Offset, Offset]]) -> SwapPlan:
    """`swapped_ranges` are (base offset, next offset) of each remaining `.log.swap`.

    An empty one above another one is the cover of `segment_swap`: it takes part, and is then
    removed.
    """
    deletions: list[str] = []
    renames: list[tuple[str, str]] = []
    start = min((base for base, _ in swapped_ranges), default=0)
    # An empty swap file replaces at least the segment of its own name.
    end = max((max(following, base + 1) for base, following in swapped_ranges), default=0)
    covers = {base for base, following in swapped_ranges if base == following and base > start}
    for file in _segment_files(names):
        if file.temporary_suffix == SWAP_SUFFIX and file.base_offset in covers:
            deletions.append(segment_file_name(*file))
        elif file.temporary_suffix == SWAP_SUFFIX:
            source = segment_file_name(*file)
            renames.append((source, segment_file_name(file.base_offset, file.suffix)))
        # Producer snapshots as well, as in Kafka: the load makes the needed ones again.
        elif start <= file.base_offset < end:
            deletions.append(segment_file_name(*file))
    return SwapPlan(tuple(deletions), tuple(renames))


def plan_segment_files(names: Iterable[str]) -> SegmentFilesPlan:
    files = _segment_files(names)
    bases = {file.base_offset for file in files if file.suffix == LOG_SUFFIX}
    of = {
        suffix: {file.base_offset for file in files if file.suffix == suffix}
        for suffix in _INDEX_SUFFIXES
    }
    indexed = set[Offset]().union(*of.values())
    return SegmentFilesPlan(
        tuple(sorted(bases)),
        frozenset(bases & of[TRANSACTION_INDEX_SUFFIX]),
        tuple(segment_file_name(base, LOG_SUFFIX) for base in sorted(indexed - bases)),
    )


def first_segment_to_recover(
    base_offsets: Sequence[Offset], recovery_point: Offset, *, clean_shutdown: bool
) -> int:
    """The index of the first segment that a crash may have damaged; the number of segments if none.

    Segments that are wholly below the recovery point were synced.
    """
    if clean_shutdown:
        return len(base_offsets)
    first = 0
    for index, base_offset in enumerate(base_offsets):
        if base_offset <= recovery_point:
            first = index
    return first


def loaded_log_start_offset(
    checkpoint: Offset, first_base_offset: Offset, *, remote_log_enabled: bool
) -> Offset:
    """The log start. With tiered storage it may be far below the first local segment."""
    return checkpoint if remote_log_enabled else max(checkpoint, first_base_offset)


def _indexes_on_their_way_out(files: Iterable[SegmentFileName]) -> list[str]:
    """Indexes that a crash kept from being renamed to `.deleted` after their log file."""
    there = set(files)
    return [
        segment_file_name(*file)
        for file in files
        if file.suffix in _INDEX_SUFFIXES
        and not file.temporary_suffix
        and file._replace(suffix=LOG_SUFFIX) not in there
        and file._replace(suffix=LOG_SUFFIX, temporary_suffix=DELETED_SUFFIX) in there
        and file._replace(temporary_suffix=DELETED_SUFFIX) not in there
    ]


def _segment_files(names: Iterable[str]) -> list[SegmentFileName]:
    files = [parse_segment_file_name(name) for name in names]
    return sorted(file for file in files if file is not None)
