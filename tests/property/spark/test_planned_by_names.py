"""A query planned by the names of objects reads the same rows as one planned by manifests.

Histories have clean and unclean elections, and deposed leaders that still store a segment.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import uuid
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.segment_list_sources import BucketSegmentSource
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)
SCHEMA = arrow_schema(schema_of(["offset", "value"]))

# A log is the list of its offsets' epochs. A segment is a log, a start and an end offset.
Log = list[int]
Segment = tuple[Log, int, int]


@st.composite
def stored_segments(draw: st.DrawFn) -> list[Segment]:
    """Segments in the order in which they were stored."""
    stored: list[Segment] = []
    log: Log = []
    copied_to = 0
    late: Segment | None = None
    for epoch in range(draw(st.integers(1, 4))):
        lost = draw(st.sampled_from([0, 0, 0, 3, 9]))
        log = log[: max(0, len(log) - lost)] + [epoch] * draw(st.integers(4, 24))
        copied_to = min(copied_to, len(log))
        own: list[Segment] = []
        start = 0
        while start < len(log):
            end = min(len(log), start + draw(st.integers(2, 9)))
            if end > copied_to:
                own.append((log, start, end))
            start = end
        count = draw(st.integers(0, len(own) - 1)) if own else 0
        stored += own[:count]
        copied_to = own[count - 1][2] if count else copied_to
        if late is not None and count:
            stored.insert(draw(st.integers(len(stored) - count, len(stored))), late)
        late = own[count] if count < len(own) and draw(st.booleans()) else None
    return stored


# A deposed leader stored the last segment late.
LATE_AT_THE_END: list[Segment] = [
    ([0] * 6, 0, 5),
    ([0] * 6 + [1] * 4, 4, 7),
    ([0] * 6, 5, 6),
]


@settings(max_examples=40)
@example(stored=LATE_AT_THE_END, target_size=1024)
@given(stored=stored_segments(), target_size=st.sampled_from([1024, 10**9]))
def test_names_and_manifests_tell_the_same_rows(stored: list[Segment], target_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ObjectStoreSettings(url=(Path(folder) / "bucket").as_uri())
        storage = ObjectStoreRemoteStorageManager(store)
        maker = RecordSegmentMaker(Path(folder) / "segments", storage)
        for number, segment in enumerate(stored):
            _store(maker, store, segment, number)
        by_manifests, by_names = (
            _rows(store, storage, target_size, by_name=by_name) for by_name in (False, True)
        )
    assert by_names == by_manifests


def _store(
    maker: RecordSegmentMaker, store: ObjectStoreSettings, segment: Segment, number: int
) -> None:
    log, start, end = segment
    epochs = {
        epoch: start + next(i for i, each in enumerate(log[start:end]) if each == epoch)
        for epoch, _ in itertools.groupby(log[start:end])
    }
    batches = [
        build_batch([NewRecord(offset, None, b"%d" % log[offset])], base_offset=offset)
        for offset in range(start, end)
    ]
    made = maker.tier(OWNER, batches, leader_epochs=epochs, event_timestamp_ms=number)
    path = Path(store.url.removeprefix("file://")) / store.create_layout().log_key(made)
    os.utime(path, (1_700_000_000 + number,) * 2)


def _rows(
    store: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    target_size: int,
    *,
    by_name: bool,
) -> list[tuple[int, bytes]]:
    """The rows of a query over the bucket, planned by names or by manifests."""
    given = {"subscribe": "t", "failOnDataLoss": "false", "targetBytesPerTask": str(target_size)}
    options = parse_options(given | {"path": store.url})

    def log(*, by_name: bool) -> TieredLog:
        source = BucketSegmentSource(
            open_for_reading(store), store.create_layout(), fail_on_data_loss=True, by_name=by_name
        )
        return TieredLog(options, storage, source, None)

    planner = log(by_name=by_name)
    views = planner.views(may_lack_topics=True)
    if not views:
        return []
    rows: list[tuple[int, bytes]] = []
    for task in BatchQuery(options, planner).plan():
        for batch in read_task(
            task,
            storage,
            SCHEMA,
            settings=ReadSettings(),
            read_tail=lambda read: iter(()),
            when_missing=WhenMissing(
                read_again=log(by_name=False).read_again, fail_on_data_loss=False
            ),
        ):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows
