"""The errors of reads of a segment. Each names the records, and says what may be left out.

WrongRowsError and its kinds forbid leaving out the rest: rows that were given may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from isotherm.errors import (
    CorruptObjectError,
    KeyPairNotConfiguredError,
    RemoteResourceNotFoundError,
    UnreadableDataError,
)
from isotherm.remote.storage.segment_blocks import unreadable_records
from isotherm.spark.plan.planning import SegmentRead
from isotherm.spark.reading.proven_batches import MissingOffsetsError, OtherRecordsError
from isotherm.spark.reading.transaction_proof import TransactionMismatchError
from isotherm.types import Offset

_GAPS_HINT = "hint='failOnOffsetGaps=false reads topics that were compacted'"
_UNCOMMITTED_HINT = "hint='isolationLevel=read_uncommitted reads without'"


class SegmentReadError(CorruptObjectError):
    """The segment of `read`, which the message names, is damaged."""

    def __init__(self, message: str, read: SegmentRead) -> None:
        super().__init__(message)
        self.read = read


class SegmentLacksOffsetsError(SegmentReadError):
    """The segment's object lacks its offsets `missing` [first, end)."""

    def __init__(self, message: str, read: SegmentRead, missing: tuple[Offset, Offset]) -> None:
        super().__init__(message, read)
        self.missing = missing


class WrongRowsError(SegmentReadError):
    """Earlier rows may be wrong, so leaving out the rest would not help."""


class WrongTransactionsError(WrongRowsError):
    """The segment's markers contradict its transaction index: earlier rows may belong to aborted
    transactions."""


class OtherSegmentError(WrongRowsError):
    """The segment's log is not the one that its metadata describes."""


class SegmentGoneError(SegmentReadError):
    """An object of the segment does not exist."""


@contextmanager
def named(read: SegmentRead) -> Iterator[None]:
    """Turn lost or damaged data into a SegmentReadError that names the records."""
    try:
        yield
    except (SegmentReadError, KeyPairNotConfiguredError):
        # A setting that is missing is no lost data: failOnDataLoss=false leaves nothing out for it.
        raise
    except UnreadableDataError as error:
        problem = unreadable_records(read.segment, read.start_offset, read.end_offset, error)
        if isinstance(error, RemoteResourceNotFoundError):
            raise SegmentGoneError(problem, read) from error
        if isinstance(error, MissingOffsetsError):
            raise SegmentLacksOffsetsError(
                f"{problem} {_GAPS_HINT}", read, error.missing
            ) from error
        if isinstance(error, OtherRecordsError):
            raise OtherSegmentError(f"{problem} {_GAPS_HINT}", read) from error
        if isinstance(error, TransactionMismatchError):
            raise WrongTransactionsError(f"{problem} {_UNCOMMITTED_HINT}", read) from error
        raise SegmentReadError(problem, read) from error
