"""The observer with a scripted controller. Sockets, files and threads are real."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.cluster_metadata_topic import (
    METADATA_LOG_CONFIG,
    METADATA_TOPIC_ID,
    METADATA_TOPIC_PARTITION,
)
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.image_records import image_records
from isotherm.broker.metadata.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    TopicRecord,
)
from isotherm.broker.metadata.quorum.followed_log import FollowedLog
from isotherm.broker.metadata.quorum.metadata_fetch import Observer, SnapshotId
from isotherm.broker.metadata.quorum.observer import MetadataObserver
from isotherm.broker.metadata.quorum.snapshots import SnapshotFiles, write_snapshot
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.config.quorum import QuorumConfig
from isotherm.errors import CorruptMetadataError
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.log.log_read import FetchIsolation
from tests.support.scripted_quorum import ScriptedQuorum, concatenated

# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0
NAMES = "abcdefghij"
QUICK = QuorumConfig(controller_quorum_retry_backoff_ms=1)


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=uuid.UUID(int=(1 + NAMES.index(name)) << 64))


class Follower:
    """An observer over a folder, and the images that it published."""

    def __init__(self, directory: Path, bootstrap: list[NodeAddress], config: QuorumConfig) -> None:
        self.directory = directory / str(METADATA_TOPIC_PARTITION)
        self.directory.mkdir(exist_ok=True)
        fs, clock = OsFileSystem(), SystemClock()
        self.log = load_log(
            LogEnvironment(FileCache(fs), clock, random.Random(0)),
            PartitionDirectory(LogDir(directory), self.directory, METADATA_TOPIC_PARTITION),
            METADATA_LOG_CONFIG,
            topic_id=METADATA_TOPIC_ID,
        )
        self.images: list[MetadataImage] = []
        self.failure: Exception | None = None
        self._changed = threading.Condition()
        self.observer = MetadataObserver(
            Observer(5, "cluster", uuid.UUID(int=1 << 100)),
            FollowedLog(self.log, SnapshotFiles(fs, self.directory)),
            config=config,
            bootstrap=bootstrap,
            voters={},
            connect=lambda address: NodeConnection(
                address,
                client_id="observer",
                connect_timeout_s=PATIENT_S,
                request_timeout_s=PATIENT_S,
                response_bytes_max=1 << 24,
            ),
            on_image=self._take,
            on_failure=self._fail,
            clock=clock,
            rng=random.Random(0),
        )
        self.observer.start()

    def _take(self, image: MetadataImage) -> None:
        with self._changed:
            self.images.append(image)
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def image_where(self, holds: Callable[[MetadataImage], object]) -> MetadataImage:
        with self._changed:
            found = self._changed.wait_for(
                lambda: self.failure or (self.images and holds(self.images[-1])), PATIENT_S
            )
            assert found, self.images[-1:]
            assert self.failure is None, self.failure
            return self.images[-1]

    def image_at(self, end_offset: int) -> MetadataImage:
        return self.image_where(lambda image: image.end_offset >= end_offset)

    def await_failure(self) -> Exception:
        with self._changed:
            assert self._changed.wait_for(lambda: self.failure, PATIENT_S)
            assert self.failure is not None
            return self.failure

    def stop(self) -> None:
        self.observer.stop()
        self.log.close()


@pytest.fixture
def quorum() -> Iterator[ScriptedQuorum]:
    scripted = ScriptedQuorum()
    yield scripted
    scripted.stop()


@pytest.fixture
def follow(tmp_path: Path, quorum: ScriptedQuorum) -> Iterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def start(bootstrap: list[NodeAddress] | None = None, config: QuorumConfig = QUICK) -> Follower:
        started.append(Follower(tmp_path, bootstrap or [quorum.peer.address], config))
        return started[-1]

    yield start
    for follower in started:
        follower.stop()


def names(image: MetadataImage) -> str:
    return "".join(sorted(image.topics_by_name))


def test_log_is_the_leaders_bytes(quorum, follow):
    for name in "abc":
        quorum.append(topic(name))
    follower = follow()
    assert names(follower.image_at(3)) == "abc"
    read = follower.log.read(0, 1 << 20, isolation=FetchIsolation.LOG_END)
    assert bytes(read.records) == concatenated(quorum.batches)
    assert follower.observer.leader.leader_id == 100


def test_what_is_not_committed_is_held_but_not_shown(quorum, follow):
    quorum.append(topic("a"))
    quorum.append(topic("b"), is_committed=False)
    follower = follow()
    assert names(follower.image_at(1)) == "a"
    assert follower.log.log_end_offset == 2
    quorum.high_watermark = 2
    assert names(follower.image_at(2)) == "ab"


def test_transaction_is_shown_as_a_whole(quorum, follow):
    quorum.append(topic("a"), BeginTransactionRecord(), topic("b"))
    follower = follow()
    image = follower.image_at(1)
    assert (names(image), image.end_offset) == ("a", 1)
    quorum.append(topic("c"))
    quorum.append(topic("d"), EndTransactionRecord(), topic("e"))
    assert names(follower.image_at(7)) == "abcde"
    assert {names(each) for each in follower.images} == {"a", "abcde"}
    quorum.append(BeginTransactionRecord(), topic("f"))
    quorum.append(AbortTransactionRecord(), topic("g"))
    assert names(follower.image_at(11)) == "abcdeg"


def test_catching_up_shows_nothing_before_the_leaders_end(quorum, follow):
    for number in range(200):
        quorum.append(NoOpRecord(), topic(NAMES[number]) if number < 10 else NoOpRecord())
    one_batch = QuorumConfig(
        controller_quorum_retry_backoff_ms=1, controller_quorum_fetch_max_bytes=1
    )
    follower = follow(config=one_batch)
    assert names(follower.image_at(400)) == NAMES
    assert follower.images[0].end_offset == 400
    assert len(quorum.fetches) >= 200


def test_new_leader_is_found_by_what_the_old_one_tells(quorum, follow):
    quorum.append(topic("a"))
    follower = follow()
    follower.image_at(1)
    other = ScriptedQuorum(101)
    try:
        other.batches, other.high_watermark = list(quorum.batches), 1
        other.epoch = 3
        other.append(topic("b"))
        quorum.endpoints |= other.endpoints
        quorum.epoch, quorum.leader_id = 3, 101
        assert names(follower.image_at(2)) == "ab"
        assert follower.observer.leader == (3, 101, other.peer.address)
    finally:
        other.stop()


def test_controller_that_refuses_is_logged_once_and_asked_again(quorum, follow, caplog):
    quorum.append(topic("a"))
    quorum.error = ErrorCode.cluster_authorization_failed
    follower = follow()
    while len(quorum.fetches) < 5:
        pass
    quorum.error = ErrorCode.none
    follower.image_at(1)
    assert caplog.text.count("error=CLUSTER_AUTHORIZATION_FAILED") == 1


def test_election_is_waited_for(quorum, follow):
    quorum.append(topic("a"))
    quorum.epoch, quorum.leader_id = 2, -1
    follower = follow()
    while len(quorum.fetches) < 5:
        pass
    assert not follower.images
    quorum.leader_id = 100
    assert names(follower.image_at(1)) == "a"


def test_dead_leader_is_replaced_by_a_bootstrap_server(quorum, follow):
    dead = ScriptedQuorum(101)
    dead.append(topic("a"))
    quorum.endpoints |= dead.endpoints
    quorum.leader_id = 101
    follower = follow([dead.peer.address, quorum.peer.address])
    follower.image_at(1)
    dead.stop()
    with quorum.changes:
        quorum.batches, quorum.high_watermark = list(dead.batches), 1
        quorum.epoch, quorum.leader_id = 2, 100
        quorum.append(topic("b"))
    assert names(follower.image_at(2)) == "ab"


def test_tail_that_the_new_leader_lacks_is_dropped(quorum, follow):
    quorum.append(topic("a"))
    quorum.append(topic("b"), is_committed=False)
    quorum.append(topic("c"), is_committed=False)
    follower = follow()
    follower.image_at(1)
    with quorum.changes:
        quorum.forget(1)
        quorum.epoch = 2
        quorum.append(topic("d"))
    assert names(follower.image_at(2)) == "ad"
    read = follower.log.read(0, 1 << 20, isolation=FetchIsolation.LOG_END)
    assert bytes(read.records) == concatenated(quorum.batches)


def test_quorum_that_lost_what_was_committed_is_not_followed(quorum, follow):
    quorum.append(topic("a"))
    quorum.append(topic("b"))
    follower = follow()
    follower.image_at(2)
    with quorum.changes:
        quorum.forget(1)
        quorum.epoch, quorum.high_watermark = 2, 1
    error = follower.await_failure()
    assert isinstance(error, CorruptMetadataError)
    assert "committed=2" in str(error)


def test_record_that_is_not_known_ends_it_with_its_name(quorum, follow):
    quorum.append(topic("a"), b"\x01\x63\x00\x00")
    error = follow().await_failure()
    assert isinstance(error, CorruptMetadataError)
    assert "api_key=99" in str(error)
    assert "offset=1" in str(error)


def give_snapshot(quorum: ScriptedQuorum, image: MetadataImage, folder: Path) -> None:
    """Replace the quorum's batches below the image's end by a snapshot of the image."""
    files = SnapshotFiles(OsFileSystem(), folder)
    snapshot_id = SnapshotId(image.end_offset, quorum.epoch)
    target = files.begin(snapshot_id)
    write_snapshot(target, quorum.epoch, 1, image_records(image), 0)
    target.finish()
    (path,) = folder.glob(f"{image.end_offset:020d}*.checkpoint")
    quorum.snapshot = snapshot_id, path.read_bytes()
    quorum.batches = [batch for batch in quorum.batches if batch.base_offset >= image.end_offset]


def test_snapshot_is_fetched_in_pieces_and_the_log_goes_on_after_it(
    quorum, follow, tmp_path_factory
):
    quorum.append(topic("a"), topic("b"))
    first = follow()
    image = first.image_at(2)
    first.stop()
    folder = tmp_path_factory.mktemp("controller")
    give_snapshot(quorum, image, folder)
    quorum.append(topic("c"))
    quorum.epoch = 2
    quorum.append(topic("d"))
    for path in first.directory.iterdir():
        path.unlink()
    quorum.snapshot_errors = 2
    small = QuorumConfig(
        controller_quorum_retry_backoff_ms=1, controller_quorum_fetch_snapshot_max_bytes=10
    )
    second = follow(config=small)
    image = second.image_at(4)
    assert names(image) == "abcd"
    assert image.features == {"kraft.version": 1}
    assert (second.log.log_start_offset, second.log.log_end_offset) == (2, 4)
    second.stop()
    kept = [each.name for each in second.directory.glob("*.checkpoint*")]
    assert kept == [f"{2:020d}-{1:010d}.checkpoint"]
    # A restarted observer begins with the snapshot on its disk.
    count = len(quorum.peer.requests)
    third = follow(config=small)
    assert names(third.image_at(4)) == "abcd"
    assert len(quorum.peer.requests) - count == len(
        [request for request in quorum.peer.requests[count:] if request in quorum.fetches]
    )


def test_own_snapshot_replaces_the_log_below_it(quorum, follow):
    for name in "abc":
        quorum.append(topic(name))
    eager = QuorumConfig(
        controller_quorum_retry_backoff_ms=1,
        metadata_log_max_record_bytes_between_snapshots=150,
    )
    follower = follow(config=eager)
    follower.image_at(3)
    quorum.append(topic("d"))
    follower.image_at(4)
    follower.stop()
    (written,) = follower.directory.glob("*.checkpoint")
    end_offset = int(written.name.partition("-")[0])
    assert end_offset in (3, 4)
    assert follower.log.log_start_offset == end_offset
    again = follow()
    assert names(again.image_at(4)) == "abcd"
