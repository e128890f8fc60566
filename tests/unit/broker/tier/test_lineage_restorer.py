"""Which lineage a partition gets after its own was lost, and what happens if none can be
derived."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from isotherm.broker.tier.lineage_restorer import (
    LineageRestorer,
    joined_lineage,
    segment_before,
)
from isotherm.errors import CorruptLogError, RemoteStorageError
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import PartitionDirectory
from isotherm.log.offline_logs import LineageLostError, OfflineLog
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.leader_epoch_checkpoint import (
    EpochEntry,
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=7), "topic", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment(
    start: int, end: int, epochs: Mapping[int, int], state: RemoteLogSegmentState = FINISHED
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=start)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_in_bytes=1,
        segment_leader_epochs=epochs,
        state=state,
    )


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def lost(
    start: int, *epochs: tuple[int, int], end: int = 100, path: Path = Path("unused")
) -> LineageLostError:
    return LineageLostError("leader epochs are lost", path, start, end, entries(*epochs))


def test_segment_that_ends_before_or_within_the_local_log_is_taken() -> None:
    first, last = segment(0, 9, {0: 0}), segment(10, 19, {0: 10, 2: 15})
    assert segment_before(lost(20), [first, last]) is last
    assert segment_before(lost(15, (2, 15)), [first, last]) is last
    assert segment_before(lost(10, (0, 10), (2, 15)), [first, last]) is first


def test_segment_may_reach_beyond_the_end_of_a_follower() -> None:
    copied = segment(0, 30, {0: 0, 3: 20})
    assert segment_before(lost(10, (0, 10), end=15), [copied]) is copied
    with pytest.raises(CorruptLogError):
        segment_before(lost(10, (0, 10), end=25), [copied])


@pytest.mark.parametrize(
    "segments",
    [
        [],
        [segment(0, 8, {0: 0})],
        [segment(0, 9, {0: 0}, RemoteLogSegmentState.COPY_SEGMENT_STARTED)],
        [segment(0, 9, {0: 0}), segment(5, 9, {1: 5})],  # of two leaders
        [segment(0, 14, {0: 0, 3: 12})],  # the local log has another epoch there
    ],
)
def test_history_that_is_not_sure_is_refused(segments: list[RemoteLogSegmentMetadata]) -> None:
    with pytest.raises(CorruptLogError):
        segment_before(lost(10, (2, 10)), segments)


def test_epochs_of_both_are_joined() -> None:
    last = segment(10, 19, {0: 10, 2: 15})
    checkpoint = entries((0, 4), (2, 15))
    assert joined_lineage(last, checkpoint, 20, entries((2, 20), (5, 30))) == (
        *checkpoint,
        EpochEntry(5, 30),
    )
    assert joined_lineage(last, checkpoint, 20, ()) == checkpoint
    assert joined_lineage(last, checkpoint, 15, entries((2, 15))) == checkpoint


@pytest.mark.parametrize(
    ("checkpoint", "local"),
    [
        (entries((0, 4), (2, 15)), entries((1, 20))),  # the local log is of an older leader
        (entries((2, 4), (0, 15)), ()),
    ],
)
def test_epochs_that_do_not_fit_are_refused(
    checkpoint: tuple[EpochEntry, ...], local: tuple[EpochEntry, ...]
) -> None:
    with pytest.raises(CorruptLogError):
        joined_lineage(segment(10, 19, {0: 10, 2: 15}), checkpoint, 20, local)


# ---- the partition afterwards

ME, OTHER = 1, 2


class Roles:
    """Records which partitions come back online, and which start again with an empty log."""

    def __init__(self) -> None:
        self.online: list[TopicIdPartition] = []
        self.begun: list[TopicIdPartition] = []
        self.may_begin = False

    def bring_online(self, place: TopicIdPartition) -> None:
        self.online.append(place)

    def begin_anew(self, place: TopicIdPartition) -> bool:
        self.begun += [place] if self.may_begin else []
        return self.may_begin


class Tier:
    """The remote tier and its metadata, with the methods of RemoteLogManager,
    RemoteLogMetadataManager and RemoteStorageManager that a restore calls."""

    def __init__(self) -> None:
        self.segments = [segment(0, 9, {0: 0}), segment(10, 19, {0: 10, 2: 15})]
        self.stored: tuple[EpochEntry, ...] | None = entries((0, 0), (2, 15))
        self.knows = True
        self.roles: list[tuple[list[Any], list[Any]]] = []

    def on_partition_leadership_changes(self, led: list[Any], followed: list[Any]) -> None:
        self.roles.append((led, followed))

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self.knows

    def list_remote_log_segments(
        self, partition: TopicIdPartition
    ) -> list[RemoteLogSegmentMetadata]:
        return self.segments

    def fetch_index(self, of: RemoteLogSegmentMetadata, index_type: object) -> bytes:
        if self.stored is None:
            raise RemoteStorageError("the bucket does not answer")
        return encode_leader_epoch_checkpoint(self.stored)


class Broken:
    """A broker with one partition whose epochs are lost. Its local log [20, 100) has epochs 2 and
    5."""

    def __init__(self, directory: Path, leader: int = OTHER, partitions: int = 1) -> None:
        self.path = directory / "leader-epoch-checkpoint"
        self.tier = Tier()
        self.roles = Roles()
        led = PartitionImage(0, (OTHER, ME), (leader,), leader, 5, 0)
        topic = TopicImage(PARTITION.topic, PARTITION.topic_id, (led,) * partitions)
        image = MetadataImage(topics_by_name={topic.name: topic})
        reason = lost(20, (2, 20), (5, 30), path=self.path)
        place = PartitionDirectory(cast("Any", None), directory, PARTITION.topic_partition)
        offline = OfflineLog(place, reason)
        self.offline = [offline]
        tier = cast("Any", self.tier)
        self.metadata = SimpleNamespace(image=image)
        self.restorer = LineageRestorer(
            cast("Any", self.metadata),
            lambda: self.offline,
            tier,
            tier,
            self.roles,
            broker_id=ME,
            run_control=run_now,
            fs=OsFileSystem(),
        )


def run_now(work: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(work())
    return done


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_leader_and_follower_get_the_epochs_of_tier_and_batches(
    tmp_path: Path, leader: int
) -> None:
    broken = Broken(tmp_path, leader)
    broken.restorer.run()
    assert broken.roles.online == [PARTITION]
    lineage = read_leader_epoch_checkpoint(broken.path.read_bytes())
    assert tuple(lineage) == entries((0, 0), (2, 15), (5, 30))
    assert broken.tier.roles == [([PARTITION], []) if leader == ME else ([], [PARTITION])]


def test_partition_waits_for_the_metadata_and_the_bucket(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    broken.roles.may_begin = True
    known, broken.tier.segments, broken.tier.knows = broken.tier.segments, [], False
    broken.restorer.run()
    broken.tier.segments, broken.tier.knows, broken.tier.stored = known, True, None
    broken.restorer.run()
    assert not broken.roles.online
    assert not broken.roles.begun
    broken.tier.stored = entries((0, 0), (2, 15))
    broken.restorer.run()
    assert broken.roles.online == [PARTITION]


def test_partition_without_a_sure_history_begins_anew_when_others_have_its_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(tmp_path)
    broken.tier.segments = [segment(10, 19, {0: 10, 2: 15}), segment(12, 19, {1: 12})]
    for _ in range(2):
        broken.restorer.run()
    assert sum("stays offline" in record.message for record in caplog.records) == 1
    assert not broken.path.exists()
    broken.roles.may_begin = True
    broken.restorer.run()
    assert broken.roles.begun == [PARTITION]
    assert not broken.roles.online


def test_topic_that_was_made_again_with_fewer_partitions_is_passed_over(tmp_path: Path) -> None:
    broken = Broken(tmp_path, partitions=0)
    broken.restorer.run()
    assert not broken.roles.online
    assert not broken.tier.roles


def test_checkpoint_of_a_topic_that_was_made_again_meanwhile_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(tmp_path)
    fetch_index = broken.tier.fetch_index

    def while_the_topic_is_made_again(*of: Any) -> bytes:
        broken.offline.clear()
        broken.path.write_bytes(b"of the new log")
        return fetch_index(*of)

    monkeypatch.setattr(broken.tier, "fetch_index", while_the_topic_is_made_again)
    broken.restorer.run()
    assert broken.path.read_bytes() == b"of the new log"
    assert not broken.roles.online


def test_topic_that_is_made_again_is_not_given_up_with_the_old_one(tmp_path: Path) -> None:
    broken = Broken(tmp_path)
    known, broken.tier.segments = broken.tier.segments, []
    broken.restorer.run()
    assert not broken.roles.online
    (old,) = broken.metadata.image.topics_by_name.values()
    made_again = replace(old, topic_id=uuid.UUID(int=8))
    broken.metadata.image = MetadataImage(topics_by_name={old.name: made_again})
    broken.tier.segments = known
    broken.restorer.run()
    assert broken.roles.online == [PARTITION._replace(topic_id=made_again.topic_id)]
