"""A query of one day out of many fetches about that day's bytes, counted at the object store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

import isotherm.spark
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.object_client import ObjectClient, ObjectRange
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
DAYS = 40
DAYS_PER_SEGMENT = 4
BATCHES_PER_DAY = 60
RECORDS_PER_BATCH = 5
RECORDS_PER_DAY = BATCHES_PER_DAY * RECORDS_PER_BATCH
# The range begins and ends inside segments.
FIRST_DAY, LAST_DAY = 18, 21
OVERHEAD_MAX = 1.3


@dataclass
class Fetched:
    requests: int = 0
    bytes: int = 0


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """The requests and bytes of all object clients in this process."""
    counted = Fetched()
    get_range, get = ObjectClient.get_range, ObjectClient.get

    def counted_range(self: ObjectClient, key: str, start: int, end: int) -> ObjectRange:
        found = get_range(self, key, start, end)
        counted.requests += 1
        counted.bytes += len(found.data)
        return found

    def counted_get(self: ObjectClient, key: str, size_max: int) -> bytes:
        found = get(self, key, size_max)
        counted.requests += 1
        counted.bytes += len(found)
        return found

    monkeypatch.setattr(ObjectClient, "get_range", counted_range)
    monkeypatch.setattr(ObjectClient, "get", counted_get)
    return counted


@dataclass
class History:
    """A bucket's segments as a `SegmentSource`, and reads of them without a session."""

    storage: ObjectStoreRemoteStorageManager
    segments: list[RemoteLogSegmentMetadata]

    def visible_segments(self, selects_topic, partitions) -> list[RemoteLogSegmentMetadata]:
        return self.segments

    @property
    def stored_size_of_a_day(self) -> float:
        """The average size of a day in the objects of the log."""
        client, layout = self.storage._client, self.storage._layout
        stored = sum(client.object_size(layout.log_key(segment)) for segment in self.segments)
        return stored / DAYS

    def read(self, **given: str) -> list[int]:
        options = parse_options({"path": "memory://", "subscribe": "a"} | given)
        log = TieredLog(options, self.storage, self, None)
        tasks = BatchQuery(options, log).plan()
        return [
            offset
            for task in tasks
            for batch in read_task(
                task,
                self.storage,
                arrow_schema(schema_of(["offset"])),
                settings=ReadSettings(),
                read_tail=lambda read: pytest.fail(f"there is no tail {read}"),
                when_missing=WhenMissing(read_again=log.read_again, fail_on_data_loss=True),
            )
            for offset in batch["offset"].to_pylist()
        ]


def transform_settings(kind: str, folder: Path) -> dict[str, str]:
    if kind != "compressed and encrypted":
        return {"layout": kind}
    key = RSA.generate(2048)
    (folder / "public.pem").write_bytes(key.public_key().export_key())
    (folder / "private.pem").write_bytes(key.export_key(pkcs=8))
    return {
        "compression.enabled": "true",
        "encryption.enabled": "true",
        "chunk.size": "16384",
        "encryption.key.pair.id": "k",
        "encryption.key.pairs": "k",
        "encryption.key.pairs.k.public.key.file": str(folder / "public.pem"),
        "encryption.key.pairs.k.private.key.file": str(folder / "private.pem"),
    }


@pytest.fixture(params=["aiven", "local-tiered-storage", "compressed and encrypted"])
def history(request: pytest.FixtureRequest, tmp_path: Path, owner: TopicIdPartition) -> History:
    """Forty days in segments of four, with a record every few minutes. Random values, so that they
    do not compress."""
    config = {"url": (tmp_path / "bucket").as_uri(), **transform_settings(request.param, tmp_path)}
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(config))
    maker, rng = RecordSegmentMaker(tmp_path / "made", storage), random.Random(1)
    segments = []
    for first_day in range(0, DAYS, DAYS_PER_SEGMENT):
        first = first_day * RECORDS_PER_DAY
        starts = range(first, first + DAYS_PER_SEGMENT * RECORDS_PER_DAY, RECORDS_PER_BATCH)
        segments.append(maker.tier(owner, [made_batch(start, rng) for start in starts]))
    return History(storage, segments)


def made_batch(start: int, rng: random.Random) -> bytearray:
    records = [
        NewRecord(START_MS + offset * DAY_MS // RECORDS_PER_DAY, None, rng.randbytes(800))
        for offset in range(start, start + RECORDS_PER_BATCH)
    ]
    return build_batch(records, base_offset=start)


def limits() -> Iterator[dict[str, str]]:
    first, last = FIRST_DAY * RECORDS_PER_DAY, LAST_DAY * RECORDS_PER_DAY
    low, high = START_MS + FIRST_DAY * DAY_MS, START_MS + LAST_DAY * DAY_MS
    yield {
        "startingOffsets": f'{{"a":{{"0":{first}}}}}',
        "endingOffsets": f'{{"a":{{"0":{last}}}}}',
    }
    yield {"startingTimestamp": str(low), "endingTimestamp": str(high)}
    yield {
        "startingOffsetsByTimestamp": f'{{"a":{{"0":{low}}}}}',
        "endingOffsetsByTimestamp": f'{{"a":{{"0":{high}}}}}',
    }


@pytest.mark.slow
def test_days_out_of_many_fetch_about_their_bytes(history: History, fetched: Fetched) -> None:
    wanted = list(range(FIRST_DAY * RECORDS_PER_DAY, LAST_DAY * RECORDS_PER_DAY))
    needed = history.stored_size_of_a_day * (LAST_DAY - FIRST_DAY)
    for given in limits():
        before = fetched.bytes
        assert history.read(**given) == wanted
        assert fetched.bytes - before < needed * OVERHEAD_MAX, given


def test_questions_about_offsets_and_times_are_answered_from_metadata(
    tmp_path: Path, owner: TopicIdPartition, fetched: Fetched
) -> None:
    """The number of requests does not grow with the history: names give its length, and indexes the
    place of a time."""
    settings = ObjectStoreSettings(url=(tmp_path / "bucket").as_uri())
    maker = RecordSegmentMaker(tmp_path / "made", ObjectStoreRemoteStorageManager(settings))
    for partition in range(2):
        for start in range(0, 30 * RECORDS_PER_BATCH, RECORDS_PER_BATCH):
            batch = made_batch(start, random.Random(start))
            maker.tier(owner._replace(partition=partition), [batch])
    options = {"path": settings.url, "subscribe": "a"}
    assert isotherm.spark.count(options) == 2 * 30 * RECORDS_PER_BATCH
    assert fetched.requests == 4, "the manifests of the last two segments of each partition"
    fetched.requests = 0
    middle = 15 * RECORDS_PER_BATCH
    time_ms = START_MS + middle * DAY_MS // RECORDS_PER_DAY
    found = isotherm.spark.offsets_for_times(options, time_ms)
    assert found == {owner._replace(partition=p).topic_partition: middle for p in range(2)}
    manifests, of_one_segment = 2 * 30, 3  # a manifest, a time index, some records
    of_the_one_before = 2  # a manifest and a time index, which prove that it is too old
    assert fetched.requests == manifests + 2 * (of_one_segment + of_the_one_before)
