"""Classic members in a group of the consumer protocol, and groups that change their protocol.

The rules are Kafka's (GroupMetadataManager.classicGroup*ToConsumerGroup, convertTo*Group).
"""

from __future__ import annotations

import itertools
import struct
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import consumer_replay, hosted_members
from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_members import ClassicMember
from isotherm.broker.coordinators.groups.classic_protocol import JoinRequest, Protocol, SyncRequest
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.consumer_member import MemberState
from isotherm.broker.coordinators.groups.embedded_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from isotherm.broker.coordinators.groups.group_migration import (
    ClassicState,
    MigrationPolicy,
    can_downgrade,
    can_upgrade,
    downgraded,
    upgraded,
)
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.types import TopicPartition

E = ErrorCode
TOPIC = uuid.UUID(int=1)
SESSION_MS, REBALANCE_MS, MODERN_SESSION_MS = 10_000, 60_000, 45_000
CLASSIC_SETTINGS = ClassicGroupSettings(0, 10)
SETTINGS = ConsumerGroupSettings(MODERN_SESSION_MS, 5_000, 10)
BOTH = MigrationPolicy.BIDIRECTIONAL


def subscription(*owned: int, version: int = 1) -> bytes:
    """The subscription to `t` of a consumer that owns these partitions, laid out by hand from the
    protocol's schema."""
    out = struct.pack(">hih1si", version, 1, 1, b"t", -1)
    if version >= 1:
        out += struct.pack(">i", int(bool(owned)))
        if owned:
            out += struct.pack(f">h1si{len(owned)}i", 1, b"t", len(owned), *owned)
    if version >= 2:
        out += struct.pack(">i", 7)
    if version >= 3:
        out += struct.pack(">h4s", 4, b"rack")
    return out


def parts(*indexes: int) -> frozenset[tuple[uuid.UUID, int]]:
    return frozenset((TOPIC, index) for index in indexes)


class Driver:
    """Drives a consumer group with members of both protocols. A request that is refused leaves the
    group as it was."""

    def __init__(self) -> None:
        topic = SimpleNamespace(name="t", topic_id=TOPIC, partitions=range(4))
        image: Any = SimpleNamespace(
            end_offset=1, topics_by_name={"t": topic}, topics_by_id={TOPIC: topic}
        )
        self.catalog = TopicCatalog(image)
        self.group = ConsumerGroup("g", SETTINGS)
        self.records: list[Any] = []
        self.now_ms = 1_000
        self._ids = itertools.count(1)

    def beat(self, member_id: str, epoch: int = 0, **fields: Any) -> Any:
        defaults = {"topic_names": frozenset({"t"}), "rebalance_timeout_ms": REBALANCE_MS}
        defaults |= {"owned": frozenset()} if epoch == 0 else {}
        changed = self.group.copy()
        beat = MemberHeartbeat(member_id, epoch, **{**defaults, **fields})
        result, self.records = changed.heartbeat(beat, self.catalog, self.now_ms, 77)
        self.group = changed
        return result

    def join(self, member_id: str = "", *owned: int, **fields: Any) -> Any:
        """Send a JoinGroup. Returns the result, or the error code."""
        defaults = {
            "instance_id": None,
            "protocol_type": "consumer",
            "protocols": (Protocol("cooperative-sticky", subscription(*owned)),),
            "known": False,
            **fields,
        }
        request = JoinRequest(
            None,
            member_id,
            defaults["instance_id"],
            "client",
            "/host",
            defaults["protocol_type"],
            defaults["protocols"],
            SESSION_MS,
            REBALANCE_MS,
            defaults["known"],
            False,
            f"id-{next(self._ids)}",
        )
        changed = self.group.copy()
        try:
            result, self.records = hosted_members.join(
                changed, request, self.catalog, self.now_ms, 77
            )
        except MemberRejectedError as error:
            return error.code
        self.group = changed
        return result

    def sync(self, member_id: str, generation: int, **fields: Any) -> Any:
        """Send a SyncGroup. Returns the assigned partitions of `t`, or the error code."""
        request = SyncRequest(
            member_id,
            fields.get("instance_id"),
            generation,
            fields.get("protocol_type"),
            fields.get("protocol_name"),
            {},
        )
        try:
            result = hosted_members.sync(self.group, request, self.catalog, self.now_ms)
        except MemberRejectedError as error:
            return error.code
        if result.error is not E.none:
            return result.error
        return {partition for _, partition in read_assignment(result.assignment)}

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Any:
        try:
            return hosted_members.heartbeat(
                self.group, member_id, instance_id, generation, self.now_ms
            )
        except MemberRejectedError as error:
            return error.code

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        codes, self.records = hosted_members.leave(self.group, members)
        return codes


@pytest.fixture
def driver() -> Driver:
    return Driver()


# ---- the embedded protocol


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_subscription_is_read_in_every_version(version: int) -> None:
    found = read_subscription(subscription(0, 2, version=version))
    assert found.topics == {"t"}
    owned = (TopicPartition("t", 0), TopicPartition("t", 2)) if version else ()
    assert (found.owned, found.rack_id) == (owned, "rack" if version >= 3 else None)


@pytest.mark.parametrize(("version", "written"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_assignment_has_the_version_of_the_subscription(version: int, written: int) -> None:
    wanted = [TopicPartition("t", 3), TopicPartition("t", 1)]
    data = write_assignment(wanted, subscription(version=version))
    assert data == struct.pack(">hih1siiii", written, 1, 1, b"t", 2, 1, 3, -1)
    assert read_assignment(data) == (TopicPartition("t", 1), TopicPartition("t", 3))


# ---- joining


def test_classic_member_joins_and_gets_free_partitions(driver: Driver) -> None:
    driver.beat("a")
    joined = driver.join()
    assert (joined.error, joined.generation_id, joined.leader) == (E.none, 2, "")
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "cooperative-sticky")
    assert driver.sync(joined.member_id, 2) == set()
    given_up = driver.beat("a", 1, owned=parts(0, 1, 2, 3)).assigned
    assert driver.heartbeat(joined.member_id, 2) is E.none
    driver.beat("a", 1, owned=given_up)
    assert driver.heartbeat(joined.member_id, 2) is E.rebalance_in_progress
    again = driver.join(joined.member_id)
    got = driver.sync(again.member_id, again.generation_id)
    assert parts(*got) == parts(0, 1, 2, 3) - given_up
    assert driver.heartbeat(joined.member_id, 2) is E.none
    assert driver.group.shown_state == "Stable"


def test_classic_member_gives_partitions_up_by_joining_again(driver: Driver) -> None:
    joined = driver.join()
    member_id = joined.member_id
    assert driver.sync(member_id, 1) == {0, 1, 2, 3}
    driver.beat("a")
    assert driver.heartbeat(member_id, 1) is E.rebalance_in_progress
    assert driver.sync(member_id, 1) is E.rebalance_in_progress
    revoking = driver.join(member_id, 0, 1, 2, 3)
    assert revoking.generation_id == 1
    assert driver.group.members[member_id].state is MemberState.UNREVOKED_PARTITIONS
    kept = driver.sync(member_id, 1)
    assert len(kept) == 2
    assert driver.heartbeat(member_id, 1) is E.rebalance_in_progress
    done = driver.join(member_id, *kept)
    assert done.generation_id == 2
    assert driver.sync(member_id, 2) == kept


def test_member_with_several_protocols_joins_by_the_first(driver: Driver) -> None:
    preferred = Protocol("range", subscription(version=0))
    joined = driver.join(protocols=(preferred, Protocol("cooperative-sticky", b"")))
    member_id = joined.member_id
    assert joined.protocol_name == "range"
    refused = driver.sync(member_id, 1, protocol_name="cooperative-sticky")
    assert refused is E.inconsistent_group_protocol
    assert driver.sync(member_id, 1, protocol_name="range") == {0, 1, 2, 3}


def test_partitions_of_a_deleted_topic_are_left_out_of_an_assignment(driver: Driver) -> None:
    joined = driver.join()
    image: Any = SimpleNamespace(end_offset=2, topics_by_name={}, topics_by_id={})
    driver.catalog = TopicCatalog(image)
    assert driver.sync(joined.member_id, 1) == set()


def test_eager_member_has_given_up_everything_when_it_joins(driver: Driver) -> None:
    joined = driver.join(protocols=(Protocol("range", subscription(version=0)),))
    driver.beat("a")
    again = driver.join(joined.member_id, protocols=(Protocol("range", subscription(version=0)),))
    assert again.generation_id == 2
    assert len(driver.sync(joined.member_id, 2)) == 2


def test_new_dynamic_member_is_sent_back_for_its_id(driver: Driver) -> None:
    driver.beat("a")
    asked = driver.join(known=True)
    assert asked.error is E.member_id_required
    assert list(driver.group.members) == ["a"]
    assert driver.join(asked.member_id, known=True).member_id == asked.member_id


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (Protocol("roundrobin", subscription()),)},
        {"protocols": (Protocol("cooperative-sticky", b"\0"),)},
    ],
)
def test_member_that_speaks_another_protocol_is_refused(driver: Driver, fields: Any) -> None:
    driver.join()
    assert driver.join(**fields) is E.inconsistent_group_protocol


def test_group_that_is_full_takes_no_new_classic_member(driver: Driver) -> None:
    driver.group = ConsumerGroup("g", SETTINGS._replace(max_size=1))
    member_id = driver.join().member_id
    assert driver.join() is E.group_max_size_reached
    assert driver.join(member_id).error is E.none


def test_static_member_is_replaced_whatever_protocol_it_spoke(driver: Driver) -> None:
    driver.beat("a", instance_id="i")
    joined = driver.join(instance_id="i")
    assert list(driver.group.members) == [joined.member_id]
    assert driver.sync(joined.member_id, joined.generation_id, instance_id="i") == {0, 1, 2, 3}
    assert driver.join("a", instance_id="i") is E.fenced_instance_id
    assert driver.join("a", instance_id="other") is E.unknown_member_id
    back = driver.beat("b", instance_id="i")
    assert (list(driver.group.members), back.assigned) == (["b"], parts(0, 1, 2, 3))
    assert driver.group.members["b"].classic is None


# ---- the other requests


def test_requests_are_checked_as_kafka_checks_them(driver: Driver) -> None:
    driver.beat("a")
    member_id = driver.join().member_id
    assert driver.sync("nobody", 2) is E.unknown_member_id
    assert driver.sync("a", 1) is E.unknown_member_id
    assert driver.sync(member_id, 1) is E.illegal_generation
    assert driver.sync(member_id, 2, protocol_type="connect") is E.inconsistent_group_protocol
    assert driver.sync(member_id, 2, protocol_name="range") is E.inconsistent_group_protocol
    assert driver.sync(member_id, 2, protocol_name="cooperative-sticky") == set()
    assert driver.heartbeat("a", 1) is E.unknown_member_id
    assert driver.heartbeat(member_id, 3) is E.illegal_generation
    assert driver.heartbeat(member_id, 2, "i") is E.unknown_member_id


def test_members_leave_alone_or_are_removed_by_instance(driver: Driver) -> None:
    driver.beat("a")
    first, second = driver.join().member_id, driver.join(instance_id="i").member_id
    epoch = driver.group.group_epoch
    asked = [("b", None), (first, None), (first, None), ("x", "i"), ("", "j"), ("", "i")]
    assert driver.leave(*asked) == [
        E.unknown_member_id,
        E.none,
        E.none,
        E.fenced_instance_id,
        E.unknown_member_id,
        E.none,
    ]
    assert second not in driver.group.members
    assert (list(driver.group.members), driver.group.group_epoch) == (["a"], epoch + 1)


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize(
    ("named", "code"),
    [
        (("a", None), E.none),
        (("a", "i"), E.none),
        (("", "i"), E.none),
        (("b", "i"), E.fenced_instance_id),
        (("", "j"), E.unknown_member_id),
        (("a", "j"), E.unknown_member_id),
        (("", None), E.unknown_member_id),
    ],
)
def test_member_of_the_consumer_protocol_is_removed_by_a_leave_group(
    driver: Driver, named: tuple[str, str | None], code: E, is_away: bool
) -> None:
    """Kafka GroupMetadataManager.classicGroupLeaveToConsumerGroup. A static member that is away,
    with epoch -2, would stay until its session ends."""
    driver.beat("a", instance_id="i")
    driver.join()
    if is_away:
        driver.group.leave("a", "i", -2)
    epoch = driver.group.group_epoch
    assert driver.leave(named) == [code]
    assert ("a" in driver.group.members) is (code is not E.none)
    assert driver.group.group_epoch == epoch + (code is E.none)
    assert bool(driver.records) is (code is E.none)


def test_classic_member_has_its_own_session_timeout(driver: Driver) -> None:
    driver.beat("a")
    member_id = driver.join().member_id
    driver.sync(member_id, 2)
    driver.now_ms += SESSION_MS - 1
    assert driver.group.expire(driver.now_ms) == []
    driver.heartbeat(member_id, 2)
    driver.now_ms += SESSION_MS - 1
    assert driver.group.expire(driver.now_ms) == []
    driver.group.expire(driver.now_ms + 1)
    assert list(driver.group.members) == ["a"]


@pytest.mark.parametrize("after", ["join", "heartbeat"])
def test_classic_member_has_its_rebalance_timeout_to_sync_and_to_join(
    driver: Driver, after: str
) -> None:
    member_id = driver.join().member_id
    if after == "heartbeat":
        driver.sync(member_id, 1)
        driver.beat("a")
        assert driver.heartbeat(member_id, 1) is E.rebalance_in_progress
    end_ms = driver.now_ms + REBALANCE_MS
    while driver.now_ms < end_ms - SESSION_MS:
        driver.now_ms += SESSION_MS - 1
        driver.heartbeat(member_id, 1)
    assert member_id in driver.group.members
    driver.group.session_deadlines.clear()
    assert driver.group.expire(end_ms - 1) == []
    driver.group.expire(end_ms)
    assert member_id not in driver.group.members


def test_group_is_the_same_once_read_back_from_its_records(driver: Driver) -> None:
    driver.beat("a")
    driver.join()
    other = ConsumerGroup("g", SETTINGS)
    for record in driver.group.all_records(5):
        consumer_replay.replay(other, record)
    assert other.members == driver.group.members
    assert other.target == driver.group.target
    assert (other.group_epoch, other.target_epoch) == (2, 2)


# ---- a group changes its protocol


def classic_group(*assignments: tuple[int, ...], generation: int = 4) -> ClassicGroup:
    """A stable classic group with a member for each assignment."""
    group = ClassicGroup("g", CLASSIC_SETTINGS, now_ms=1_000)
    group.state, group.generation_id = GroupState.STABLE, generation
    group.protocol_type, group.protocol_name = "consumer", "range"
    for number, indexes in enumerate(assignments):
        partitions = [TopicPartition("t", index) for index in indexes]
        member = ClassicMember(
            f"m{number}",
            None,
            "client",
            "/host",
            SESSION_MS,
            REBALANCE_MS,
            (Protocol("range", subscription()),),
        )
        member.assignment = write_assignment(partitions, subscription()) if indexes else b""
        group.members.add(member)
    return group


def test_upgraded_group_goes_on_where_the_classic_one_was(driver: Driver) -> None:
    classic = classic_group((0, 1), (2, 3))
    assert can_upgrade(classic, BOTH, SETTINGS)
    driver.group = upgraded(ClassicState.of(classic), SETTINGS, driver.catalog, driver.now_ms)
    assert (driver.group.group_epoch, driver.group.target_epoch) == (4, 4)
    member = driver.group.members["m0"]
    assert (member.epoch, member.assigned, member.state) == (4, parts(0, 1), MemberState.STABLE)
    assert driver.heartbeat("m0", 4) is E.none
    driver.beat("a")
    assert driver.heartbeat("m0", 4) is E.rebalance_in_progress
    for member_id, owned in (("m0", (0, 1)), ("m1", (2, 3))):
        revoking = driver.join(
            member_id, *owned, protocols=(Protocol("range", subscription(*owned)),)
        )
        kept = driver.sync(member_id, revoking.generation_id)
        driver.join(member_id, protocols=(Protocol("range", subscription(*kept)),))
    got = driver.beat("a", 5, owned=frozenset())
    assert (got.epoch, len(got.assigned)) == (5, 1)
    assert sum(len(each.assigned) for each in driver.group.members.values()) == 4


def test_group_that_forms_is_upgraded_with_nothing_assigned(driver: Driver) -> None:
    classic = classic_group((), (), generation=0)
    classic.state, classic.protocol_name = GroupState.PREPARING_REBALANCE, None
    driver.group = upgraded(ClassicState.of(classic), SETTINGS, driver.catalog, driver.now_ms)
    driver.beat("a")
    assert driver.group.group_epoch == 1
    assert len(driver.group.members) == 3


def test_group_is_upgraded_only_if_policy_size_and_protocol_allow(driver: Driver) -> None:
    classic = classic_group((0,), (1,))
    assert can_upgrade(classic, MigrationPolicy.UPGRADE, SETTINGS)
    assert not can_upgrade(classic, MigrationPolicy.DOWNGRADE, SETTINGS)
    assert not can_upgrade(classic, MigrationPolicy.DISABLED, SETTINGS)
    assert not can_upgrade(classic, BOTH, SETTINGS._replace(max_size=1))
    classic.protocol_type = "connect"
    assert not can_upgrade(classic, BOTH, SETTINGS)
    classic.members["m0"].protocols = (Protocol("range", b"\0\1"),)
    with pytest.raises(MemberRejectedError) as refused:
        upgraded(ClassicState.of(classic), SETTINGS, driver.catalog, driver.now_ms)
    assert refused.value.code is E.group_id_not_found


def test_downgraded_group_has_the_targets_as_assignments(driver: Driver) -> None:
    first, second = driver.join().member_id, driver.join().member_id
    classic = downgraded(driver.group, CLASSIC_SETTINGS, driver.catalog, driver.now_ms)
    assert (classic.state, classic.generation_id) == (GroupState.STABLE, 2)
    assert (classic.protocol_type, classic.protocol_name) == ("consumer", "cooperative-sticky")
    assert classic.members.leader_id == first
    assert classic.subscribed_topics == {"t"}
    for member_id in (first, second):
        found = read_assignment(classic.members[member_id].assignment)
        target = driver.group.target[member_id]
        assert parts(*(each.partition for each in found)) == target
        assert classic.members[member_id].deadline_ms == driver.now_ms + SESSION_MS
    classic.rebalance(driver.now_ms)
    assert classic.heartbeat(first, None, 2, driver.now_ms) is E.rebalance_in_progress


def test_group_is_downgraded_only_when_none_but_classic_members_are_left(driver: Driver) -> None:
    assert not can_downgrade(driver.group, BOTH, CLASSIC_SETTINGS)
    driver.join()
    assert can_downgrade(driver.group, BOTH, CLASSIC_SETTINGS)
    assert can_downgrade(driver.group, MigrationPolicy.DOWNGRADE, CLASSIC_SETTINGS)
    assert not can_downgrade(driver.group, MigrationPolicy.UPGRADE, CLASSIC_SETTINGS)
    assert not can_downgrade(driver.group, BOTH, CLASSIC_SETTINGS._replace(max_size=0))
    driver.beat("a")
    assert not can_downgrade(driver.group, BOTH, CLASSIC_SETTINGS)
