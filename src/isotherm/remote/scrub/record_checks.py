"""Decompresses the records of consecutive batches, and compares them with the batch headers.

The CRC proves that the bytes are those that were written. It does not prove that the writer counted
correctly, or that the batch was not damaged before its CRC was computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_table import byte_array, unpack_records
from isotherm.remote.scrub.findings import FindingKind, Problem

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable
    from isotherm.types import Position

DECODED_BYTES = 64 * 1024 * 1024
"""Bytes of records that are decompressed at once. A larger batch is decompressed alone."""


def check_records(data: memoryview, batches: BatchTable, start: Position) -> list[Problem]:
    """Problems of the records of these batches, at most one per batch.

    `data` holds the batches; it begins at `start` of the log.
    """
    problems: list[Problem] = []
    row = 0
    while row < len(batches):
        # Copies: unpacking points the rows elsewhere.
        chunk = batches[row:].copy()
        try:
            unpacked, taken = unpack_records(data, chunk, decoded_size_max=DECODED_BYTES)
        except CorruptRecordError as error:
            if len(chunk) > 1:
                # Rare: decode one batch at a time to find the damaged one.
                # Of `batches`: a failed call may have pointed the rows of `chunk` elsewhere
                # already.
                singles = (batches[i : i + 1] for i in range(row, len(batches)))
                of_batches = (check_records(data, single, start) for single in singles)
                return problems + [
                    problem for chunk_problems in of_batches for problem in chunk_problems
                ]
            detail = (
                f"records cannot be unpacked {_place(batches, row, start)} reason={str(error)!r}"
            )
            return [*problems, Problem(FindingKind.WRONG_RECORDS, detail)]
        problems += _wrong_batches(data, unpacked, chunk[:taken], start)
        row += taken
    return problems


def _wrong_batches(
    data: memoryview, unpacked: np.typing.NDArray[np.uint8], batches: BatchTable, start: Position
) -> list[Problem]:
    from isotherm.kernels import stored as kernels

    problems: list[Problem] = []
    row = -1
    while True:
        verdict, row, index, actual, expected = kernels.find_wrong_batch(
            byte_array(data), unpacked, batches, row + 1
        )
        kind = FindingKind.WRONG_RECORDS
        match verdict:
            case kernels.BATCHES_RIGHT:
                return problems
            case kernels.RECORD_DAMAGED:
                fact = f"record is damaged record_index={index}"
            case kernels.OFFSET_DELTA_WRONG:
                fact = (
                    "record has another offset than its place"
                    f" record_index={index} offset_delta={actual} expected={expected}"
                )
            case _:
                kind = FindingKind.WRONG_TIMESTAMP
                fact = (
                    "batch has another largest timestamp than its records"
                    f" batch={actual} records={expected}"
                )
        problems.append(Problem(kind, f"{fact} {_place(batches, row, start)}"))


def _place(batches: BatchTable, row: int, start: Position) -> str:
    batch = batches[row]
    return (
        f"position={batch['position'] + start} base_offset={batch['base_offset']}"
        f" records_count={batch['records_count']}"
    )
