"""A task whose segments are deleted or replaced between planning and reading."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from isotherm.errors import CorruptObjectError, OffsetOutOfRangeError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import (
    Beside,
    BrokerRead,
    ReadTask,
    SegmentRead,
    lineage_pieces,
    plan_reads,
)
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import REREADS_MAX, WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.tiered_log import TieredLog, cause_when_gone
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.record_segments import RecordSegmentMaker

A0 = TopicPartition("a", 0)
SCHEMA = arrow_schema(schema_of(["offset"]))
SMALL = ReadSettings(fetch_bytes=4096, fetch_ahead=2, batch_bytes=4096)
PER_SEGMENT = 400


@dataclass
class Tier:
    """A bucket and its metadata. The test changes both while a task runs."""

    storage: ObjectStoreRemoteStorageManager
    make: Callable[[int, int], RemoteLogSegmentMetadata]
    visible: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    asked: int = 0

    def visible_segments(self, selects_topic, partitions) -> list[RemoteLogSegmentMetadata]:
        self.asked += 1
        return list(self.visible)

    def task(self, end: int = 3 * PER_SEGMENT) -> ReadTask:
        reads = plan_reads(lineage_pieces(self.visible), OffsetRange(A0, 0, end))
        return ReadTask(tuple(reads))

    def delete(self, segment: RemoteLogSegmentMetadata, *, with_event: bool = True) -> None:
        if with_event:
            self.visible.remove(segment)
        self.storage.delete_log_segment_data(segment)

    def read(self, task: ReadTask, **given: str) -> Iterator[pa.RecordBatch]:
        options = parse_options({"path": "memory://", "subscribe": "a"} | given)
        log = TieredLog(options, self.storage, self, None)
        return read_task(
            task,
            self.storage,
            SCHEMA,
            settings=SMALL,
            read_tail=tail_rows,
            when_missing=WhenMissing(
                read_again=log.read_again,
                fail_on_data_loss=options.fail_on_data_loss,
                cause_when_gone=cause_when_gone(options),
            ),
        )

    def plan(self, **given: str) -> ReadTask:
        """The single task of a query with these options, planned from the present state."""
        options = parse_options({"path": "memory://", "subscribe": "a"} | given)
        log = TieredLog(options, self.storage, self, None)
        (task,) = BatchQuery(options, log).plan()
        return task

    def offsets(self, task: ReadTask, **given: str) -> list[int]:
        return offsets_of(self.read(task, **given))


def tail_rows(read: BrokerRead) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([-read.start_offset, -read.end_offset])], schema=SCHEMA)


def offsets_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


@pytest.fixture
def tier(
    maker: RecordSegmentMaker, storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> Tier:
    """Three segments of 400 records in batches of 10."""

    def make(start: int, end: int) -> RemoteLogSegmentMetadata:
        records = [NewRecord(offset, b"k", b"v" * 100) for offset in range(start, end)]
        batches = [
            build_batch(records[at : at + 10], base_offset=start + at)
            for at in range(0, end - start, 10)
        ]
        return maker.tier(owner, batches)

    bounds = [(number * PER_SEGMENT, (number + 1) * PER_SEGMENT) for number in range(3)]
    return Tier(storage, make, [make(*bound) for bound in bounds])


EVERY_OFFSET = list(range(3 * PER_SEGMENT))


@pytest.mark.parametrize("cut", [0, 250, PER_SEGMENT])
def test_segment_that_was_copied_anew_is_read_from_its_new_place(tier: Tier, cut: int) -> None:
    task, old = tier.task(), tier.visible[1]
    tier.delete(old)
    bounds = [PER_SEGMENT, PER_SEGMENT + cut, 2 * PER_SEGMENT]
    tier.visible += [tier.make(low, high) for low, high in itertools.pairwise(bounds) if low < high]
    assert tier.offsets(task) == EVERY_OFFSET
    assert tier.asked == 1


def test_segment_replaced_while_it_is_read_is_read_on_from_there(tier: Tier) -> None:
    rows = tier.read(tier.task())
    first = next(rows)["offset"].to_pylist()
    assert len(first) < 100
    for segment in tier.visible[:]:
        tier.delete(segment)
    tier.visible.append(tier.make(0, 3 * PER_SEGMENT))
    assert first + offsets_of(rows) == EVERY_OFFSET


def test_what_retention_took_is_data_loss(tier: Tier, caplog: pytest.LogCaptureFixture) -> None:
    task = tier.task()
    tier.delete(tier.visible[1])
    with pytest.raises(OffsetOutOfRangeError, match=r"start_offset=400 end_offset=800.*hint"):
        tier.offsets(task)
    left = tier.offsets(task, failOnDataLoss="false")
    assert left == [*range(400), *range(800, 1200)]
    assert "failOnDataLoss=false" in caplog.text


def test_what_retention_took_of_a_read_with_tail_is_the_brokers_to_answer_for(tier: Tier) -> None:
    task = tier.task()
    tier.delete(tier.visible[0])
    found = tier.offsets(task, **{"kafka.bootstrap.servers": "unused:1"})
    assert found == [0, -400, *range(400, 1200)]


def test_object_gone_without_a_deletion_is_damage(tier: Tier) -> None:
    task, gone = tier.task(), tier.visible[1]
    tier.delete(gone, with_event=False)
    with pytest.raises(CorruptObjectError, match=rf"{gone.segment_id}.*object does not exist"):
        tier.offsets(task)
    assert tier.offsets(task, failOnDataLoss="false") == [*range(400), *range(800, 1200)]


def test_table_older_than_the_bucket_is_reported_with_how_to_refresh_it(tier: Tier) -> None:
    task = tier.task()
    tier.delete(tier.visible[1], with_event=False)
    table = {"metadata": "table", "metadataTable": "projection"}
    with pytest.raises(CorruptObjectError, match=r"older than the bucket.*isotherm pipeline proj"):
        tier.offsets(task, **table)


LOOKS_UP = [
    # The option that needs a look-up while planning, and the segment that the look-up reads first.
    pytest.param({"startingTimestamp": "450"}, 1, id="times"),
    pytest.param({"isolationLevel": "read_committed"}, 2, id="transactions"),
]


@pytest.mark.parametrize(("given", "asked_for"), LOOKS_UP)
def test_segment_deleted_while_it_is_looked_up_is_planned_without(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], asked_for: int
) -> None:
    delete_when_asked_for(tier, monkeypatch, tier.visible[asked_for], with_event=True)
    task = tier.plan(**given)
    kept = range(800, 1200) if asked_for == 1 else range(800)
    assert tier.offsets(task) == [*kept]
    assert tier.asked == 3


@pytest.mark.parametrize(("given", "asked_for"), LOOKS_UP)
def test_object_gone_while_it_is_looked_up_is_reported_in_one_line(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], asked_for: int
) -> None:
    gone = tier.visible[asked_for]
    delete_when_asked_for(tier, monkeypatch, gone, with_event=False)
    with pytest.raises(CorruptObjectError) as raised:
        tier.plan(**given)
    message = str(raised.value)
    assert str(gone.segment_id) in message
    assert "metadata still has this segment" in message
    assert "\n" not in message


def delete_when_asked_for(
    tier: Tier,
    monkeypatch: pytest.MonkeyPatch,
    segment: RemoteLogSegmentMetadata,
    *,
    with_event: bool,
) -> None:
    """Delete the segment when one of its indexes is first fetched."""
    fetch_index = tier.storage.fetch_index

    def fetch_once_gone(asked: RemoteLogSegmentMetadata, index: IndexType) -> bytes:
        if asked.segment_id == segment.segment_id:
            monkeypatch.undo()
            tier.delete(segment, with_event=with_event)
        return fetch_index(asked, index)

    monkeypatch.setattr(tier.storage, "fetch_index", fetch_once_gone)


@pytest.mark.parametrize("with_event", [True, False])
def test_segment_deleted_before_its_markers_are_looked_for(
    tier: Tier,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
    monkeypatch: pytest.MonkeyPatch,
    with_event: bool,
) -> None:
    """The read ends inside of a transaction, whose marker is at the segment's end."""
    records = [NewRecord(offset, b"k", b"v" * 100) for offset in range(10)]
    first = build_batch(
        records, base_sequence=0, producer_id=7, producer_epoch=0, is_transactional=True
    )
    others = [build_batch(records, base_offset=at) for at in range(10, 400, 10)]
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=400,
    )
    segment = maker.tier(owner, [first, *others, marker])
    tier.visible = [segment]
    read = SegmentRead(segment, 0, 10, aborted=(), beside=Beside(0, 401, None))
    fetch = tier.storage.fetch_log_segment

    def fetch_once_gone(asked: RemoteLogSegmentMetadata, start: int, end: int) -> memoryview:
        if end == segment.segment_size_in_bytes - 1:
            monkeypatch.undo()
            tier.delete(segment, with_event=with_event)
        return fetch(asked, start, end)

    monkeypatch.setattr(tier.storage, "fetch_log_segment", fetch_once_gone)
    rows = tier.read(ReadTask((read,)))
    assert next(rows)["offset"].to_pylist() == list(range(10))
    if with_event:
        assert offsets_of(rows) == []
    else:
        with pytest.raises(CorruptObjectError, match="metadata still has this segment"):
            next(rows)


def test_segments_replaced_again_and_again_are_given_up(tier: Tier) -> None:
    task = tier.task(PER_SEGMENT)

    def never_there(read: SegmentRead) -> list[SegmentRead]:
        tier.asked += 1
        made = tier.make(0, PER_SEGMENT)
        tier.storage.delete_log_segment_data(made)
        return [SegmentRead(made, read.start_offset, read.end_offset)]

    tier.delete(tier.visible[0])
    rows = read_task(
        task,
        tier.storage,
        SCHEMA,
        settings=SMALL,
        read_tail=tail_rows,
        when_missing=WhenMissing(read_again=never_there, fail_on_data_loss=True),
    )
    with pytest.raises(CorruptObjectError, match="object does not exist"):
        list(rows)
    assert tier.asked == REREADS_MAX
