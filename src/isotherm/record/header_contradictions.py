"""Finds batches whose header fields contradict one another. No broker stores one, though its CRC
may be right.

Every stored batch has passed the checks of a leader. The work is by columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from isotherm.record.batch_header import BASE_SEQUENCE_POSITION, CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.batch_table import gather_integers
from isotherm.record.control_table import without_control_record

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray
    from isotherm.record.varint import ReadBuffer


class HeaderContradiction(NamedTuple):
    """A fact that no stored batch has, and the batches that have it, at least one."""

    fact: str
    is_wrong: BoolArray


def header_contradictions(buffer: ReadBuffer, batches: BatchTable) -> list[HeaderContradiction]:
    """The contradictions in these batches, usually none. `batches` are rows for `buffer`."""
    is_control = (batches["attributes"] & CONTROL_FLAG) != 0
    contradictions: list[HeaderContradiction] = []
    if is_control.any():
        is_wrong = without_control_record(buffer, batches)
        if is_wrong.any():
            contradictions.append(
                HeaderContradiction("control batch holds no control record", is_wrong)
            )
    is_of_producer = batches["producer_id"] >= 0
    is_wrong = ((batches["attributes"] & TRANSACTIONAL_FLAG) != 0) & ~is_of_producer
    if is_wrong.any():
        # Kafka's leader does not refuse it, but its producer does not write it
        # (MemoryRecordsBuilder.writeDefaultBatchHeader), and no marker could end such a
        # transaction.
        contradictions.append(HeaderContradiction("transactional batch has no producer", is_wrong))
    if is_of_producer.any():
        # Data of a producer have a sequence, its markers have none (Kafka:
        # LogValidator.validateBatch for clients, MemoryRecordsBuilder.validateProducerState for
        # coordinators).
        sequences = gather_integers(buffer, batches["position"] + BASE_SEQUENCE_POSITION, ">i4")
        is_wrong = is_of_producer & (is_control == (sequences >= 0))
        if is_wrong.any():
            fact = "batch of a producer has a sequence and the control bit, or neither"
            contradictions.append(HeaderContradiction(fact, is_wrong))
    return contradictions
