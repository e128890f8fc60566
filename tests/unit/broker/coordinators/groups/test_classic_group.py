"""The classic group's state machine, rule by rule (Kafka: ClassicGroup, GroupMetadataManager)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState, offset_commit_error

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000


def test_first_join_waits_for_the_initial_delay(driver) -> None:
    assert driver.join("a") is None
    driver.pass_time(DELAY_MS - 1)
    assert driver.answers == {}
    driver.pass_time(1)
    answer = driver.answers["a"]
    assert answer.error is ErrorCode.none
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, "id-1", "range")
    assert [member.member_id for member in answer.members] == ["id-1"]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_join_during_the_initial_delay_puts_the_rebalance_off(driver) -> None:
    driver.join("a")
    driver.pass_time(DELAY_MS - 1)
    driver.join("b")
    driver.pass_time(1)
    assert driver.answers == {}
    driver.pass_time(DELAY_MS)
    assert {driver.answers[name].generation_id for name in "ab"} == {1}
    assert [len(driver.answers[name].members) for name in "ab"] == [2, 0]


def test_initial_delay_ends_with_the_rebalance_timeout(driver) -> None:
    driver.join("first", rebalance_ms=5000)
    for count in range(4):
        driver.pass_time(1000)
        driver.join(count, rebalance_ms=5000)
    assert "first" not in driver.answers
    driver.pass_time(1000)
    assert driver.answers["first"].error is ErrorCode.none
    assert len(driver.answers["first"].members) == 5


def test_leader_sync_assigns_everybody_and_stores_first(driver) -> None:
    ids = driver.stable(None, None)
    assert driver.group.state is GroupState.STABLE
    assert driver.stores == 1
    for member_id in ids:
        result = driver.answers["form sync", member_id]
        assert (result.error, result.assignment) == (ErrorCode.none, f"for {member_id}".encode())


def test_sync_in_stable_gives_the_assignment_again(driver) -> None:
    (member_id,) = driver.stable(None)
    assert driver.sync("again", member_id, 1).assignment == b"for id-1"


@pytest.mark.parametrize("generation", [0, 2])
def test_sync_of_another_generation_is_refused(driver, generation) -> None:
    (member_id,) = driver.stable(None)
    assert driver.sync("other", member_id, generation).error is ErrorCode.illegal_generation


def test_member_id_required_then_join_with_it(driver) -> None:
    answer = driver.join("a", known=True)
    assert (answer.error, answer.member_id) == (ErrorCode.member_id_required, "id-1")
    assert not driver.group.members
    driver.join("b", "id-1", known=True)
    driver.pass_time(DELAY_MS)
    assert driver.answers["b"].member_id == "id-1"


def test_pending_member_that_does_not_come_back_is_forgotten(driver) -> None:
    driver.join("a", known=True)
    driver.pass_time(SESSION_MS)
    assert driver.group.is_unused
    assert driver.join("b", "id-1", known=True).error is ErrorCode.unknown_member_id


def test_rebalance_waits_for_a_pending_member_until_it_expires(driver) -> None:
    (member_id,) = driver.stable(None)
    driver.join("pending", known=True)
    driver.join("again", member_id)
    assert "again" not in driver.answers
    for _ in range(3):
        driver.pass_time(SESSION_MS // 3)
    driver.pass_time(SESSION_MS)
    assert driver.answers["again"].generation_id == 2


def test_second_member_rebalances_a_stable_group(driver) -> None:
    (first,) = driver.stable(None)
    driver.join("new")
    assert driver.heartbeat(first, 1) is ErrorCode.rebalance_in_progress
    assert driver.sync("late", first, 1).error is ErrorCode.rebalance_in_progress
    driver.join("first again", first)
    assert driver.answers["new"].generation_id == 2
    assert driver.answers["first again"].leader == first


def test_rebalance_timeout_removes_dynamic_members_that_do_not_rejoin(driver) -> None:
    first, second = driver.stable(None, None)
    driver.join("again", second, protocols=(("range", b"new"),))
    for _ in range(REBALANCE_MS // 5000):
        driver.heartbeat(first, 1)
        driver.pass_time(5000)
    assert list(driver.group.members.by_id) == [second]
    answer = driver.answers["again"]
    assert (answer.generation_id, answer.leader) == (2, second)


def test_rebalance_timeout_keeps_static_members(driver) -> None:
    first, second = driver.stable("i1", "i2")
    driver.join("again", second, instance_id="i2", protocols=(("range", b"new"),))
    for _ in range(REBALANCE_MS // 5000):
        driver.heartbeat(first, 1, "i1")
        driver.pass_time(5000)
    assert set(driver.group.members.by_id) == {first, second}
    assert driver.answers["again"].leader == second


def test_silent_member_is_removed_after_its_session_timeout(driver) -> None:
    first, second = driver.stable(None, None)
    driver.pass_time(SESSION_MS - 1)
    assert driver.heartbeat(first, 1) is ErrorCode.none
    driver.pass_time(1)
    assert list(driver.group.members.by_id) == [first]
    assert driver.heartbeat(first, 1) is ErrorCode.rebalance_in_progress
    assert driver.heartbeat(second, 1) is ErrorCode.unknown_member_id


def test_last_member_leaving_empties_and_stores_the_group(driver) -> None:
    (member_id,) = driver.stable(None)
    assert driver.leave((member_id, None)) == [ErrorCode.none]
    assert driver.group.state is GroupState.EMPTY
    assert (driver.group.generation_id, driver.stores) == (2, 2)
    assert driver.group.next_deadline_ms() is None


def test_leave_answers_each_member_on_its_own(driver) -> None:
    first, _ = driver.stable("i1", None)
    codes = driver.leave(("stranger", None), (first, "other"), ("", "i1"), ("", "nobody"))
    unknown = ErrorCode.unknown_member_id
    assert codes == [unknown, unknown, ErrorCode.none, unknown]


def test_leaving_member_that_waits_is_answered(driver) -> None:
    driver.join("a")
    assert driver.leave(("id-1", None)) == [ErrorCode.none]
    assert driver.answers["a"].error is ErrorCode.unknown_member_id


def test_members_that_do_not_sync_are_removed_after_the_rebalance_timeout(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.pass_time(2 * DELAY_MS)
    driver.sync("a syncs", "id-1", 1, id_1=b"x", id_2=b"y")
    assert driver.group.state is GroupState.STABLE
    for _ in range(REBALANCE_MS // 5000):
        driver.heartbeat("id-1", 1)
        driver.heartbeat("id-2", 1)
        driver.pass_time(5000)
    assert list(driver.group.members.by_id) == ["id-1"]
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_join_during_completing_answers_waiting_syncs_with_rebalance(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.pass_time(2 * DELAY_MS)
    driver.sync("b syncs", "id-2", 1)
    driver.join("c")
    assert driver.answers["b syncs"].error is ErrorCode.rebalance_in_progress
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_protocol_is_the_shared_one_with_most_votes(driver) -> None:
    driver.join("a", protocols=(("x", b"1"), ("range", b"2"), ("sticky", b"3")))
    driver.join("b", protocols=(("sticky", b"4"), ("range", b"5")))
    driver.join("c", protocols=(("sticky", b"6"), ("range", b"7"), ("x", b"8")))
    driver.pass_time(3 * DELAY_MS)
    answer = driver.answers["a"]
    assert answer.protocol_name == "sticky"
    assert [member.metadata for member in answer.members] == [b"3", b"4", b"6"]


@pytest.mark.parametrize(
    "wrong", [{"protocol_type": "connect"}, {"protocols": (("other", b""),)}, {"protocols": ()}]
)
def test_member_that_shares_no_protocol_is_refused(driver, wrong) -> None:
    driver.stable(None)
    assert driver.join("odd", **wrong).error is ErrorCode.inconsistent_group_protocol
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize("wrong", [{"protocol_type": ""}, {"protocols": ()}])
def test_empty_group_wants_a_type_and_a_protocol(driver, wrong) -> None:
    assert driver.join("odd", **wrong).error is ErrorCode.inconsistent_group_protocol


def test_follower_that_rejoins_unchanged_gets_its_generation_again(driver) -> None:
    _, follower = driver.stable(None, None)
    answer = driver.join("again", follower)
    assert (answer.error, answer.generation_id) == (ErrorCode.none, 1)
    assert driver.group.state is GroupState.STABLE


def test_leader_that_rejoins_rebalances(driver) -> None:
    leader, _ = driver.stable(None, None)
    assert driver.join("again", leader) is None
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_duplicate_join_sends_the_earlier_request_away(driver) -> None:
    leader, _ = driver.stable(None, None)
    driver.join("first", leader)
    driver.join("second", leader)
    assert driver.answers["first"].error is ErrorCode.rebalance_in_progress
    assert "second" not in driver.answers


def test_full_group_refuses_new_members(make_driver) -> None:
    driver = make_driver(max_size=1)
    (member_id,) = driver.stable(None)
    assert driver.join("b").error is ErrorCode.group_max_size_reached
    assert list(driver.group.members.by_id) == [member_id]


def test_static_member_that_restarts_keeps_its_place_without_a_rebalance(driver) -> None:
    leader, follower = driver.stable("i1", "i2")
    answer = driver.join("restarted", instance_id="i2")
    assert (answer.error, answer.generation_id, answer.leader) == (ErrorCode.none, 1, leader)
    assert answer.member_id not in (leader, follower)
    assert driver.stores == 2
    assert driver.sync("sync", answer.member_id, 1).assignment == f"for {follower}".encode()
    assert driver.heartbeat(follower, 1, "i2") is ErrorCode.fenced_instance_id
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize("skips", [False, True])
def test_static_leader_that_restarts_does_not_assign_again(driver, skips) -> None:
    leader, _ = driver.stable("i1", "i2")
    answer = driver.join("restarted", instance_id="i1", skips=skips)
    assert answer.generation_id == 1
    if skips:
        assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
        assert len(answer.members) == 2
    else:
        assert (answer.leader, answer.skip_assignment, answer.members) == (leader, False, ())


def test_static_member_replaced_while_it_waits_is_fenced(driver) -> None:
    driver.join("old", instance_id="i1")
    driver.join("new", instance_id="i1")
    assert driver.answers["old"].error is ErrorCode.fenced_instance_id
    driver.pass_time(2 * DELAY_MS)
    assert driver.answers["new"].error is ErrorCode.none
    assert len(driver.group.members) == 1


def test_static_member_that_changes_the_protocol_rebalances(driver) -> None:
    driver.stable("i1")
    answer = driver.join("restarted", instance_id="i1", protocols=(("range", b""), ("z", b"")))
    assert answer.generation_id == 1
    driver.join("other", instance_id="i1", protocols=(("z", b""), ("range", b"")))
    assert driver.group.state is GroupState.PREPARING_REBALANCE or driver.group.generation_id == 2


@pytest.mark.parametrize(
    ("member", "generation", "expected"),
    [
        ("id-1", 1, ErrorCode.none),
        ("id-1", 0, ErrorCode.illegal_generation),
        ("id-9", 1, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),
    ],
)
def test_offset_commit_in_a_stable_group(driver, member, generation, expected) -> None:
    driver.stable(None)
    error = offset_commit_error(driver.group, member, None, generation, is_transactional=False)
    assert error is expected


def test_offset_commit_without_membership_needs_an_empty_group(driver) -> None:
    def error(generation: int = -1, *, is_transactional: bool = False) -> ErrorCode:
        return offset_commit_error(
            driver.group, "", None, generation, is_transactional=is_transactional
        )

    assert error() is ErrorCode.none
    assert error(generation=1) is ErrorCode.unknown_member_id
    driver.stable(None)
    assert error() is ErrorCode.unknown_member_id
    assert error(is_transactional=True) is ErrorCode.none


def test_offset_commit_before_the_assignment_waits_for_the_rebalance(driver) -> None:
    driver.join("a")
    driver.pass_time(DELAY_MS)
    error = offset_commit_error(driver.group, "id-1", None, 1, is_transactional=False)
    assert error is ErrorCode.rebalance_in_progress


def test_dead_group_sends_everybody_away(driver) -> None:
    driver.join("a")
    driver.take(driver.group.die())
    assert driver.answers["a"].error is ErrorCode.unknown_member_id
    assert driver.join("b").error is ErrorCode.coordinator_not_available
    assert driver.heartbeat("id-1", 1) is ErrorCode.coordinator_not_available
    assert driver.group.next_deadline_ms() is None


def test_pending_member_id_is_unknown_for_a_static_member(driver) -> None:
    (static,) = driver.stable("i1")
    pending = driver.join("pending", known=True).member_id
    assert driver.join("odd", pending, instance_id="i1").error is ErrorCode.fenced_instance_id
    assert list(driver.group.members.by_id) == [static]
