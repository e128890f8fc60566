"""Server-side assignors: every partition of a subscribed topic has exactly one subscriber. The
uniform assignor balances the members, and moves no more than it must."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.broker.coordinators.groups.assignors import range as range_assignor
from isotherm.broker.coordinators.groups.assignors import uniform
from isotherm.broker.coordinators.groups.assignors.assignor import MemberSubscription

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))
PARTITIONS = st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)), max_size=12)


@st.composite
def subscriptions(draw: st.DrawFn) -> dict[str, MemberSubscription]:
    is_homogeneous = draw(st.booleans())
    shared = draw(st.frozensets(st.sampled_from(TOPICS)))
    return {
        f"m{index}": MemberSubscription(
            f"i{index}" if draw(st.booleans()) else None,
            shared if is_homogeneous else draw(st.frozensets(st.sampled_from(TOPICS))),
            draw(PARTITIONS),
        )
        for index in range(draw(st.integers(0, 6)))
    }


@pytest.mark.parametrize("assign", [uniform.assign, range_assignor.assign])
@settings(max_examples=100)
@given(members=subscriptions(), topics=COUNTS)
def test_each_partition_has_one_subscriber(assign, members, topics) -> None:
    assigned = assign(members, topics)
    assert assigned.keys() == members.keys()
    given_out = [partition for each in assigned.values() for partition in each]
    assert len(given_out) == len(set(given_out))
    wanted = frozenset().union(*(member.topics for member in members.values()))
    assert set(given_out) == {
        (topic, index) for topic in wanted & topics.keys() for index in range(topics[topic])
    }
    for member_id, partitions in assigned.items():
        assert {topic for topic, _ in partitions} <= members[member_id].topics


@settings(max_examples=100)
@given(members=subscriptions(), topics=COUNTS)
def test_uniform_leaves_no_move_that_would_even_it_out(members, topics) -> None:
    assigned = uniform.assign(members, topics)
    for partitions in assigned.values():
        for topic, _ in partitions:
            for emptier, member in members.items():
                if topic in member.topics:
                    assert len(assigned[emptier]) >= len(partitions) - 1


@settings(max_examples=100)
@given(members=subscriptions(), topics=COUNTS)
def test_uniform_that_is_asked_again_moves_nothing(members, topics) -> None:
    assigned = uniform.assign(members, topics)
    again = {
        member_id: member._replace(assigned=assigned[member_id])
        for member_id, member in members.items()
    }
    assert uniform.assign(again, topics) == assigned


def test_uniform_moves_no_more_than_a_new_member_needs() -> None:
    topics = {TOPICS[0]: 6}
    subscribed = frozenset(TOPICS[:1])
    members = {name: MemberSubscription(None, subscribed, frozenset()) for name in "ab"}
    before = uniform.assign(members, topics)
    members = {name: member._replace(assigned=before[name]) for name, member in members.items()}
    members["c"] = MemberSubscription(None, subscribed, frozenset())
    after = uniform.assign(members, topics)
    assert [len(after[name]) for name in "abc"] == [2, 2, 2]
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]


def test_range_gives_members_the_same_partitions_of_topics_alike() -> None:
    topics = {TOPICS[0]: 5, TOPICS[1]: 5}
    subscribed = frozenset(TOPICS[:2])
    members = {name: MemberSubscription(None, subscribed, frozenset()) for name in "ba"}
    assigned = range_assignor.assign(members, topics)
    assert assigned["a"] == {(topic, index) for topic in topics for index in (0, 1, 2)}
    assert assigned["b"] == {(topic, index) for topic in topics for index in (3, 4)}
