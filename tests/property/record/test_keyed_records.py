"""The reader of offsets, keys and values against the reader of whole records, for sound and for
damaged batches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import CompressionType, build_batch, read_batch_header, read_records
from isotherm.record.keyed_records import read_keyed_records

DATA = st.data()
TIMES = st.one_of(st.just(0), st.integers(0, 2**42))
FIELDS = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([bytes(63), bytes(9000)]))
# Coordinators write no headers, so most records here have none.
HEADERS = st.one_of(st.just([]), st.just([]), st.just([("h", b"v")]))


@st.composite
def batches(draw) -> bytearray:
    """A batch of 1 to 160 records. From offset delta 64 on, a delta takes two bytes."""
    records = draw(st.lists(st.tuples(TIMES, FIELDS, FIELDS, HEADERS), min_size=1, max_size=4))
    return build_batch(
        records * draw(st.sampled_from([1, 1, 40])),
        base_offset=draw(st.integers(0, 2**40)),
        compression=draw(st.sampled_from([CompressionType.NONE, CompressionType.LZ4])),
    )


def outcome(read, batch: bytearray) -> object:
    try:
        return read(batch, 0, read_batch_header(batch))
    except CorruptRecordError as error:
        return str(error)


def by_whole_records(batch, position, header) -> list[tuple]:
    return [
        (record.offset, record.key, record.value)
        for record in read_records(batch, position, header)
    ]


@given(batches())
@settings(max_examples=100)
def test_fields_are_those_of_whole_records(batch: bytearray) -> None:
    found = outcome(read_keyed_records, batch)
    assert isinstance(found, list)
    assert found == outcome(by_whole_records, batch)


@given(DATA)
@settings(max_examples=400)
def test_damage_is_named_as_by_whole_records(data) -> None:
    batch = data.draw(batches())
    # The fields of the header that hold counts, and any byte of the records.
    places = st.one_of(st.integers(23, 26), st.integers(57, min(len(batch) - 1, 90)))
    for _ in range(data.draw(st.integers(1, 2))):
        batch[data.draw(places)] = data.draw(st.sampled_from([0, 1, 2, 3, 0x40, 0x7F, 0x80, 0xFF]))
    assert outcome(read_keyed_records, batch) == outcome(by_whole_records, batch)
