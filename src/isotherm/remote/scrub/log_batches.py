"""Reads the batches of a segment's `.log` once from its start, and collects problems.

The work is by kernels and columns, with a row per batch. Python reads a single batch only if it is
damaged, or if it is a control batch of an unusual form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import read_batch_header, verify_batch_crc
from isotherm.record.batch_header import (
    BASE_SEQUENCE_POSITION,
    DELETE_HORIZON_FLAG,
    PRODUCER_EPOCH_POSITION,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
)
from isotherm.record.batch_table import (
    gather_integers,
    leader_epochs,
    read_batch_table,
    verify_crcs,
)
from isotherm.record.control_table import NO_MARKER, coordinator_epochs, marker_types
from isotherm.record.header_contradictions import header_contradictions
from isotherm.remote.history.epoch_columns import ExpectedEpochs
from isotherm.remote.scrub.findings import FindingKind, Problem
from isotherm.remote.scrub.record_checks import check_records
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.segment_blocks import BatchJoiner
from isotherm.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import BatchTable
    from isotherm.types import Position

    Rows: TypeAlias = npt.NDArray[np.void]
    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

ROW = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("leader_epoch", np.int32),
        ("producer_epoch", np.int16),
        ("base_sequence", np.int32),
        # The epoch in a transaction marker; NO_COORDINATOR_EPOCH for other batches.
        ("coordinator_epoch", np.int32),
        ("attributes", np.int16),
        ("crc", np.int64),
        # The type of the control record; NO_MARKER for data.
        ("marker", np.int16),
        # Whether every offset of the batch has its record.
        ("is_dense", np.bool_),
    ]
)

_POSITION = re.compile(r"\bposition=(\d+)")
_PROBLEMS_MAX = 10
"""Most problems of one kind that are reported for one segment."""


@dataclass(frozen=True, slots=True)
class LogBatches:
    """`rows` (of ROW) are the complete batches in log order, `size` their bytes; `problems` were
    found while reading. Batches after a damaged header are unknown."""

    rows: Rows
    size: int
    problems: tuple[Problem, ...]

    @property
    def is_control(self) -> BoolArray:
        control: BoolArray = self.rows["marker"] != NO_MARKER
        return control

    @property
    def is_transactional(self) -> BoolArray:
        transactional: BoolArray = (self.rows["attributes"] & TRANSACTIONAL_FLAG) != 0
        return transactional

    @property
    def is_cleaned(self) -> bool:
        """Whether a batch shows that the segment was compacted."""
        has_horizon = (self.rows["attributes"] & DELETE_HORIZON_FLAG) != 0
        return bool((~self.rows["is_dense"] | has_horizon).any())


def read_log_batches(
    blocks: Iterable[memoryview], log_size: int, *, with_records: bool = True
) -> LogBatches:
    """Read and check the batches of a log. `blocks` are the `log_size` bytes of a `.log` file from
    its start, cut anywhere. Without `with_records` only headers and CRCs are checked."""
    tables: list[Rows] = []
    problems: list[Problem] = []
    joiner = BatchJoiner(log_size)
    try:
        for block in blocks:
            for data in joiner.parts(block):
                start = joiner.position
                batches, size = _read_table(data, start)
                is_wrong, crc_problems = _wrong_crcs(data, batches, start)
                problems += crc_problems
                # Only batches with a right CRC: damaged bytes would fail each further check.
                problems += _wrong_headers(data, batches[~is_wrong], start)
                if with_records:
                    problems += check_records(data, batches[~is_wrong], start)
                tables.append(_rows(data, batches, start))
                joiner.took(data, size)
        joiner.end()
    except CorruptRecordError as error:
        problems.append(Problem(FindingKind.DAMAGED_BATCH, str(error)))
    return LogBatches(_joined(tables), joiner.position, tuple(problems))


def _read_table(data: memoryview, start: Position) -> tuple[BatchTable, int]:
    try:
        return read_batch_table(data)
    except CorruptRecordError as error:
        raise CorruptRecordError(_moved(str(error), start)) from error


def check_offsets(
    batches: LogBatches, segment: RemoteLogSegmentMetadata, *, may_have_gaps: bool
) -> list[Problem]:
    """Offsets must rise within those of the segment, without a gap unless `may_have_gaps` or the
    segment was compacted."""
    rows = batches.rows
    if len(rows) == 0:
        if segment.segment_size_in_bytes:
            return [Problem(FindingKind.WRONG_OFFSETS, "segment holds no batch")]
        # The cleaner may leave nothing of a segment.
        offsets = (segment.start_offset, segment.end_offset_inclusive)
        return [] if may_have_gaps else [_gap(*offsets)]
    problems: list[Problem] = []
    base, last = rows["base_offset"], rows["last_offset"]
    nexts = np.concatenate([[segment.start_offset], last[:-1] + 1])
    problems += [
        Problem(
            FindingKind.WRONG_OFFSETS,
            f"batch begins too low position={rows['position'][row]} base_offset={base[row]}"
            f" expected_min={nexts[row]}",
        )
        for row in np.flatnonzero(base < nexts)[:_PROBLEMS_MAX].tolist()
    ]
    if last[-1] > segment.end_offset_inclusive:
        problems.append(
            Problem(
                FindingKind.WRONG_OFFSETS,
                f"log ends above its segment last_offset={last[-1]}"
                f" end_offset={segment.end_offset_inclusive}",
            )
        )
    if not may_have_gaps and not batches.is_cleaned:
        problems += _gaps(base, nexts, int(last[-1]), segment.end_offset_inclusive)
    return problems


def _gaps(
    base: Int64Array, nexts: Int64Array, last_offset: Offset, end_offset: Offset
) -> list[Problem]:
    gaps = [(int(nexts[row]), int(base[row]) - 1) for row in np.flatnonzero(base > nexts).tolist()]
    if last_offset < end_offset:
        gaps.append((last_offset + 1, end_offset))
    return [_gap(first, last) for first, last in gaps[:_PROBLEMS_MAX]]


def _gap(first: Offset, last: Offset) -> Problem:
    return Problem(FindingKind.OFFSET_GAP, f"offsets have no batch first={first} last={last}")


def check_epochs(
    batches: LogBatches, epochs: Mapping[LeaderEpoch, Offset], kind: FindingKind, whose: str
) -> list[Problem]:
    """Every batch must have the leader epoch of its offset in `epochs`, as `ExpectedEpochs` has
    them."""
    expected, rows = ExpectedEpochs(epochs), batches.rows
    wrong = np.flatnonzero(expected.wrong(rows["leader_epoch"], rows["base_offset"]))
    if len(wrong) == 0:
        return []
    first = rows[wrong[0]]
    expected_epoch = expected.at(first["base_offset"])
    return [
        Problem(
            kind,
            f"batches have another leader epoch than {whose} says batches={len(wrong)}"
            f" first_position={first['position']} base_offset={first['base_offset']}"
            f" epoch={first['leader_epoch']} expected={expected_epoch}",
        )
    ]


def check_same_batches(batches: LogBatches, others: LogBatches, whose: str) -> list[Problem]:
    """Batches with the same offsets and epoch in two segments must be equal: a leader writes one.
    Batches of cleaned segments are not compared, because a cleaner rewrites them. Of batches that a
    damaged log repeats the first one is compared: the repetition is another problem."""
    if batches.is_cleaned or others.is_cleaned:
        return []
    _, rows, other_rows = np.intersect1d(
        batches.rows[["base_offset", "leader_epoch"]],
        others.rows[["base_offset", "leader_epoch"]],
        return_indices=True,
    )
    differs = batches.rows["crc"][rows] != others.rows["crc"][other_rows]
    if not differs.any():
        return []
    first = batches.rows[rows[differs.argmax()]]
    return [
        Problem(
            FindingKind.CONFLICTING_SEGMENT,
            f"another segment holds other batches of the same offsets batches={differs.sum()}"
            f" base_offset={first['base_offset']} epoch={first['leader_epoch']} segment={whose}",
        )
    ]


def check_timestamp_types(batches: LogBatches) -> list[Problem]:
    """Find batches whose timestamp type differs from those of both neighbours. A leader appends all
    batches with the topic's type. Changing it for a single batch is possible, but not done."""
    rows = batches.rows[~batches.is_control]
    is_append_time = (rows["attributes"] & TIMESTAMP_TYPE_FLAG) != 0
    differs = is_append_time[1:] != is_append_time[:-1]
    return [
        Problem(
            FindingKind.WRONG_TIMESTAMP,
            "batch has another timestamp type than those beside it"
            f" position={rows['position'][row]} base_offset={rows['base_offset'][row]}",
        )
        for row in (np.flatnonzero(differs[1:] & differs[:-1]) + 1)[:_PROBLEMS_MAX].tolist()
    ]


def _rows(data: memoryview, batches: BatchTable, start: Position) -> Rows:
    rows = np.empty(len(batches), dtype=ROW)
    positions = batches["position"]
    rows["position"] = positions + start
    rows["base_offset"] = batches["base_offset"]
    rows["last_offset"] = batches["base_offset"] + batches["last_offset_delta"]
    rows["max_timestamp"] = batches["max_timestamp"]
    rows["producer_id"] = batches["producer_id"]
    rows["leader_epoch"] = leader_epochs(data, batches)
    rows["producer_epoch"] = gather_integers(data, positions + PRODUCER_EPOCH_POSITION, ">i2")
    rows["base_sequence"] = gather_integers(data, positions + BASE_SEQUENCE_POSITION, ">i4")
    rows["attributes"] = batches["attributes"]
    rows["crc"] = batches["crc"]
    rows["marker"] = marker_types(data, batches)
    rows["coordinator_epoch"] = coordinator_epochs(data, batches)
    rows["is_dense"] = batches["records_count"] == batches["last_offset_delta"] + 1
    return rows


def _wrong_crcs(
    data: memoryview, batches: BatchTable, start: Position
) -> tuple[BoolArray, list[Problem]]:
    """The batches with a wrong CRC, and the problems."""
    is_wrong = np.zeros(len(batches), np.bool_)
    problems: list[Problem] = []
    try:
        verify_crcs(data, batches)
    # Rare, so only now batch by batch in Python, to name all of them.
    except CorruptRecordError:
        for row, position in enumerate(batches["position"].tolist()):
            try:
                verify_batch_crc(data, position, read_batch_header(data, position))
            except CorruptRecordError as error:
                is_wrong[row] = True
                problems.append(Problem(FindingKind.WRONG_CRC, _moved(str(error), start)))
    return is_wrong, problems


def _wrong_headers(data: memoryview, batches: BatchTable, start: Position) -> list[Problem]:
    return [
        Problem(
            FindingKind.WRONG_HEADER,
            f"{fact} position={batches['position'][row] + start}"
            f" base_offset={batches['base_offset'][row]}"
            f" producer_id={batches['producer_id'][row]}",
        )
        for fact, is_wrong in header_contradictions(data, batches)
        for row in np.flatnonzero(is_wrong)[:_PROBLEMS_MAX].tolist()
    ]


def _moved(message: str, start: Position) -> str:
    """The message with positions in the log instead of the block."""
    return _POSITION.sub(lambda match: f"position={int(match[1]) + start}", message)


def _joined(tables: list[Rows]) -> Rows:
    return np.concatenate(tables) if tables else np.empty(0, dtype=ROW)
