"""The transaction index of a segment (`.txnindex`): its aborted transactions.

    | at | size | field                                                            |
    |----|------|------------------------------------------------------------------|
    | 0  | 2    | version = 0 (i16)                                                |
    | 2  | 8    | producer id (i64)                                                |
    | 10 | 8    | first offset of the transaction (i64)                            |
    | 18 | 8    | last offset: that of the abort marker (i64)                      |
    | 26 | 8    | last stable offset when the transaction was aborted (i64)        |

Big-endian entries of 34 bytes in the order of the markers, so last offsets rise. The file exists
only if the segment has an abort marker. Source: Kafka TransactionIndex.java, AbortedTxn.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from isotherm.errors import CorruptIndexError
from isotherm.segment.offset_index import Buffer
from isotherm.types import Offset, ProducerId

TRANSACTION_INDEX_ENTRY_SIZE = 34
TRANSACTION_INDEX_VERSION = 0

_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from first_offset up to the marker at last_offset were aborted."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


def read_transaction_index(buffer: Buffer, base_offset: Offset) -> list[AbortedTransaction]:
    """Decode a whole `.txnindex` file.

    Raises CorruptIndexError with the entry; the caller rebuilds the index from the log.
    """
    if len(buffer) % TRANSACTION_INDEX_ENTRY_SIZE != 0:
        raise CorruptIndexError(
            f"transaction index is not a whole number of entries base_offset={base_offset}"
            f" size={len(buffer)} entry_size={TRANSACTION_INDEX_ENTRY_SIZE}"
        )
    entries: list[AbortedTransaction] = []
    last_offset = base_offset - 1
    for index, (version, *fields) in enumerate(_ENTRY.iter_unpack(buffer)):
        entry = AbortedTransaction(*fields)
        if version != TRANSACTION_INDEX_VERSION:
            raise CorruptIndexError(
                f"transaction index entry has an unknown version base_offset={base_offset}"
                f" entry={index} version={version}"
            )
        if entry.last_offset <= last_offset:
            raise CorruptIndexError(
                f"transaction index entry does not rise base_offset={base_offset}"
                f" entry={index} last_offset={entry.last_offset}"
            )
        if (
            not 0 <= entry.first_offset <= entry.last_offset
            # When a transaction ends, the LSO is at most the offset after its marker
            # (ProducerStateManager.lastStableOffset).
            or entry.last_stable_offset > entry.last_offset + 1
        ):
            raise CorruptIndexError(
                f"transaction index entry contradicts itself base_offset={base_offset}"
                f" entry={index} first_offset={entry.first_offset}"
                f" last_offset={entry.last_offset} last_stable_offset={entry.last_stable_offset}"
            )
        last_offset = entry.last_offset
        entries.append(entry)
    return entries


def encode_transaction_index(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(TRANSACTION_INDEX_VERSION, *entry) for entry in entries)


def collect_aborted_transactions(
    entries: Iterable[AbortedTransaction], fetch_offset: Offset, upper_bound_offset: Offset
) -> tuple[list[AbortedTransaction], bool]:
    """Aborted transactions that overlap [fetch_offset, upper_bound_offset).

    The second value is True if no later segment can have another one; otherwise the caller
    continues with the next segment's index. Transactions below `fetch_offset` are not returned.
    """
    aborted_transactions: list[AbortedTransaction] = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
            aborted_transactions.append(entry)
        # Everything below this last stable offset was decided by then.
        if entry.last_stable_offset >= upper_bound_offset:
            return aborted_transactions, True
    return aborted_transactions, False


def truncated_transaction_index_size(entries: Iterable[AbortedTransaction], offset: Offset) -> int:
    """Size in bytes of the index without transactions that ended at `offset` or above."""
    kept = sum(1 for entry in entries if entry.last_offset < offset)
    return kept * TRANSACTION_INDEX_ENTRY_SIZE
