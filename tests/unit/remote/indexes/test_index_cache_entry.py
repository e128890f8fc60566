"""The files of a cached segment's indexes, and what the indexes name."""

from __future__ import annotations

import uuid

import pytest

from isotherm.errors import CorruptIndexError
from isotherm.remote.indexes.index_cache_entry import (
    IndexFiles,
    RemoteIndexEntry,
    check_index,
    parse_index_file_name,
)
from isotherm.remote.segment_metadata import IndexType
from isotherm.segment.offset_index import OffsetPosition, encode_offset_index
from isotherm.segment.time_index import TimestampOffset, encode_time_index
from isotherm.segment.transaction_index import AbortedTransaction, encode_transaction_index

FILES = IndexFiles(1234, uuid.UUID(int=2))
ID = "AAAAAAAAAAAAAAAAAAAAAg"


def test_names_are_offset_id_and_suffix() -> None:
    assert FILES.names() == [f"1234_{ID}{end}" for end in (".index", ".timeindex", ".txnindex")]
    for index_type in (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION):
        assert parse_index_file_name(FILES.name(index_type)) == (FILES, index_type)


def test_id_may_have_underscores() -> None:
    files = IndexFiles(0, uuid.UUID(bytes=b"\xff" * 16))
    assert "_" in files.stem[2:]
    assert parse_index_file_name(files.name(IndexType.OFFSET)) == (files, IndexType.OFFSET)


@pytest.mark.parametrize(
    "name",
    [
        f"1234_{ID}",
        f"1234_{ID}.log",
        f"1234_{ID}.index.deleted",
        f"-1_{ID}.index",
        f"_{ID}.index",
        f"\N{ARABIC-INDIC DIGIT ONE}_{ID}.index",
        f"{ID}.index",
        "1234_short.index",
        "1234.index",
        ".index",
        "notes.txt",
    ],
)
def test_other_files_are_not_of_the_cache(name: str) -> None:
    assert parse_index_file_name(name) is None


@pytest.mark.parametrize(
    ("offsets", "times", "end", "last"),
    [
        ([], [], 200, 99),
        ([109], [], 200, 109),
        ([], [107], 200, 107),
        ([105, 109], [107], 200, 109),
        ([105], [103, 107], 200, 107),
        ([105, 109], [103, 107], 109, 107),
        ([105, 109], [103, 107], 107, 105),
        ([105, 109], [103, 107], 105, 103),
        ([105, 109], [103, 107], 103, 99),
        ([109], [100], 101, 100),
    ],
)
def test_last_offset_named_is_that_of_either_index(
    offsets: list[int], times: list[int], end: int, last: int
) -> None:
    made = RemoteIndexEntry(
        100,
        encode_offset_index([OffsetPosition(offset, 10 * offset) for offset in offsets], 100),
        encode_time_index([TimestampOffset(offset, offset) for offset in times], 100),
        b"",
    )
    assert made.last_offset_named(end) == last


def test_size_is_that_of_all_indexes() -> None:
    transactions = encode_transaction_index([AbortedTransaction(1, 100, 105, 106)])
    made = RemoteIndexEntry(100, bytes(16), bytes(12), transactions)
    assert made.size == 16 + 12 + 34
    assert made.transaction_index == [AbortedTransaction(1, 100, 105, 106)]


@pytest.mark.parametrize(
    ("index_type", "size"),
    [(IndexType.OFFSET, 8), (IndexType.TIMESTAMP, 12), (IndexType.TRANSACTION, 34)],
)
def test_index_of_another_kind_is_refused(index_type: IndexType, size: int) -> None:
    check_index(index_type, b"", 0)
    for other in {8, 12, 34} - {size}:
        with pytest.raises(CorruptIndexError, match="whole number of entries"):
            check_index(index_type, bytes(other), 0)
