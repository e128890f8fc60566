"""The indexes of a segment against its log: whether each entry says what is there. Pure.

Entries are as the log writes them, in Kafka of any version: of an append of one or more batches the
offset index has the last offset and the position of the first of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import CorruptDataError
from isotherm.record.control import ControlRecordType
from isotherm.record.control_table import NO_MARKER
from isotherm.remote.lineage import epoch_for_offset
from isotherm.remote.scrub.findings import FindingKind, Problem
from isotherm.remote.scrub.log_batches import LogBatches, check_epochs
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, read_leader_epoch_checkpoint
from isotherm.segment.offset_index import check_offset_index, offset_index_entry_count
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.segment.time_index import check_time_index, time_index_entry_count
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.types import Offset, ProducerId

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
    if largest >= 0 and closing != largest and not problems:
        problems.append(
            Problem(
                kind,
                f"last entry is not the log's largest timestamp timestamp_ms={closing}"
                f" expected={largest}",
            )
        )
    return problems


def check_transaction_index_entries(
    index: bytes | None, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    """`index` is None where the segment has none: then no transaction of its may be aborted."""
    kind = FindingKind.WRONG_TRANSACTION_INDEX
    try:
        entries = read_transaction_index(index or b"", segment.start_offset)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    problems = [
        Problem(kind, f"{fact} producer_id={entry.producer_id} last_offset={entry.last_offset}")
        for entry in entries
        if (fact := _wrong_entry(entry, batches, segment)) is not None
    ]
    listed = {(entry.producer_id, entry.last_offset) for entry in entries}
    problems += [
        Problem(kind, f"aborted transaction is not listed producer_id={producer} marker={offset}")
        for producer, offset in _aborted_here(batches)
        if (producer, offset) not in listed
    ]
    return problems[:_PROBLEMS_MAX]


def _wrong_entry(
    entry: AbortedTransaction, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> str | None:
    rows = batches.rows
    at = int(np.searchsorted(rows["last_offset"], entry.last_offset))
    if at == len(rows) or rows["base_offset"][at] > entry.last_offset:
        return "entry's marker is not in the log"
    marker = rows[at]
    if marker["marker"] != ControlRecordType.ABORT or marker["producer_id"] != entry.producer_id:
        return "entry's marker is not an abort of its producer"
    if not entry.first_offset <= entry.last_offset:
        return "entry begins above its end"
    if segment.start_offset <= entry.first_offset and not batches.is_cleaned:
        begins = int(np.searchsorted(rows["base_offset"], entry.first_offset))
        if begins == len(rows) or (
            rows["base_offset"][begins] != entry.first_offset
            or rows["producer_id"][begins] != entry.producer_id
        ):
            return "entry's transaction does not begin there"
    return None


def _aborted_here(batches: LogBatches) -> list[tuple[ProducerId, Offset]]:
    """Abort markers of producers with data in this segment since their last marker.

    A marker alone tells nothing: its transaction may have been empty, or lie in other segments.
    """
    rows = batches.rows[batches.is_transactional | batches.is_control]
    aborts = rows["marker"] == ControlRecordType.ABORT
    if not aborts.any():
        return []
    # By producer, then by offset: the row before a marker is data, or the marker before it.
    order = np.lexsort((rows["base_offset"], rows["producer_id"]))
    ordered = rows[order]
    is_data = ordered["marker"][:-1] == NO_MARKER
    follows_data = (ordered["producer_id"][1:] == ordered["producer_id"][:-1]) & is_data
    is_found = np.append(False, follows_data) & (ordered["marker"] == ControlRecordType.ABORT)
    found = ordered[is_found]
    return list(zip(found["producer_id"].tolist(), found["base_offset"].tolist(), strict=True))


def check_producer_snapshot(
    snapshot: bytes, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    """That a producer is absent is no damage: brokers forget those who were idle for long. Nor
    that compaction took a producer's batches."""
    kind = FindingKind.WRONG_PRODUCER_SNAPSHOT
    try:
        entries = read_producer_snapshot(snapshot)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    last_written = _last_offsets_by_producer(batches)
    return [
        Problem(kind, f"{fact} producer_id={entry.producer_id} last_offset={entry.last_offset}")
        for entry in entries
        if (fact := _wrong_producer(entry, last_written, segment, is_cleaned=batches.is_cleaned))
    ][:_PROBLEMS_MAX]


def _wrong_producer(
    entry: ProducerSnapshotEntry,
    last_written: dict[tuple[ProducerId, int], Offset],
    segment: RemoteLogSegmentMetadata,
    *,
    is_cleaned: bool,
) -> str | None:
    if entry.last_offset > segment.end_offset_inclusive:
        return "producer's last batch is beyond the segment"
    if entry.current_transaction_first_offset > segment.end_offset_inclusive:
        return "producer's transaction begins beyond the segment"
    written = last_written.get((entry.producer_id, entry.producer_epoch))
    if is_cleaned or entry.last_offset < 0:
        return None  # or nothing but a marker since the producer's epoch was raised
    if written is not None and written != entry.last_offset:
        return f"producer's last batch is another one in the log={written}"
    if written is None and entry.last_offset >= segment.start_offset:
        return "producer's last batch is not in the log"
    return None


def _last_offsets_by_producer(batches: LogBatches) -> dict[tuple[ProducerId, int], Offset]:
    data = batches.rows[~batches.is_control & (batches.rows["producer_id"] >= 0)]
    if len(data) == 0:
        return {}
    order = np.lexsort((data["base_offset"], data["producer_epoch"], data["producer_id"]))
    ordered = data[order]
    changes = (np.diff(ordered["producer_id"]) != 0) | (np.diff(ordered["producer_epoch"]) != 0)
    lasts = ordered[np.append(changes, True)]
    columns = (lasts[name].tolist() for name in ("producer_id", "producer_epoch", "last_offset"))
    return {(producer, epoch): last for producer, epoch, last in zip(*columns, strict=True)}


def check_epoch_checkpoint(
    checkpoint: bytes, batches: LogBatches, segment: RemoteLogSegmentMetadata
) -> list[Problem]:
    """Against the batches and against the segment's own epochs, which are a part of it."""
    kind = FindingKind.WRONG_EPOCH_CHECKPOINT
    try:
        entries = read_leader_epoch_checkpoint(checkpoint)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    if any(
        later.epoch <= entry.epoch or later.start_offset < entry.start_offset
        for entry, later in pairwise(entries)
    ):
        return [Problem(kind, f"entries do not rise entries={_text(entries)}")]
    if entries and entries[-1].start_offset > segment.end_offset_inclusive:
        return [Problem(kind, f"an epoch begins beyond the segment entries={_text(entries[-1:])}")]
    by_epoch = dict(entries)
    for epoch, start in segment.segment_leader_epochs.items():
        told = by_epoch.get(epoch)
        if told is None or max(told, segment.start_offset) != start:
            return [
                Problem(
                    kind,
                    f"checkpoint and metadata differ epoch={epoch} metadata_start={start}"
                    f" checkpoint_start={told}",
                )
            ]
    if epoch_for_offset(entries, segment.start_offset) is None:
        return [Problem(kind, "no epoch holds the segment's first offset")]
    return check_epochs(batches, entries, kind, "the checkpoint")


def _text(entries: list[EpochEntry]) -> str:
    return ",".join(f"{epoch}:{start}" for epoch, start in entries[:10])


def _rows_at(sorted_values: Int64Array, wanted: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Where each of `wanted` stands in `sorted_values`, and whether it does."""
    if len(sorted_values) == 0:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.searchsorted(sorted_values, wanted)
    held = np.minimum(at, len(sorted_values) - 1)
    return held, sorted_values[held] == wanted
