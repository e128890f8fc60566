"""Which roles a broker takes, gives up and keeps as the metadata changes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata, MetadataChange
from isotherm.broker.metadata.directory_ids import LOST, UNASSIGNED
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from isotherm.broker.partitions.replica_roles import (
    ReplicaRoles,
    RolePlan,
    may_discard_log,
    plan_roles,
)
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.replica_fetcher_manager import LeaderToFetch
from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptLogError, LogDirFailedError, UnknownTopicOrPartitionError
from isotherm.log.log_dir import LogDir
from isotherm.log.offline_logs import OfflineLog
from isotherm.types import TopicIdPartition, TopicPartition
from tests.unit.broker.conftest import Parts

ME, OTHER, THIRD = 1, 2, 3
A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)


def part(index: int, *replicas: int, leader: int | None = None, **more: Any) -> PartitionImage:
    values: dict[str, Any] = {
        "partition": index,
        "replicas": replicas,
        "isr": replicas,
        "leader": replicas[0] if leader is None else leader,
        "leader_epoch": 0,
        "partition_epoch": 0,
    }
    return PartitionImage(**{**values, **more})


def topic(name: str, topic_id: uuid.UUID, *partitions: PartitionImage) -> TopicImage:
    return TopicImage(name, topic_id, partitions)


def image(*topics: TopicImage, end_offset: int = 0, reachable: bool = True) -> MetadataImage:
    endpoints = (Endpoint("REPLICATION", "other", 9094),) if reachable else ()
    other = BrokerImage(OTHER, 7, None, None, fenced=False, endpoints=endpoints)
    return MetadataImage(
        end_offset=end_offset,
        topics_by_name={each.name: each for each in topics},
        topics_by_id={each.topic_id: each for each in topics},
        brokers={OTHER: other},
    )


def plan(change: MetadataChange, hosted: dict[Any, Any] | None = None) -> RolePlan:
    return plan_roles(ME, change, hosted or {})


# ---- the plan


def test_roles_of_a_new_topic() -> None:
    led, followed, away = part(0, ME, OTHER), part(1, OTHER, ME), part(2, OTHER, THIRD)
    created = topic("a", A, led, followed, away)
    made = plan(MetadataChange(image(created), created=(created,)))
    assert [roles.partitions for roles in made.leaders] == [(led,)]
    assert [roles.partitions for roles in made.followers] == [(followed,)]
    assert all(roles.is_new for roles in (*made.leaders, *made.followers))
    assert not made.deleted
    assert not made.unassigned


def test_partition_without_a_leader_is_followed() -> None:
    moved = topic("a", A, part(0, ME, OTHER, leader=-1))
    made = plan(MetadataChange(image(moved), moved=(moved,)))
    assert [roles.partitions for roles in made.followers] == [moved.partitions]
    assert not made.followers[0].is_new


def test_what_is_applied_is_left_alone() -> None:
    same, other = part(0, ME, OTHER), part(1, ME, OTHER, partition_epoch=4)
    moved = topic("a", A, same, other)
    hosted = {A: {0: same, 1: part(1, ME, OTHER)}}
    made = plan(MetadataChange(image(moved), moved=(moved,)), hosted)
    assert [roles.partitions for roles in made.leaders] == [(other,)]


def test_replicas_that_are_taken_away_lose_only_the_local_log() -> None:
    was = part(0, ME, OTHER)
    moved = topic("a", A, part(0, OTHER, THIRD, partition_epoch=1), part(1, OTHER))
    made = plan(MetadataChange(image(moved), moved=(moved,)), {A: {0: was}})
    assert made.unassigned == (TopicIdPartition(A, "a", 0),)
    assert not made.deleted


def test_deleted_topic_is_deleted_remotely_by_its_leader_alone() -> None:
    gone = topic("a", A, part(0, ME, OTHER), part(1, OTHER, ME), part(2, OTHER))
    hosted = {A: {0: gone.partitions[0], 1: gone.partitions[1]}}
    made = plan(MetadataChange(image(), deleted=(gone,)), hosted)
    assert made.deleted == (TopicIdPartition(A, "a", 0),)
    assert made.unassigned == (TopicIdPartition(A, "a", 1),)


def test_topic_made_again_in_the_same_change_is_both_deleted_and_created() -> None:
    gone, again = topic("a", A, part(0, ME)), topic("a", B, part(0, ME))
    change = MetadataChange(image(again), created=(again,), deleted=(gone,))
    made = plan(change, {A: {0: gone.partitions[0]}})
    assert made.deleted == (TopicIdPartition(A, "a", 0),)
    assert [roles.topic.topic_id for roles in made.leaders] == [B]


# ---- carried out


class Fetchers:
    """Records the partitions that are added to fetchers and removed from them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        self.calls.append(
            (
                "add",
                [f"{fetch.partition.topic_partition}@{fetch.endpoint.host}" for fetch in fetches],
            )
        )

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        self.calls.append(("remove", [str(partition) for partition in partitions]))

    def taken(self) -> list[tuple[str, list[str]]]:
        calls, self.calls = self.calls, []
        return calls


class Metadata(ClusterMetadata):
    """Metadata to which the test publishes changes, as a quorum does."""

    def publish(self, change: MetadataChange) -> None:
        self._image = change.image
        self._notify_listeners(change)


class Member:
    """A member of a cluster whose metadata the test publishes."""

    def __init__(self, parts: Parts, *topics: TopicImage, reachable: bool = True) -> None:
        self.parts = parts
        self.fetchers = Fetchers()
        self.metadata = Metadata(parts.config, image(*topics, reachable=reachable))
        self.roles = ReplicaRoles(
            ME,
            self.metadata,
            parts.replica_manager,
            self.fetchers,
            inter_broker_listener="REPLICATION",
        )

    def start(self) -> None:
        self.roles.start()

    def partition(self, index: int, name: str = "a") -> Any:
        return self.parts.replica_manager.find_partition(name, None, index)


def test_start_takes_every_role(parts: Parts) -> None:
    async def scenario() -> None:
        member = Member(
            parts, topic("a", A, part(0, ME, OTHER), part(1, OTHER, ME), part(2, OTHER))
        )
        member.start()
        assert member.partition(0).is_leader
        assert not member.partition(1).is_leader
        assert ("add", ["a-1@other"]) in member.fetchers.calls
        with pytest.raises(UnknownTopicOrPartitionError):
            member.partition(2)

    parts.run(scenario)


def test_leadership_moves_back_and_forth(parts: Parts) -> None:
    async def scenario() -> None:
        first = topic("a", A, part(0, ME, OTHER))
        member = Member(parts, first)
        member.start()
        member.fetchers.taken()
        away = topic("a", A, part(0, ME, OTHER, leader=OTHER, leader_epoch=1, partition_epoch=1))
        member.metadata.publish(MetadataChange(image(away, end_offset=1), moved=(away,)))
        assert member.fetchers.taken() == [("remove", ["a-0"]), ("add", ["a-0@other"])]
        assert not member.partition(0).is_leader
        # The leader epoch is the same, so the fetcher continues.
        shrunk = topic(
            "a",
            A,
            part(0, ME, OTHER, leader=OTHER, leader_epoch=1, partition_epoch=2, isr=(OTHER,)),
        )
        member.metadata.publish(MetadataChange(image(shrunk, end_offset=2), moved=(shrunk,)))
        assert member.fetchers.taken() == []
        back = topic("a", A, part(0, ME, OTHER, leader_epoch=2, partition_epoch=3))
        member.metadata.publish(MetadataChange(image(back, end_offset=3), moved=(back,)))
        # The fetcher is removed before the broker leads: no fetched record may be appended after
        # its own.
        assert member.fetchers.taken() == [("remove", ["a-0"])]
        assert member.partition(0).is_leader
        assert member.partition(0).leader_epoch == 2

    parts.run(scenario)


def test_older_image_does_nothing(parts: Parts) -> None:
    async def scenario() -> None:
        member = Member(parts, topic("a", A, part(0, ME, OTHER)))
        member.start()
        now = topic("a", A, part(0, ME, OTHER, leader_epoch=3, partition_epoch=3))
        member.roles.apply(MetadataChange(image(now, end_offset=9), moved=(now,)))
        gone = topic("a", A, part(0, OTHER, leader_epoch=2, partition_epoch=2))
        member.roles.apply(MetadataChange(image(gone, end_offset=8), moved=(gone,)))
        assert member.partition(0).leader_epoch == 3

    parts.run(scenario)


def test_leader_without_an_address_is_fetched_from_once_it_has_one(parts: Parts) -> None:
    async def scenario() -> None:
        followed = topic("a", A, part(0, OTHER, ME))
        member = Member(parts, followed, reachable=False)
        member.start()
        assert not any(call == "add" for call, _ in member.fetchers.taken())
        member.metadata.publish(MetadataChange(image(followed), brokers_changed=True))
        assert member.fetchers.taken() == [("add", ["a-0@other"])]
        member.metadata.publish(MetadataChange(image(followed), brokers_changed=True))
        assert member.fetchers.taken() == []

    parts.run(scenario)


def test_replica_that_is_taken_away_is_gone_with_its_log(parts: Parts) -> None:
    async def scenario() -> None:
        member = Member(parts, topic("a", A, part(0, ME, OTHER), part(1, OTHER, ME)))
        member.start()
        moved = topic("a", A, part(0, OTHER, partition_epoch=1), part(1, OTHER, ME))
        member.metadata.publish(MetadataChange(image(moved, end_offset=1), moved=(moved,)))
        with pytest.raises(UnknownTopicOrPartitionError):
            member.partition(0)
        assert parts.log_manager.log(TopicPartition("a", 0)) is None
        assert not member.partition(1).is_leader

    parts.run(scenario)


def test_topic_made_again_has_an_empty_log_of_its_own(parts: Parts) -> None:
    async def scenario() -> None:
        first = topic("a", A, part(0, ME))
        member = Member(parts, first)
        member.start()
        log = member.partition(0).log
        again = topic("a", B, part(0, ME))
        member.metadata.publish(
            MetadataChange(image(again, end_offset=1), created=(again,), deleted=(first,))
        )
        assert member.partition(0).log is not log
        assert member.partition(0).log.topic_id == B

    parts.run(scenario)


class _Directories(ClusterView):
    """A view with these log directories by id."""

    def __init__(self, parts: Parts, log_dirs: Mapping[uuid.UUID, LogDir]) -> None:
        super().__init__(ME, parts.clock)
        self._log_dirs = log_dirs
        self.noted: list[tuple[TopicIdPartition, LogDir]] = []

    def find_log_dir(self, directory_id: uuid.UUID) -> LogDir | None:
        return self._log_dirs.get(directory_id)

    def note_directory(self, place: TopicIdPartition, log_dir: LogDir) -> None:
        self.noted.append((place, log_dir))


@pytest.mark.parametrize(
    ("directory", "is_known", "is_served"),
    [
        (uuid.UUID(int=1000), True, True),
        (uuid.UUID(int=1001), False, False),
        (LOST, False, False),
        (UNASSIGNED, False, True),
    ],
)
def test_log_is_not_made_anew_while_its_directory_may_be_offline(
    parts: Parts, directory: uuid.UUID, is_known: bool, is_served: bool
) -> None:
    async def scenario() -> None:
        (log_dir,) = parts.log_manager.log_dirs()
        manager = parts.replica_manager
        manager._cluster = _Directories(parts, {directory: log_dir} if is_known else {})
        parts.log_manager.offline_log_dirs = lambda: (object(),)  # type: ignore[method-assign]
        followed = part(0, ME, OTHER, directories=(directory, uuid.UUID(int=2000)))
        member = Member(parts, topic("a", A, followed))
        member.start()
        if is_served:
            assert member.partition(0).is_leader
        else:
            with pytest.raises(LogDirFailedError):
                member.partition(0)

    parts.run(scenario)


@pytest.mark.parametrize(
    ("recorded", "is_noted"), [(UNASSIGNED, True), (uuid.UUID(int=1000), False)]
)
def test_controller_gets_the_directory_of_a_log_if_the_metadata_lacks_it(
    parts: Parts, recorded: uuid.UUID, is_noted: bool
) -> None:
    async def scenario() -> None:
        (log_dir,) = parts.log_manager.log_dirs()
        view = _Directories(parts, {uuid.UUID(int=1000): log_dir})
        parts.replica_manager._cluster = view
        member = Member(parts, topic("a", A, part(0, ME, directories=(recorded,))))
        member.start()
        assert view.noted == ([(TopicIdPartition(A, "a", 0), log_dir)] if is_noted else [])

    parts.run(scenario)


# ---- partitions that were offline

FOLLOWED = part(0, OTHER, ME, isr=(OTHER,))


def damage(parts: Parts) -> LogDir:
    """Let the log of a-0 be damaged, as a start finds it. Returns its directory."""
    log = parts.log_manager.create_log(TopicPartition("a", 0), A, TopicConfig())
    parts.log_manager.checkpoint()
    log.close()
    reason = CorruptLogError("a file is damaged", "restore it")
    del parts.log_manager._logs[log.topic_partition]
    parts.log_manager._offline[log.topic_partition] = OfflineLog(log.place, reason)
    return log.log_dir


@pytest.mark.parametrize("partition", [FOLLOWED, part(0, ME, OTHER)])
def test_repaired_partition_takes_the_role_that_it_has_now(
    parts: Parts, partition: PartitionImage
) -> None:
    async def scenario() -> None:
        damage(parts)
        member = Member(parts, topic("a", A, partition))
        member.start()
        with pytest.raises(LogDirFailedError):
            member.partition(0)
        member.fetchers.taken()
        member.roles.bring_online(TopicIdPartition(A, "a", 0))
        is_led = partition.leader == ME
        assert member.partition(0).is_leader == is_led
        assert member.fetchers.taken() == ([] if is_led else [("add", ["a-0@other"])])

    parts.run(scenario)


def test_partition_that_is_not_here_any_more_stays_away(parts: Parts) -> None:
    async def scenario() -> None:
        damage(parts)
        member = Member(parts, topic("a", A, FOLLOWED))
        member.start()
        member.metadata.publish(
            MetadataChange(image(end_offset=1), deleted=(topic("a", A, FOLLOWED),))
        )
        member.fetchers.taken()
        member.roles.bring_online(TopicIdPartition(A, "a", 0))
        assert not member.roles.begin_anew(TopicIdPartition(A, "a", 0))
        assert member.fetchers.taken() == []
        assert parts.log_manager.log(TopicPartition("a", 0)) is None

    parts.run(scenario)


def test_follower_begins_anew_beside_its_damaged_log(parts: Parts) -> None:
    async def scenario() -> None:
        log_dir = damage(parts)
        member = Member(parts, topic("a", A, FOLLOWED))
        member.start()
        member.fetchers.taken()
        assert member.roles.begin_anew(TopicIdPartition(A, "a", 0))
        assert member.partition(0).log.log_end_offset == 0
        assert member.fetchers.taken() == [("add", ["a-0@other"])]
        names = [path.name for path in log_dir.path.iterdir() if path.name.startswith("a-0")]
        assert sorted(name.rpartition("-")[2] for name in names) == ["0", "stray"]
        assert parts.log_manager.offline_logs() == ()

    parts.run(scenario)


@pytest.mark.parametrize(
    "partition",
    [
        part(0, ME, OTHER),
        part(0, OTHER, ME),
        part(0, OTHER, ME, isr=(OTHER,), elr=(ME,)),
        part(0, OTHER, ME, isr=(OTHER,), last_known_elr=(ME,)),
        part(0, OTHER, ME, isr=(), leader=-1),
        part(0, THIRD, ME, isr=(THIRD,)),
        part(0, OTHER, THIRD),
    ],
)
def test_log_that_an_election_may_count_on_is_kept(parts: Parts, partition: PartitionImage) -> None:
    """The log is kept if the broker leads, is in the ISR or eligible, or if no leader is alive.
    THIRD is not registered."""

    async def scenario() -> None:
        damage(parts)
        member = Member(parts, topic("a", A, partition))
        member.start()
        assert not member.roles.begin_anew(TopicIdPartition(A, "a", 0))
        assert len(parts.log_manager.offline_logs()) == 1

    parts.run(scenario)


def test_log_is_kept_while_its_leader_is_fenced() -> None:
    followed = topic("a", A, FOLLOWED)
    now = image(followed)
    assert may_discard_log(ME, followed, 0, now)
    fenced = replace(now, brokers={OTHER: now.brokers[OTHER]._replace(fenced=True)})
    assert not may_discard_log(ME, followed, 0, fenced)
