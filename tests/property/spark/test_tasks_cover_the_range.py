"""All tasks of a query together read each record of the range once and in order, whatever the
segments, the range and the size of tasks.

The model is a walk over the batches.
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.history.holes import Gaps
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import (
    limit_range_sizes,
    lineage_pieces,
    plan_reads,
    plan_tasks,
    split_ranges,
)
from isotherm.spark.reading.readers import ReadSettings, read_segments
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.record_segments import RecordSegmentMaker

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)


@dataclass(frozen=True)
class Batch:
    """A batch to build. `gap` offsets are missing before it. A batch without records is a control
    batch."""

    gap: int
    count: int
    value_size: int
    codec: CompressionType

    def build(self, base_offset: int) -> bytearray:
        if self.count == 0:
            return build_end_transaction_marker(
                ControlRecordType.COMMIT,
                producer_id=1,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=1,
                base_offset=base_offset,
            )
        records = [
            NewRecord(1000 + base_offset + i, b"%d" % i, b"v" * self.value_size)
            for i in range(self.count)
        ]
        return build_batch(records, base_offset=base_offset, compression=self.codec)


batches = st.builds(
    Batch,
    gap=st.sampled_from([0, 0, 0, 1, 30]),
    count=st.integers(0, 12),
    value_size=st.sampled_from([0, 10, 300, 3000]),
    codec=st.sampled_from(list(CompressionType)),
)
segment_lists = st.lists(st.lists(batches, min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    segments=segment_lists,
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    target_size=st.sampled_from([1024, 5000, 20_000, 10**9]),
    records_max=st.one_of(st.none(), st.integers(1, 60)),
    partitions_min=st.integers(1, 9),
    fetch_bytes=st.sampled_from([4096, 5001, 10**6]),
    index_interval=st.sampled_from([0, 300, 4096, 10**9]),
)
def test_union_of_all_tasks_is_a_plain_read(
    segments: list[list[Batch]],
    bounds: tuple[float, float],
    target_size: int,
    records_max: int | None,
    partitions_min: int,
    fetch_bytes: int,
    index_interval: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ObjectStoreSettings(url=(Path(folder) / "bucket").as_uri())
        storage = ObjectStoreRemoteStorageManager(store)
        maker = RecordSegmentMaker(Path(folder) / "segments", storage)
        tiered, expected, end = _tier(maker, segments, index_interval)
        low, high = sorted(int(bound * end) for bound in bounds)
        ranges = [OffsetRange(TopicPartition("t", 0), low, high)]
        if records_max is not None:
            ranges = limit_range_sizes(ranges, records_max)
        ranges = split_ranges(ranges, partitions_min)
        pieces = lineage_pieces(tiered)
        tasks = plan_tasks([plan_reads(pieces, wanted) for wanted in ranges], target_size)
        read = []
        for task in tasks:
            decoded = read_segments(
                task.reads,
                storage,
                frozenset({"value"}),
                settings=ReadSettings(
                    fetch_bytes, fetch_ahead=2, batch_bytes=2048, gaps=Gaps.PERMITTED
                ),
            )
            for _, columns in decoded:
                read += zip(columns.offset.tolist(), columns.value.to_pylist(), strict=True)
    assert read == [row for row in expected if low <= row[0] < high]


def _tier(maker: RecordSegmentMaker, segments: list[list[Batch]], index_interval: int):
    """Store segments without offsets between them: a gap before a batch at a segment's start
    belongs to the segment before.

    Returns the segments, the rows (offset, value) and the end offset.
    """
    tiered, rows, offset = [], [], 0
    for segment in segments:
        built = []
        for batch in segment:
            offset += batch.gap if built else 0
            built.append(batch.build(offset))
            rows += [(offset + i, b"v" * batch.value_size) for i in range(batch.count)]
            offset += max(batch.count, 1)
        offset += segment[0].gap
        tiered.append(
            maker.tier(
                OWNER,
                built,
                end_offset_inclusive=offset - 1,
                index_interval_bytes=index_interval,
            )
        )
    return tiered, rows, offset
