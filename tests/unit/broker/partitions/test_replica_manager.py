"""The replica manager: partitions by name and id, failed directories, and the hand-over to the
remote tier."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from isotherm.broker.tier.embedded_remote_metadata_topic import EmbeddedRemoteMetadataTopic
from isotherm.config.topic import TopicConfig
from isotherm.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, TopicPartition
from tests.support.led_topic import delete_topic, lead_topic, led

TOPIC_ID = uuid.UUID(int=7)
TIERED = TopicConfig(remote_storage_enable=True)


class Tiering:
    """Records the calls that the replica manager makes to the remote log manager."""

    def __init__(self) -> None:
        self.led: list[str] = []
        self.followed: list[str] = []
        self.stopped: list[tuple[str, bool]] = []

    def on_leadership_change(self, leaders: Iterable[Any], followers: Iterable[Any]) -> None:
        self.led += [str(log.topic_partition) for log in leaders]
        self.followed += [str(log.topic_partition) for log in followers]

    def stop_partitions(self, partitions: Iterable[Any], *, delete_remote: bool) -> None:
        self.stopped += [
            (str(partition.topic_partition), delete_remote) for partition in partitions
        ]


def test_partition_is_found_by_name_and_by_id(parts: Any) -> None:
    async def scenario() -> None:
        manager = parts.replica_manager
        assert manager.find_partition("t", None, 1) is manager.find_partition(None, TOPIC_ID, 1)
        with pytest.raises(UnknownTopicOrPartitionError, match="topic=t partition=2"):
            manager.find_partition("t", None, 2)
        with pytest.raises(UnknownTopicIdError):
            manager.find_partition(None, None, 0)

    parts.run(scenario)


def test_deleted_topic_made_again_starts_empty(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        delete_topic(parts.replica_manager, "t")
        with pytest.raises(UnknownTopicIdError):
            parts.replica_manager.find_partition(None, TOPIC_ID, 0)
        lead_topic(parts.replica_manager, "t", uuid.UUID(int=8), {0: 0}, TopicConfig())
        assert parts.partition().log.log_end_offset == 0

    parts.run(scenario)


def test_new_leader_epoch_begins_at_the_log_end(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        log = parts.partition().log
        parts.partition().make_leader(led(0, 4))
        assert [tuple(entry) for entry in log.leader_epochs.entries] == [(3, 0), (4, 2)]
        assert log.high_watermark == 2

    parts.run(scenario)


def test_tiered_partitions_are_handed_to_the_remote_log_manager(parts: Any) -> None:
    async def scenario() -> None:
        manager = parts.replica_manager
        tiering = Tiering()
        lead_topic(manager, "before", uuid.UUID(int=1), {0: 0}, TIERED)
        manager.start_tiering(tiering)
        lead_topic(manager, "after", uuid.UUID(int=2), {0: 0}, TIERED)
        manager.update_config("t", TIERED)
        manager.update_config("t", TIERED)
        assert tiering.led == ["before-0", "after-0", "t-0", "t-1"]
        delete_topic(manager, "after")
        lead_topic(manager, "local", uuid.UUID(int=3), {0: 0}, TopicConfig())
        delete_topic(manager, "local")
        assert tiering.stopped == [("after-0", True)]

    parts.run(scenario)


def test_failed_directory_stops_its_partitions_and_deletes_nothing_remotely(parts: Any) -> None:
    async def scenario() -> None:
        manager = parts.replica_manager
        tiering = Tiering()
        lead_topic(manager, "tiered", uuid.UUID(int=1), {0: 0}, TIERED)
        manager.start_tiering(tiering)
        (log_dir,) = manager.log_dirs()
        manager.take_offline(log_dir)
        assert manager.is_offline("tiered", 0)
        assert tiering.stopped == [("tiered-0", False)]

    parts.run(scenario)


def test_topic_is_deleted_although_its_directory_fails(parts: Any) -> None:
    """The change of the metadata goes on to the other directories, and the broker with it."""

    async def scenario() -> None:
        manager = parts.replica_manager
        (log_dir,) = manager.log_dirs()
        # As an operator may have done. So the directory cannot be renamed.
        shutil.rmtree(parts.partition().log.directory)
        delete_topic(manager, "t")
        assert not log_dir.is_online
        assert manager.topic("t") is None
        assert [log.topic_partition for log in manager.logs()] == []

    parts.run(scenario)


def test_topic_is_configured_although_a_directory_fails(parts: Any) -> None:
    async def scenario() -> None:
        manager = parts.replica_manager
        parts.append(b"a")
        parts.partition().log.maybe_increment_log_start_offset(1)
        (log_dir,) = manager.log_dirs()
        parts.fs.fail(log_dir.path)
        manager.update_config("t", TIERED)
        assert not log_dir.is_online, "the log start of a tiered log is written"
        assert [parts.partition(index).log.config for index in (0, 1)] == [TIERED] * 2

    parts.run(scenario)


def test_tiering_is_turned_off_although_a_directory_fails(parts: Any) -> None:
    async def scenario() -> None:
        manager = parts.replica_manager
        tiering = Tiering()
        manager.start_tiering(tiering)
        manager.update_config("t", TIERED)
        (log_dir,) = manager.log_dirs()
        log_dir.fail(OSError("failed"), "a test")
        manager.update_config("t", TopicConfig())
        assert tiering.stopped == [("t-0", True), ("t-1", True)]

    parts.run(scenario)


def metadata_topic(parts: Any) -> EmbeddedRemoteMetadataTopic:
    config = TopicConfig(cleanup_policy=("delete",), retention_ms=-1)
    lead_topic(
        parts.replica_manager, REMOTE_LOG_METADATA_TOPIC, uuid.UUID(int=9), {0: 0, 1: 0}, config
    )
    return EmbeddedRemoteMetadataTopic(parts.replica_manager, parts.clock, 2)


def test_metadata_topic_gives_back_what_was_appended(parts: Any) -> None:
    async def scenario() -> None:
        topic = metadata_topic(parts)
        assert topic.offsets(1) == (0, 0)
        assert topic.read(1, 0, 1000) == []
        assert topic.append(1, None, b"first", 111) == 0
        assert topic.append(1, b"key", None, 222) == 1
        assert topic.offsets(1) == (0, 2)
        assert topic.offsets(0) == (0, 0)
        records = topic.read(1, 0, 1)
        records += topic.read(1, 1, 1 << 20)
        assert [tuple(record) for record in map(astuple, records)] == [
            (1, 0, 111, None, b"first"),
            (1, 1, 222, b"key", None),
        ]

    def astuple(record: Any) -> tuple[Any, ...]:
        return (record.partition, record.offset, record.timestamp_ms, record.key, record.value)

    parts.run(scenario)


def test_metadata_topic_append_is_on_disk_when_it_returns(parts: Any) -> None:
    async def scenario() -> None:
        topic = metadata_topic(parts)
        topic.append(0, None, b"event", 1)
        log = parts.log_manager.log(TopicPartition(REMOTE_LOG_METADATA_TOPIC, 0))
        assert log.recovery_point == 1

    parts.run(scenario)


def test_metadata_topic_append_from_a_thread_wakes_a_waiting_fetch(parts: Any) -> None:
    async def scenario() -> None:
        topic = metadata_topic(parts)
        woken = asyncio.Event()

        class Watching:
            future = asyncio.get_running_loop().create_future()

            def try_complete(self, key: Any) -> bool:
                woken.set()
                self.future.set_result(None)
                return True

            def expire(self) -> None:
                raise AssertionError

        key = TopicPartition(REMOTE_LOG_METADATA_TOPIC, 0)
        parts.replica_manager.purgatory.watch(Watching(), [key], 1000)
        await asyncio.to_thread(topic.append, 0, None, b"event", 1)
        await woken.wait()

    parts.run(scenario)


def test_tiering_that_is_turned_off_deletes_the_remote_data(parts: Any) -> None:
    """Records that only the remote tier had are gone, so the log begins at its first local record
    (KIP-950)."""

    async def scenario() -> None:
        manager, tiering = parts.replica_manager, Tiering()
        manager.start_tiering(tiering)
        parts.append(b"a", b"b")
        manager.update_config("t", TIERED)
        parts.tier_everything()
        parts.append(b"c")
        manager.update_config("t", TopicConfig())
        assert sorted(tiering.stopped) == [("t-0", True), ("t-1", True)]
        assert parts.partition().log.log_start_offset == 2
        manager.update_config("t", TopicConfig(retention_ms=1))
        assert len(tiering.stopped) == 2

    parts.run(scenario)
