"""Which member leads a group when members leave."""

from __future__ import annotations

import pytest

from isotherm.broker.groups.classic_members import ClassicMember, ClassicMembers


def member(member_id: str) -> ClassicMember:
    return ClassicMember(member_id, None, "client", "host", 1000, 2000, ())


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
