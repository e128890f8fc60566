"""The assignor of share groups: everybody has work, everything is consumed, and little moves."""

from __future__ import annotations

import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.coordinators.groups.assignors import simple
from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, MemberSubscription

T, U = uuid.UUID(int=1), uuid.UUID(int=2)


def members(
    count: int, assigned: dict[str, Assignment] | None = None
) -> dict[str, MemberSubscription]:
    return {
        name: MemberSubscription(None, frozenset([T, U]), (assigned or {}).get(name, frozenset()))
        for name in (f"m{index:03}" for index in range(count))
    }


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 8), st.integers(1, 40))
def test_work_is_shared_by_all(before: int, of_t: int, of_u: int, after: int) -> None:
    topics = {T: range(of_t), U: range(of_u)}
    first = simple.assign(members(before), topics)
    for assigned in (first, simple.assign(members(after, first), topics)):
        counts = Counter(each for own in assigned.values() for each in own)
        assert len(counts) == of_t + of_u
        assert max(counts.values()) - min(counts.values()) <= 1 or max(counts.values()) == -(
            -len(assigned) // (of_t + of_u)
        )
        sizes = [len(own) for own in assigned.values()]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), st.integers(1, 8))
def test_nothing_moves_without_a_change(count: int, partitions: int) -> None:
    topics = {T: range(partitions), U: range(1)}
    first = simple.assign(members(count), topics)
    assert simple.assign(members(count, first), topics) == first


def test_partitions_that_are_not_assignable_are_left_out() -> None:
    assigned = simple.assign(members(2), {T: [1, 3], U: []})
    assert assigned == {"m000": frozenset([(T, 1)]), "m001": frozenset([(T, 3)])}


def test_members_without_subscriptions_have_nothing() -> None:
    nobody = {"m": MemberSubscription(None, frozenset(), frozenset([(T, 0)]))}
    assert simple.assign(nobody, {}) == {}
