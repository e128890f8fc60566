"""A bucket planned from object names gives the rows that its manifests give, and reads few
manifests."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA
from pyspark import cloudpickle

import isotherm.spark
from isotherm.errors import (
    ConfigError,
    CorruptObjectError,
    IsothermError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.plan.listed_segments import ListedSegment
from isotherm.spark.plan.planning import ReadTask, SegmentRead
from isotherm.spark.source_task import TaskPartition
from isotherm.types import TopicIdPartition
from tests.support.bucket_queries import QueriedBucket
from tests.support.record_segments import RecordSegmentMaker


@pytest.fixture
def bucket(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
) -> QueriedBucket:
    return QueriedBucket(storage_settings, storage, maker, owner)


def listed(tasks: list[ReadTask]) -> list[bool]:
    return [
        isinstance(read.segment, ListedSegment)
        for task in tasks
        for read in task.reads
        if isinstance(read, SegmentRead)
    ]


def test_history_in_order_is_planned_with_two_manifests_a_partition(bucket: QueriedBucket) -> None:
    for start in range(0, 200, 20):
        bucket.store(start, start + 20, epochs={start // 100: start})
    tasks = bucket.plan(startingOffsets='{"a":{"0":25}}')
    assert len(bucket.manifests_read) == 2
    assert listed(tasks) == [True] * 8 + [False]
    assert bucket.rows(tasks) == [(o, b"%d" % (o // 100)) for o in range(25, 200)]
    assert bucket.rows(bucket.plan(targetBytesPerTask="1024")) == bucket.rows(
        bucket.plan(by_name=False)
    )


def store_same_start_twice(bucket: QueriedBucket) -> None:
    bucket.store(0, 20)
    bucket.store(0, 30)
    bucket.store(30, 40)


def store_replaced_branch(bucket: QueriedBucket) -> None:
    """An unclean election dropped what the old leader had stored beyond offset 15."""
    bucket.store(0, 10)
    bucket.store(10, 20)
    bucket.store(20, 30)
    bucket.store(10, 25, epochs={0: 10, 1: 15})
    bucket.store(25, 40, epochs={1: 25})


def store_without_order(bucket: QueriedBucket) -> None:
    """The times have no order, as after a copy of the bucket."""
    segments = [bucket.store(start, start + 10) for start in (0, 10, 20)]
    bucket.set_time(segments[0], 99)


@pytest.mark.parametrize(
    "store", [store_same_start_twice, store_replaced_branch, store_without_order]
)
def test_history_that_names_do_not_tell_is_planned_from_its_manifests(
    bucket: QueriedBucket, store: Callable[[QueriedBucket], None]
) -> None:
    store(bucket)
    tasks = bucket.plan()
    assert not any(listed(tasks))
    exact = bucket.plan(by_name=False)
    assert bucket.rows(tasks) == bucket.rows(exact)


def test_overlap_of_a_clean_election_is_read_once(bucket: QueriedBucket) -> None:
    bucket.store(0, 20)
    bucket.store(20, 50)
    bucket.store(30, 60, epochs={0: 30, 1: 50})
    bucket.store(60, 70, epochs={1: 60})
    assert any(listed(bucket.plan()))
    assert bucket.rows(bucket.plan()) == [(o, b"%d" % (o >= 50)) for o in range(70)]


def test_segment_that_a_deposed_leader_stored_late_is_reported_by_its_epoch(
    bucket: QueriedBucket,
) -> None:
    bucket.store(0, 20)
    bucket.store(20, 60, epochs={0: 20, 1: 25})
    bucket.store(40, 50, epochs={0: 40})  # dropped: epoch 1 begins at 25
    bucket.store(60, 70, epochs={1: 60})
    tasks = bucket.plan()
    assert any(listed(tasks))
    assert bucket.rows(tasks) == [(o, b"%d" % (o >= 25)) for o in range(70)]


def test_late_segments_in_a_row_are_reported_by_what_their_task_reads_before(
    bucket: QueriedBucket,
) -> None:
    store_two_late_segments(bucket)
    tasks = bucket.plan()
    assert all(listed(tasks)[:-1])
    assert bucket.rows(tasks) == [(o, b"%d" % (o >= 25)) for o in range(70)]


def test_read_that_begins_between_late_segments_is_not_reported_by_names(
    bucket: QueriedBucket,
) -> None:
    """The known limit of decision 42: only a plan from all manifests is right here."""
    store_two_late_segments(bucket)
    start = {"startingOffsets": '{"a":{"0":50}}'}
    given_up = range(50, 60)
    assert bucket.rows(bucket.plan(**start)) == [
        (o, b"%d" % (o not in given_up)) for o in range(50, 70)
    ]
    tasks = bucket.plan(by_name=False, **start)
    assert bucket.rows(tasks) == [(o, b"1") for o in range(50, 70)]


def store_two_late_segments(bucket: QueriedBucket) -> None:
    """Epoch 1 was elected uncleanly at 25. The leader of epoch 0 stored two more segments after
    that."""
    bucket.store(0, 20)
    bucket.store(20, 60, epochs={0: 20, 1: 25})
    bucket.store(40, 50, epochs={0: 40})
    bucket.store(50, 60, epochs={0: 50})
    bucket.store(60, 65, epochs={1: 60})
    bucket.store(65, 70, epochs={1: 65})


def test_hole_is_data_loss_where_it_is_read(bucket: QueriedBucket) -> None:
    for start in (0, 10, 30, 40):
        bucket.store(start, start + 10)
    tasks = bucket.plan()
    with pytest.raises(OffsetOutOfRangeError, match="start_offset=20 end_offset=30"):
        bucket.rows(tasks)
    rows = bucket.rows(tasks, failOnDataLoss="false")
    assert [offset for offset, _ in rows] == [*range(20), *range(30, 50)]


def test_deletion_after_planning_is_data_loss_and_a_lost_object_is_damage(
    bucket: QueriedBucket,
) -> None:
    segments = [bucket.store(start, start + 10) for start in (0, 10, 20, 30)]
    tasks = bucket.plan()
    bucket.path(segments[1]).unlink()
    with pytest.raises(CorruptObjectError, match=r"is damaged.*start_offset=10"):
        bucket.rows(tasks)
    for suffix in ("indexes", "rsm-manifest"):
        bucket.path(segments[1], suffix).unlink()
    bucket.storage._manifests.forget(segments[1])
    with pytest.raises(OffsetOutOfRangeError, match="start_offset=10 end_offset=20"):
        bucket.rows(tasks)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "not JSON"), (b'{"version":"2"}', "version is not known version='2'")],
)
@pytest.mark.parametrize("number", [1, 3])
def test_damaged_or_newer_manifest_is_named(
    bucket: QueriedBucket, number: int, content: bytes, words: str
) -> None:
    segments = [bucket.store(start, start + 10) for start in (0, 10, 20, 30)]
    path = bucket.path(segments[number], "rsm-manifest")
    path.write_bytes(content)
    with pytest.raises(IsothermError, match=rf"{words}.*{path.name}"):
        bucket.rows(bucket.plan())


def test_a_stream_reads_the_manifests_that_have_come_since(bucket: QueriedBucket) -> None:
    for start in (0, 10, 20):
        bucket.store(start, start + 10)
    for by_name, again in ((True, 1), (False, 1)):
        log = bucket.log(by_name=by_name)
        log.views()
        bucket.manifests_read.clear()
        log.views()
        assert bucket.manifests_read == []
        end = 30 if by_name else 40
        bucket.store(end, end + 10)
        log.views()
        assert len(bucket.manifests_read) == again


def test_listed_segments_travel_to_executors(bucket: QueriedBucket) -> None:
    for start in (0, 10, 20):
        bucket.store(start, start + 10)
    task = bucket.plan()[0]
    assert pickle.loads(cloudpickle.dumps(TaskPartition(task, "aiven"))).task == task


def test_topic_that_is_not_in_the_bucket_is_refused_with_those_that_are(
    bucket: QueriedBucket,
) -> None:
    bucket.store(0, 10)
    options = {"path": bucket.settings.url, "subscribe": "ab"}
    with pytest.raises(UnknownTopicOrPartitionError, match=r"missing=ab .*found=a nearest=a$"):
        isotherm.spark.count(options)


def test_bucket_without_the_layout_is_refused_with_what_to_look_at(
    bucket: QueriedBucket, tmp_path: Path
) -> None:
    segment = bucket.store(0, 10)
    bucket.path(segment).rename(bucket.path(segment).with_name("elsewhere"))
    for given in ({}, {"key.prefix": "cluster-1/"}):
        with pytest.raises(UnknownTopicOrPartitionError, match=r"found=none hint=.*key\.prefix"):
            isotherm.spark.count(
                {"path": (tmp_path / "segments").as_uri(), "subscribe": "a"} | given
            )
    options = {"path": bucket.settings.url, "subscribe": "a", "layout": "local-tiered-storage"}
    with pytest.raises(UnsupportedVersionError, match=r"no manifests.*metadata=topic"):
        isotherm.spark.count(options)


def test_missing_key_is_named_by_its_id(bucket: QueriedBucket, tmp_path: Path) -> None:
    key = RSA.generate(2048)
    (tmp_path / "public.pem").write_bytes(key.public_key().export_key())
    (tmp_path / "private.pem").write_bytes(key.export_key(pkcs=8))
    pair = "encryption.key.pairs.Archive2026"
    config = {
        "url": bucket.settings.url,
        "encryption.enabled": "true",
        "encryption.key.pair.id": "Archive2026",
        "encryption.key.pairs": "Archive2026",
        f"{pair}.public.key.file": str(tmp_path / "public.pem"),
        f"{pair}.private.key.file": str(tmp_path / "private.pem"),
    }
    encrypting = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(config))
    bucket.maker = RecordSegmentMaker(tmp_path / "encrypted", encrypting)
    bucket.store(0, 10)
    with pytest.raises(ConfigError, match=rf"key_pair=Archive2026 hint=.*{pair}\.private"):
        bucket.rows(bucket.plan())
