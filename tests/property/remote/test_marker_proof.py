"""Markers against transaction indexes.

The model goes through the events one by one, as a consumer does.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.reading.marker_proof import contradicted_transaction
from isotherm.segment.transaction_index import AbortedTransaction

PRODUCERS = (3, 4, 5)


class Event(NamedTuple):
    """Data of a producer, in or outside of a transaction, or the end of its transaction."""

    producer: int
    what: str


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(PRODUCERS),
        st.sampled_from(["data", "data", "data", "abort", "commit"]),
    ),
    min_size=1,
    max_size=14,
)


def encoded(offset: int, event: Event) -> bytes:
    if event.what == "data":
        return bytes(
            build_batch(
                [(0, None, b"v", ())],
                base_offset=offset,
                producer_id=event.producer,
                producer_epoch=0,
                base_sequence=offset,
                is_transactional=True,
            )
        )
    return bytes(
        build_end_transaction_marker(
            ControlRecordType.ABORT if event.what == "abort" else ControlRecordType.COMMIT,
            producer_id=event.producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )
    )


def aborted_transactions(events: list[Event]) -> list[AbortedTransaction]:
    """The entries of the log's transaction index."""
    begun: dict[int, int] = {}
    found = []
    for offset, event in enumerate(events):
        if event.what == "data":
            begun.setdefault(event.producer, offset)
        elif (first := begun.pop(event.producer, None)) is not None and event.what == "abort":
            found.append(AbortedTransaction(event.producer, first, offset, first))
    return found


@given(EVENTS, st.data())
def test_lost_or_late_entry_is_found_where_its_records_and_its_marker_are_read(
    events: list[Event], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(events) - 1))
    end = data.draw(st.integers(start + 1, len(events)))
    cut = data.draw(st.integers(start, end))
    parts = [range(start, cut), range(cut, end)]
    pieces = [
        memoryview(b"".join(encoded(offset, events[offset]) for offset in part))
        for part in parts
        if len(part)
    ]
    right = [
        transaction
        for transaction in aborted_transactions(events)
        if transaction.first_offset < end and transaction.last_offset >= start
    ]
    assert contradicted_transaction(pieces, right) is None
    if not right:
        return
    wrong = data.draw(st.sampled_from(right))
    later = data.draw(st.none() | st.integers(wrong.first_offset + 1, wrong.last_offset))
    index = [each for each in right if each != wrong]
    if later is not None:
        index.append(wrong._replace(first_offset=later))
    visible = [
        offset
        for offset in range(max(start, wrong.first_offset), min(end, wrong.last_offset + 1))
        if events[offset] == Event(wrong.producer_id, "data") and (later is None or offset < later)
    ]
    found = contradicted_transaction(pieces, index)
    if visible and wrong.last_offset < end:
        assert found is not None
        assert found.offset == wrong.last_offset
        named = f"producer_id={wrong.producer_id} first_offset={visible[0]} "
        assert named + f"marker_offset={wrong.last_offset}" in found.fact
        assert ("names no such transaction" in found.fact) is (later is None)
    else:
        assert found is None


def test_open_transaction_of_another_producer_is_not_taken_for_the_aborted_one() -> None:
    events = [Event(3, "data"), Event(4, "data"), Event(4, "abort")]
    pieces = [memoryview(b"".join(encoded(offset, each) for offset, each in enumerate(events)))]
    assert contradicted_transaction(pieces, [AbortedTransaction(4, 1, 2, 0)]) is None
    found = contradicted_transaction(pieces, [])
    assert found is not None
    assert "producer_id=4 first_offset=1 marker_offset=2" in found.fact
