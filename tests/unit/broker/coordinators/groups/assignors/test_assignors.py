"""The assignors' quotas on small groups, by hand. tests/property/broker has their laws."""

from __future__ import annotations

import uuid

from isotherm.broker.coordinators.groups.assignors import range as range_assignor
from isotherm.broker.coordinators.groups.assignors import uniform
from isotherm.broker.coordinators.groups.assignors.assignor import MemberSubscription

T, U = uuid.UUID(int=1), uuid.UUID(int=2)


def member(
    *topics: uuid.UUID, instance_id: str | None = None, assigned: tuple[int, ...] = ()
) -> MemberSubscription:
    held = frozenset((T, index) for index in assigned)
    return MemberSubscription(instance_id, frozenset(topics), held)


def test_range_gives_the_first_members_one_partition_more() -> None:
    members = {"b": member(T, U), "a": member(T), "c": member(T, instance_id="i"), "d": member()}
    given = range_assignor.assign(members, {T: 8, U: 2})
    assert given == {
        "c": {(T, 0), (T, 1), (T, 2)},
        "a": {(T, 3), (T, 4), (T, 5)},
        "b": {(T, 6), (T, 7), (U, 0), (U, 1)},
        "d": set(),
    }
    assert range_assignor.assign({"d": member()}, {T: 8}) == {"d": set()}


def test_uniform_shares_differ_by_one_and_the_fullest_has_the_rest() -> None:
    members = {"a": member(T), "b": member(T, assigned=(3, 5, 6, 9)), "c": member(T)}
    given = uniform.assign(members, {T: 10})
    assert {name: len(partitions) for name, partitions in given.items()} == {"a": 3, "b": 4, "c": 3}
    assert given["b"] == {(T, 3), (T, 5), (T, 6), (T, 9)}
    assert len(frozenset().union(*given.values())) == 10


def test_uniform_takes_the_last_partitions_above_the_quota_away() -> None:
    """Kafka: UniformHomogeneousAssignmentBuilder.maybeRevokePartitions."""
    given = uniform.assign({"a": member(T, assigned=tuple(range(7))), "b": member(T)}, {T: 7})
    assert given == {"a": {(T, number) for number in range(4)}, "b": {(T, 4), (T, 5), (T, 6)}}


def test_uniform_moves_partitions_to_a_member_with_far_fewer() -> None:
    members = {"a": member(T, U, assigned=tuple(range(7))), "b": member(T)}
    given = uniform.assign(members, {T: 7, U: 0})
    assert sorted(map(len, given.values())) == [3, 4]
