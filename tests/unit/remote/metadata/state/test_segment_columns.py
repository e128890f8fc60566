"""Rows of bytes to columns and back, with several epochs per row and custom metadata of any
length."""

from __future__ import annotations

import uuid

import pyarrow as pa

from isotherm.remote.metadata.state.segment_columns import (
    columns_of_rows,
    epoch_starts_of_rows,
    rows_of_columns,
)
from isotherm.remote.metadata.state.segment_rows import pack_segment
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
EPOCHS = [{0: 0}, {0: 10, 1: 12, 7: 15}, {2: 20, 7: 21}, {7: 14}]
CUSTOM = [b"custom", None, b"", b"x" * 300]


def segment(number: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)),
        start_offset=min(EPOCHS[number].values()),
        end_offset_inclusive=100 + number,
        max_timestamp_ms=1000 + number,
        broker_id=2,
        event_timestamp_ms=2000 + number,
        segment_size_in_bytes=3000 + number,
        segment_leader_epochs=EPOCHS[number],
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=CUSTOM[number],
        txn_index_empty=number % 2 == 0,
        broker_leader_epoch=number,
    )


SEGMENTS = [segment(number) for number in range(4)]
ROWS = [pack_segment(each) for each in SEGMENTS]


def test_columns_have_what_the_rows_had() -> None:
    columns = columns_of_rows(ROWS).to_pydict()
    assert columns["leader_epochs"] == [
        [{"epoch": epoch, "start_offset": start} for epoch, start in each.items()]
        for each in EPOCHS
    ]
    assert columns["custom_metadata"] == CUSTOM
    assert columns["end_offset"] == [each.end_offset_inclusive for each in SEGMENTS]
    assert columns["txn_index_empty"] == [True, False, True, False]


def test_rows_of_the_columns_are_the_same() -> None:
    table = pa.Table.from_batches([columns_of_rows(ROWS)])
    assert rows_of_columns(table) == ROWS


def test_first_offset_of_each_epoch_that_any_row_has() -> None:
    assert epoch_starts_of_rows(ROWS) == {0: 0, 1: 12, 2: 20, 7: 14}
    assert epoch_starts_of_rows(reversed(ROWS)) == {0: 0, 1: 12, 2: 20, 7: 14}
