"""Checks the offset index, time index and epoch checkpoint of a segment against its log. Pure.

Entries of any version of Kafka are accepted: for an append of one or more batches the offset index
has the last offset, and the position of the first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import CorruptDataError
from isotherm.remote.scrub.findings import FindingKind, Problem
from isotherm.remote.scrub.log_batches import LogBatches, check_epochs
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, read_leader_epoch_checkpoint
from isotherm.segment.leader_epochs import epochs_within, first_out_of_order
from isotherm.segment.offset_index import check_offset_index, offset_index_entry_count
from isotherm.segment.time_index import check_time_index, time_index_entry_count

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_PROBLEMS_MAX = 5


def check_offset_index_entries(
    index: bytes, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    kind = FindingKind.WRONG_OFFSET_INDEX
    base_offset = segment.start_offset
    try:
        check_offset_index(index, base_offset)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    entries = np.frombuffer(index, _OFFSET_ENTRY, offset_index_entry_count(index))
    offsets = entries["offset"].astype(np.int64) + base_offset
    positions = entries["position"].astype(np.int64)
    rows = batches.rows
    first, is_start = _rows_at(rows["position"], positions)
    last, is_last = _rows_at(rows["last_offset"], offsets)
    # An entry may stand for several batches of one append, which end before those of the next.
    ends_before_next = np.append(last[:-1] < first[1:], True) if len(first) else is_start
    wrong = ~(is_start & is_last & (first <= last) & ends_before_next)
    return [
        Problem(
            kind,
            f"entry leads to no batch of its offset entry={number} offset={offsets[number]}"
            f" position={positions[number]}",
        )
        for number in np.flatnonzero(wrong)[:_PROBLEMS_MAX].tolist()
    ]


def check_time_index_entries(
    index: bytes, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    kind = FindingKind.WRONG_TIME_INDEX
    base_offset = segment.start_offset
    try:
        check_time_index(index, base_offset)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    entries = np.frombuffer(index, _TIME_ENTRY, time_index_entry_count(index))
    offsets = entries["offset"].astype(np.int64) + base_offset
    times = entries["timestamp"].astype(np.int64)
    rows = batches.rows
    largest = int(rows["max_timestamp"].max(initial=-1))
    if len(rows) == 0:
        return []
    so_far = np.maximum.accumulate(rows["max_timestamp"])
    holding = np.minimum(np.searchsorted(rows["last_offset"], offsets), len(rows) - 1)
    is_held = (rows["base_offset"][holding] <= offsets) & (offsets <= rows["last_offset"][holding])
    rises = np.append(True, (np.diff(times) > 0) & (np.diff(offsets) >= 0))[: len(times)]
    wrong = ~(is_held & (so_far[holding] == times) & rises)
    problems = [
        Problem(
            kind,
            "entry is not the largest timestamp up to its offset"
            f" entry={number} timestamp_ms={times[number]} offset={offsets[number]}",
        )
        for number in np.flatnonzero(wrong)[:_PROBLEMS_MAX].tolist()
    ]
    closing = int(times[-1]) if len(times) else -1
    # The last entry may be among the wrong ones: a fault is named once. An entry of time 0 at the
    # base offset looks like padding.
    if largest > 0 and closing != largest and not problems:
        problems.append(
            Problem(
                kind,
                f"last entry is not the log's largest timestamp timestamp_ms={closing}"
                f" expected={largest}",
            )
        )
    return problems


def check_epoch_checkpoint(
    checkpoint: bytes, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    """Compare the checkpoint with the batches, and with the segment's epochs in the metadata, which
    are a part of it."""
    kind = FindingKind.WRONG_EPOCH_CHECKPOINT
    try:
        entries = read_leader_epoch_checkpoint(checkpoint)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    if first_out_of_order(entries) is not None:
        return [Problem(kind, f"entries do not rise entries={_text(entries)}")]
    if entries and entries[-1].start_offset > segment.end_offset_inclusive:
        return [Problem(kind, f"an epoch begins beyond the segment entries={_text(entries[-1:])}")]
    epochs = epochs_within(entries, segment.start_offset, segment.end_offset_inclusive + 1)
    expected = dict(segment.segment_leader_epochs)
    if epochs != expected:
        fact = f"checkpoint and metadata differ checkpoint={epochs} metadata={expected}"
        return [Problem(kind, fact)]
    return check_epochs(batches, dict(entries), kind, "the checkpoint")


def _text(entries: list[EpochEntry]) -> str:
    return ",".join(f"{epoch}:{start}" for epoch, start in entries[:10])


def _rows_at(sorted_values: Int64Array, values: Int64Array) -> tuple[Int64Array, BoolArray]:
    """The index of each of `values` in `sorted_values`, and whether it occurs there."""
    if len(sorted_values) == 0:
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    at = np.searchsorted(sorted_values, values)
    held = np.minimum(at, len(sorted_values) - 1)
    return held, sorted_values[held] == values
