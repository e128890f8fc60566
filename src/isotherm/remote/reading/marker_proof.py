"""Checks transactional batches and markers against the transaction indexes of a read.

An index has no CRC, and a lost index looks like an absent one. A transaction's marker is in the
log, under the CRC of its batch. If an answer holds records of a transaction and its ABORT marker,
the indexes must name the transaction; otherwise the consumer would treat its records as committed.
If an index names a transaction, all batches of its producer in that range must belong to it. The
work is by columns; Python iterates over markers only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from isotherm.record.batch_header import TRANSACTIONAL_FLAG
from isotherm.record.batch_table import read_batch_table
from isotherm.record.control import ControlRecordType
from isotherm.record.control_table import NO_MARKER, marker_types
from isotherm.remote.history.transaction_data import AbortedData
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset


class TransactionContradiction(NamedTuple):
    """The offset at which batches contradict the indexes, and the fact for the message."""

    offset: Offset
    fact: str


def contradicted_transaction(
    records: Sequence[memoryview], aborted: Collection[AbortedTransaction]
) -> TransactionContradiction | None:
    """The first contradiction in `records`, which are whole adjacent batches; None if there is
    none.

    It is a transaction with records and ABORT marker in `records` that `aborted` does not name, or
    a batch within a transaction of `aborted` that does not belong to it.
    """
    tables = [(piece, read_batch_table(piece)[0]) for piece in records]
    if not tables:
        return None
    if aborted:
        # Compacted tiers are read as well: sequences may have gaps.
        data = AbortedData(aborted, may_have_gaps=True)
        for piece, table in tables:
            fact = data.fault(piece, table)
            if fact is not None:
                return TransactionContradiction(int(table["base_offset"][0]), fact)
    markers = np.concatenate([marker_types(piece, table) for piece, table in tables])
    # A COMMIT marker needs no entry: consumers take the records of an unnamed transaction for
    # committed.
    if not (markers == ControlRecordType.ABORT).any():
        return None
    producers, offsets, attributes = (
        np.concatenate([table[name] for _, table in tables])
        for name in ("producer_id", "base_offset", "attributes")
    )
    named = {
        (transaction.producer_id, transaction.last_offset): transaction for transaction in aborted
    }
    is_relevant = (markers != NO_MARKER) | ((attributes & TRANSACTIONAL_FLAG) != 0)
    rows = np.flatnonzero(is_relevant)
    # Stable: the batches of each producer stay in the order of the log.
    rows = rows[np.argsort(producers[rows], kind="stable")]
    begins = 0
    for place in np.flatnonzero(markers[rows] != NO_MARKER).tolist():
        row = int(rows[place])
        producer_id, marker_offset = int(producers[row]), int(offsets[row])
        # Between two markers of a producer lie the records of one transaction.
        begins += int(producers[rows[begins : place + 1]].searchsorted(producer_id))
        is_empty, first = begins == place, int(offsets[rows[begins]])
        begins = place + 1
        # A marker without records proves nothing: its transaction may have none in this partition,
        # or only before this answer.
        if is_empty or markers[row] != ControlRecordType.ABORT:
            continue
        entry = named.get((producer_id, marker_offset))
        # An entry that begins earlier is right: the transaction may have begun before this answer.
        if entry is None or entry.first_offset > first:
            fact = "names no such transaction" if entry is None else "has it begin later"
            return TransactionContradiction(
                marker_offset,
                f"a marker aborts a transaction, and the transaction index {fact}"
                f" producer_id={producer_id} first_offset={first} marker_offset={marker_offset}",
            )
    return None
