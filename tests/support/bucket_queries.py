"""A bucket of small segments, and queries that are planned and read as by Spark, without a
session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import ReadTask
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_codec import decode_task, encode_task
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.segment_list_sources import BucketSegmentSource
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

Row = tuple[int, bytes]
SCHEMA = arrow_schema(schema_of(["offset", "value"]))


@dataclass
class QueriedBucket:
    """A folder as bucket whose objects have set times. `manifests_read` are the manifests that
    planning read."""

    settings: ObjectStoreSettings
    storage: ObjectStoreRemoteStorageManager
    maker: RecordSegmentMaker
    owner: TopicIdPartition
    stored: int = 0
    manifests_read: list[str] = field(default_factory=list)

    def store(
        self, start: int, end: int, *, epochs: dict[int, int] | None = None
    ) -> RemoteLogSegmentMetadata:
        """Store a segment that is newer than all others. Each value is the epoch of its record."""
        epochs = epochs or {0: start}
        batches = []
        for offset in range(start, end):
            epoch = max(e for e, at in epochs.items() if at <= offset)
            record = NewRecord(offset, None, b"%d" % epoch)
            batches.append(build_batch([record], base_offset=offset, partition_leader_epoch=epoch))
        segment = self.maker.tier(self.owner, batches, leader_epochs=epochs)
        self.stored += 1
        self.set_time(segment, self.stored)
        return segment

    def set_time(self, segment: RemoteLogSegmentMetadata, seconds: int) -> None:
        os.utime(self.path(segment), (1_700_000_000 + seconds,) * 2)

    def path(self, segment: RemoteLogSegmentMetadata, suffix: str = "log") -> Path:
        folder = Path(self.settings.url.removeprefix("file://"))
        return (folder / self.settings.create_layout().log_key(segment)).with_suffix(f".{suffix}")

    def log(self, *, by_name: bool, **given: str) -> TieredLog:
        client = open_for_reading(self.settings)
        fetched = client.get

        def counted(key: str, size_max: int) -> bytes:
            self.manifests_read.append(key)
            return fetched(key, size_max)

        client.get = counted  # type: ignore[method-assign]
        options = parse_options({"path": self.settings.url, "subscribe": "a"} | given)
        source = BucketSegmentSource(
            client,
            self.settings.create_layout(),
            fail_on_data_loss=options.fail_on_data_loss,
            by_name=by_name,
        )
        return TieredLog(options, self.storage, source, None)

    def plan(self, *, by_name: bool = True, **given: str) -> list[ReadTask]:
        options = parse_options({"path": self.settings.url, "subscribe": "a"} | given)
        tasks = BatchQuery(options, self.log(by_name=by_name, **given)).plan()
        return [decode_task(encode_task(task)) for task in tasks]

    def rows(self, tasks: list[ReadTask], **given: str) -> list[Row]:
        return [row for task in tasks for row in self._rows(task, **given)]

    def _rows(self, task: ReadTask, **given: str) -> Iterator[Row]:
        log = self.log(by_name=False, **given)
        batches = read_task(
            task,
            self.storage,
            SCHEMA,
            settings=ReadSettings(),
            read_tail=lambda read: pytest.fail(f"there is no tail {read}"),
            when_missing=WhenMissing(
                read_again=log.read_again,
                read_elsewhere=log.read_elsewhere,
                fail_on_data_loss=given.get("failOnDataLoss") != "false",
            ),
        )
        for batch in batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
