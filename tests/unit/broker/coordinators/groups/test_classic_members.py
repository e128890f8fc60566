"""Which member leads a group when members leave, and what the members of a group say together."""

from __future__ import annotations

import pytest

from isotherm.broker.coordinators.groups.classic_members import ClassicMember, ClassicMembers
from isotherm.broker.coordinators.groups.classic_protocol import JoinRequest, Protocol


def member(member_id: str, *protocols: Protocol, instance_id: str | None = None) -> ClassicMember:
    return ClassicMember(member_id, instance_id, "client", "host", 1000, 2000, protocols)


def group_of(*all_members: ClassicMember) -> ClassicMembers:
    members = ClassicMembers()
    for each in all_members:
        members.add(each)
    return members


def subscription(*topics: bytes) -> bytes:
    """Version 0 of ConsumerProtocolSubscription, without user data."""
    names = b"".join(len(topic).to_bytes(2) + topic for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4) + names + b"\xff" * 4


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_leader_stays_until_it_leaves_itself(order: str) -> None:
    members = ClassicMembers()
    for each in order:
        members.add(member(each))
    first, second, third = order
    members.remove(second)
    assert members.leader_id == first
    members.remove(first)
    assert members.leader_id == third
    members.remove(third)
    assert members.leader_id is None


def test_renamed_member_keeps_its_instance_id_and_its_place_as_leader() -> None:
    first, second = member("a", instance_id="i1"), member("b", instance_id="i2")
    members = group_of(first, second)
    members.rename(second, "b2")
    assert (members.leader_id, members.static_member_id("i2")) == ("a", "b2")
    members.rename(first, "a2")
    assert (members.leader_id, members.static_member_id("i1")) == ("a2", "a2")
    assert set(members.by_id) == {"a2", "b2"}
    members.remove("b2")
    assert members.static_member_id("i2") is None
    assert members.static_member_id(None) is None


def test_member_that_joins_again_is_as_its_last_join_says() -> None:
    protocols = (Protocol("range", b"new"), Protocol("sticky", b"s"))
    request = JoinRequest(
        None, "a", None, "other", "/other", "consumer", protocols, 11, 22, False, False, "n"
    )
    joined = member("a", Protocol("range", b"old"))
    joined.update(request)
    assert joined == ClassicMember.of_request(request, "a")
    assert (joined.metadata("sticky"), joined.metadata("none")) == (b"s", b"")


def test_topics_of_a_group_are_those_of_all_members_or_unknown() -> None:
    members = group_of(
        member("a", Protocol("range", subscription(b"t", b"u"))),
        member("b", Protocol("range", subscription(b"v"))),
    )
    assert members.subscribed_topics("range") == {"t", "u", "v"}
    members.add(member("c", Protocol("range", b"\0")))
    assert members.subscribed_topics("range") is None
    assert ClassicMembers().subscribed_topics("range") == set()


def test_leader_is_a_member_that_has_rejoined() -> None:
    first, second, third = member("a"), member("b"), member("c")
    members = group_of(first, second, third)
    assert not members.elect_joined_leader()
    assert members.leader_id == "a"
    third.join_reply = second.join_reply = object()
    assert members.elect_joined_leader()
    assert (members.leader_id, members.awaiting_join_count()) == ("b", 2)
    first.join_reply = object()
    assert members.elect_joined_leader()
    assert members.leader_id == "b", "it has rejoined, so it stays"


@pytest.mark.parametrize(("leader", "gone"), [("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")])
def test_elected_leader_stays_when_another_member_leaves(leader: str, gone: str) -> None:
    members = group_of(member("a"), member("b"), member("c"))
    members.leader_id = leader
    members.remove(gone)
    assert members.leader_id == leader


def test_empty_group_has_no_protocol_and_no_timeout() -> None:
    members = ClassicMembers()
    assert (members.shared_protocols(), members.rebalance_timeout_ms()) == (set(), 0)
    assert not members.elect_joined_leader()
