"""The first pass over a piece: the newest place of each key, and the open transactions.

A place is one number, so that the newest place of a key is a maximum: the piece's number in the
upper half, the offset relative to its start in the lower one (segments span less than 2^31).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from isotherm.record.columns import decode_columns
from isotherm.remote.rewriting.pieces import Piece, located, read_chunks
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.cleaning.transactions import OpenTransactions

if TYPE_CHECKING:
    from isotherm.record.batch_table import Int64Array

PLACE_BITS = 32
_FIELDS: dict[str, pa.DataType] = {"key": pa.binary(), "place": pa.int64()}
KEY_PLACES = pa.schema(_FIELDS)


def place_of(piece_number: int, relative_offset: int) -> int:
    return piece_number << PLACE_BITS | relative_offset


def newest_places(
    storage: RemoteStorageManager, piece: Piece, fetch_bytes: int, transactions: OpenTransactions
) -> Iterator[pa.Table]:
    """Yield keys with the place of their newest record, once for each run of batches. The
    transactional and control batches are added to `transactions`.

    Control batches, aborted records and records without a key do not count. Verifies every CRC;
    raises CorruptObjectError with the segment's name.
    """
    for chunk, _ in read_chunks(storage, piece, fetch_bytes):
        with located(piece):
            for row, header in chunk.transactional_headers():
                marker = chunk.control_record(row, header) if header.is_control else None
                transactions.add(header, marker)
            data = memoryview(chunk.data)[: chunk.size]
            while len(data):
                columns = decode_columns(data, columns=frozenset({"key"}), aborted=piece.aborted)
                if columns.position_end == 0:
                    break
                data = data[columns.position_end :]
                assert columns.key is not None
                yield _newest(columns.key, columns.offset - piece.start_offset, piece.number)


def _newest(keys: pa.BinaryArray, relative_offsets: Int64Array, piece_number: int) -> pa.Table:
    places = relative_offsets + place_of(piece_number, 0)
    table = pa.table({"key": keys, "place": places}).filter(keys.is_valid())
    newest = table.group_by("key", use_threads=False).aggregate([("place", "max")])
    return newest.rename_columns({"place_max": "place"}).select(KEY_PLACES.names)


def relative_offsets(places: Int64Array) -> Int64Array:
    lower: Int64Array = places & np.int64(place_of(1, 0) - 1)
    return lower
