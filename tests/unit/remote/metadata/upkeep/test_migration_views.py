"""Views of a metadata partition for its migration: what they count, and what they leave out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.upkeep.migration_views import (
    CountedRecords,
    KeyedRecords,
    RecordCounts,
)
from isotherm.remote.metadata.wire.events import columns_of
from tests.support.memory_metadata_topic import MemoryMetadataTopic

BYTES = st.none() | st.binary(max_size=4)
Pairs = list[tuple[bytes | None, bytes | None]]


def size(texts: tuple[bytes | None, ...]) -> int:
    return sum(len(text) for text in texts if text is not None)


def counted(pairs: Pairs) -> RecordCounts:
    keyed = [pair for pair in pairs if pair[0] is not None]
    plain = [pair for pair in pairs if pair[0] is None]
    return RecordCounts(
        without_key=len(plain),
        with_key=len(keyed),
        tombstones=sum(value is None for _, value in keyed),
        size_without_key=sum(map(size, plain)),
        size_with_key=sum(map(size, keyed)),
    )


@given(st.lists(st.tuples(BYTES, BYTES), max_size=20), st.integers(0, 20))
def test_records_and_columns_are_counted_alike(pairs: Pairs, cut: int) -> None:
    records = [
        MetadataTopicRecord(0, offset, 0, key, value) for offset, (key, value) in enumerate(pairs)
    ]
    by_records, by_columns = RecordCounts(), RecordCounts()
    for record in records:
        by_records.add(record.key, record.value)
    for part in (records[:cut], records[cut:]):
        by_columns.add_columns(columns_of(part, cut))
    assert by_records == by_columns == counted(pairs)


PAIRS: Pairs = [
    (None, b"a"), (None, b"bb"), (b"k", b"ccc"), (None, b"d"), (b"l", None), (None, b"e")
]  # fmt: skip


def topic_of(pairs: Pairs) -> MemoryMetadataTopic:
    topic = MemoryMetadataTopic(partition_count=2)
    for key, value in pairs:
        topic.append(1, key, value, 5)
    return topic


def test_what_is_read_is_counted_whichever_way() -> None:
    for reads_columns in (False, True):
        counts = RecordCounts()
        view = CountedRecords(topic_of(PAIRS), counts)
        if reads_columns:
            assert view.read_columns(1, 0, 2**20).offset.tolist() == list(range(6))
        else:
            assert [each.offset for each in view.read(1, 0, 2**20)] == list(range(6))
        assert counts == counted(PAIRS)


def test_records_without_a_key_are_passed_over_up_to_the_end() -> None:
    """Each read returns one record, so records without a key must not look like the end."""
    view = KeyedRecords(topic_of(PAIRS))
    found = [[each.offset for each in view.read(1, start, 1)] for start in range(7)]
    assert found == [[2], [2], [2], [4], [4], [], []]


def test_columns_without_keys_keep_their_end() -> None:
    columns = KeyedRecords(topic_of(PAIRS)).read_columns(1, 0, 2**20)
    assert columns.offset.tolist() == [2, 4]
    assert (columns.key.to_pylist(), columns.value.to_pylist()) == ([b"k", b"l"], [b"ccc", None])
    assert columns.next_offset == 6


def test_view_writes_to_the_topic_that_it_reads() -> None:
    topic = topic_of([])
    view = KeyedRecords(topic)
    assert view.append(1, b"k", b"v", 5) == 0
    assert view.append_all(1, topic.records()) == 1
    assert (view.partition_count, view.offsets(1), view.is_current(1)) == (2, (0, 2), True)
