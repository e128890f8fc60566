"""What a classic group waits for, and for how long: members that rejoin, sync, or come back.

The rules and times are Kafka's (GroupMetadataManager, ClassicGroup).
"""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_protocol import SyncRequest

E = ErrorCode
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000
# Kafka: CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS.
NEW_MEMBER_MS = 300_000


def beat_for(driver: Any, ms: int, *members: tuple[str, str | None]) -> None:
    """Let time pass while these members, (member id, instance id), send heartbeats."""
    end_ms = driver.now_ms + ms
    while driver.now_ms < end_ms:
        for member_id, instance_id in members:
            driver.heartbeat(member_id, driver.group.generation_id, instance_id)
        driver.pass_time(min(SESSION_MS // 2, end_ms - driver.now_ms))


def two_joined(driver: Any, **fields: Any) -> None:
    """Members id-1, the leader, and id-2 have joined and are to sync."""
    driver.join("a", **fields)
    driver.join("b", **fields)
    driver.pass_time(2 * DELAY_MS)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def members_of(driver: Any) -> list[str]:
    return list(driver.group.members.by_id)


# Static members


def test_rebalance_in_which_no_static_member_rejoins_waits_another_timeout(driver) -> None:
    """A static member stays until its session timeout, and without a member that rejoined the group
    has no leader."""
    first, second, dynamic = driver.stable("i1", "i2", None)
    driver.leave((dynamic, None))
    both = ((first, "i1"), (second, "i2"))
    beat_for(driver, REBALANCE_MS, *both)
    assert (driver.group.state, driver.group.generation_id) == (GroupState.PREPARING_REBALANCE, 1)
    assert members_of(driver) == [first, second]
    assert driver.heartbeat(first, 1, "i1") is E.rebalance_in_progress
    driver.join("again", second, instance_id="i2")
    beat_for(driver, REBALANCE_MS - 1, *both)
    assert "again" not in driver.answers
    driver.pass_time(1)
    answer = driver.answers["again"]
    assert (answer.error, answer.generation_id, answer.leader) == (E.none, 2, second)
    assert [member.member_id for member in answer.members] == [first, second]


def test_group_of_static_members_that_stay_away_becomes_empty(driver) -> None:
    *_, dynamic = driver.stable("i1", "i2", None)
    driver.leave((dynamic, None))
    driver.pass_time(SESSION_MS - 1)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.pass_time(1)
    assert (driver.group.state, driver.group.generation_id) == (GroupState.EMPTY, 2)
    assert (members_of(driver), driver.group.protocol_name, driver.stores) == ([], None, 2)
    assert driver.group.next_deadline_ms() is None


def test_static_member_needs_no_member_id_to_join(driver) -> None:
    assert driver.join("a", instance_id="i1", known=True) is None
    assert members_of(driver) == ["id-1"]


@pytest.mark.parametrize("syncs", [True, False])
def test_static_member_that_restarts_before_its_sync_must_still_sync(driver, syncs) -> None:
    driver.join("a", instance_id="i1")
    driver.join("b", instance_id="i2")
    driver.pass_time(2 * DELAY_MS)
    driver.sync("a syncs", "id-1", 1, id_1=b"x", id_2=b"y")
    restarted = driver.join("restarted", instance_id="i2").member_id
    if syncs:
        assert driver.sync("b syncs", restarted, 1).assignment == b"y"
    beat_for(driver, REBALANCE_MS, ("id-1", "i1"), (restarted, "i2"))
    assert members_of(driver) == (["id-1", restarted] if syncs else ["id-1"])
    expected = GroupState.STABLE if syncs else GroupState.PREPARING_REBALANCE
    assert driver.group.state is expected


def test_restarted_static_member_gets_a_whole_session_timeout(driver) -> None:
    driver.stable("i1", "i2")
    driver.pass_time(SESSION_MS - 1)
    restarted = driver.join("restarted", instance_id="i2").member_id
    driver.pass_time(SESSION_MS - 1)
    assert members_of(driver) == [restarted]
    driver.pass_time(1)
    assert members_of(driver) == []


@pytest.mark.parametrize("preferred", ["a", "z"])
def test_static_member_that_prefers_another_protocol_rebalances_its_group(
    driver, preferred
) -> None:
    driver.stable("i1")
    protocols = ((preferred, b"m"), ("range", b"m"))
    answer = driver.join("restarted", instance_id="i1", protocols=protocols)
    assert (answer.generation_id, answer.protocol_name) == (2, preferred)


# Members that have asked for their id


def test_rebalance_goes_on_without_a_pending_member_that_leaves(driver) -> None:
    (member_id,) = driver.stable(None)
    pending = driver.join("pending", known=True).member_id
    driver.join("again", member_id)
    assert "again" not in driver.answers
    assert driver.leave((pending, None)) == [E.none]
    assert driver.answers["again"].generation_id == 2
    assert driver.join("late", pending, known=True).error is E.unknown_member_id


def test_pending_member_of_a_full_group_is_forgotten(make_driver) -> None:
    driver = make_driver(max_size=1)
    pending = driver.join("pending", known=True).member_id
    (member_id,) = driver.stable(None)
    assert driver.join("back", pending).error is E.group_max_size_reached
    driver.join("again", member_id)
    assert driver.answers["again"].generation_id == 2


def test_last_member_to_rejoin_exceeds_a_lowered_limit(driver) -> None:
    leader, follower = driver.stable(None, None)
    driver.group._settings = driver.group._settings._replace(max_size=1)
    driver.join("leader", leader)
    assert driver.join("follower", follower).error is E.group_max_size_reached
    assert members_of(driver) == [leader]
    assert driver.join("leader again", leader).generation_id == 2
    assert driver.answers["leader"].error is E.rebalance_in_progress


def test_stable_group_above_a_lowered_limit_admits_no_new_member(driver) -> None:
    members = driver.stable(None, None)
    driver.group._settings = driver.group._settings._replace(max_size=1)
    assert driver.join("new").error is E.group_max_size_reached
    assert members_of(driver) == members


def test_limit_that_more_members_than_it_have_joined_admits_none(driver) -> None:
    *joined, last = driver.stable(None, None, None)
    for member_id in joined:
        driver.join(("again", member_id), member_id)
    driver.group._settings = driver.group._settings._replace(max_size=1)
    assert driver.join("last", last).error is E.group_max_size_reached
    assert members_of(driver) == joined


# Joins


def test_initial_delay_is_kept_though_the_rebalance_timeout_is_shorter(driver) -> None:
    driver.join("a", rebalance_ms=1000)
    driver.pass_time(DELAY_MS - 1)
    assert driver.answers == {}
    driver.pass_time(1)
    assert driver.answers["a"].generation_id == 1


def test_rebalance_takes_as_long_as_the_longest_timeout(driver) -> None:
    driver.join("a", rebalance_ms=20_000)
    driver.join("b", rebalance_ms=REBALANCE_MS)
    driver.pass_time(2 * DELAY_MS)
    for member_id in ("id-2", "id-1"):
        driver.sync(("sync", member_id), member_id, 1)
    driver.join("again", "id-1", rebalance_ms=20_000)
    beat_for(driver, REBALANCE_MS - 1, ("id-2", None))
    assert "again" not in driver.answers
    driver.pass_time(1)
    assert driver.answers["again"].generation_id == 2
    assert members_of(driver) == ["id-1"]


def test_member_that_waits_for_a_rebalance_is_not_silent(driver) -> None:
    """Kafka: hasSatisfiedHeartbeat. Its last heartbeat may come after its join."""
    leader, follower = driver.stable(None, None)
    driver.join("again", leader)
    assert driver.heartbeat(leader, 1) is E.rebalance_in_progress
    beat_for(driver, REBALANCE_MS - 1, (follower, None))
    assert members_of(driver) == [leader, follower]
    driver.join("follows", follower)
    assert driver.answers["again"].generation_id == 2


def test_join_that_is_repeated_before_the_assignment_gets_its_generation_again(driver) -> None:
    driver.join("a")
    driver.pass_time(DELAY_MS)
    again = driver.join("again", "id-1")
    assert again == driver.answers["a"]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    changed = driver.join("changed", "id-1", protocols=(("range", b"new"),))
    assert (changed.generation_id, changed.members[0].metadata) == (2, b"new")


def test_new_member_that_waits_too_long_is_sent_away(driver) -> None:
    """It cannot send heartbeats, since it does not know its id yet."""
    driver.join("first", rebalance_ms=2 * NEW_MEMBER_MS)
    driver.pass_time(DELAY_MS)
    driver.sync("syncs", "id-1", 1)
    driver.join("new")
    beat_for(driver, NEW_MEMBER_MS - 1, ("id-1", None))
    assert "new" not in driver.answers
    driver.pass_time(1)
    assert driver.answers["new"].error is E.unknown_member_id
    assert members_of(driver) == ["id-1"]


def test_group_that_was_emptied_takes_another_protocol(driver) -> None:
    (member_id,) = driver.stable(None)
    assert driver.answers["form", 0].protocol_type == "consumer"
    driver.leave((member_id, None))
    driver.join("other", protocol_type="connect", protocols=(("eager", b""),))
    driver.pass_time(DELAY_MS)
    answer = driver.answers["other"]
    assert (answer.protocol_type, answer.protocol_name) == ("connect", "eager")
    assert answer.generation_id == 3
    assert driver.group.may_read("any"), "its members need not be consumers"


# Syncs


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "expected"),
    [
        (None, None, E.none),
        ("consumer", "range", E.none),
        (b"consumer".decode(), b"range".decode(), E.none),  # equal, as from a request
        ("connect", "range", E.inconsistent_group_protocol),
        ("consumer", "sticky", E.inconsistent_group_protocol),
    ],
)
def test_sync_is_of_the_protocol_of_the_join(
    driver, protocol_type, protocol_name, expected
) -> None:
    (member_id,) = driver.stable(None)
    request = SyncRequest(member_id, None, 1, protocol_type, protocol_name, {}, "again")
    driver.take(driver.group.sync(request, driver.now_ms))
    assert driver.answers["again"].error is expected


def test_sync_that_is_repeated_is_answered_and_the_first_one_is_sent_away(driver) -> None:
    two_joined(driver)
    driver.sync("first", "id-2", 1)
    driver.sync("second", "id-2", 1)
    assert driver.answers["first"].error is E.rebalance_in_progress
    driver.sync("leads", "id-1", 1, id_2=b"x")
    assert driver.answers["second"].assignment == b"x"
    assert driver.answers["leads"].assignment == b"", "the leader gave itself nothing"


@pytest.mark.parametrize("syncs", [True, False])
def test_session_of_a_member_goes_on_from_its_own_sync(driver, syncs) -> None:
    """Kafka: propagateAssignment. The leader's sync is no sign of life of another member."""
    two_joined(driver)
    driver.pass_time(SESSION_MS - 2)
    if syncs:
        driver.sync("waits", "id-2", 1)
    driver.sync("leads", "id-1", 1, id_2=b"x")
    driver.pass_time(2)
    assert members_of(driver) == (["id-1", "id-2"] if syncs else ["id-1"])


def test_member_that_waits_for_the_assignment_is_not_silent(driver) -> None:
    two_joined(driver)
    driver.sync("waits", "id-2", 1)
    assert driver.heartbeat("id-1", 1) is E.none
    beat_for(driver, REBALANCE_MS - 1, ("id-1", None))
    assert members_of(driver) == ["id-1", "id-2"]
    driver.sync("leads", "id-1", 1, id_2=b"x")
    assert driver.answers["waits"].assignment == b"x"


def test_leader_that_does_not_assign_in_time_is_removed(driver) -> None:
    two_joined(driver)
    driver.sync("waits", "id-2", 1)
    beat_for(driver, REBALANCE_MS, ("id-1", None))
    assert driver.answers["waits"].error is E.rebalance_in_progress
    assert (members_of(driver), driver.group.members.leader_id) == (["id-2"], "id-2")
    # The session timeout of the other one begins anew.
    driver.pass_time(SESSION_MS - 1)
    assert members_of(driver) == ["id-2"]
    driver.pass_time(1)
    assert driver.group.state is GroupState.EMPTY


def test_group_in_which_all_have_synced_waits_for_no_sync(driver) -> None:
    first, second = driver.stable(None, None)
    beat_for(driver, 2 * REBALANCE_MS, (first, None), (second, None))
    assert (driver.group.state, driver.group.generation_id) == (GroupState.STABLE, 1)


def test_commit_counts_as_a_heartbeat(driver) -> None:
    _, follower = driver.stable(None, None)
    driver.pass_time(SESSION_MS - 1)
    driver.group.offsets_committed(follower, driver.now_ms)
    driver.group.offsets_committed("unknown", driver.now_ms)
    driver.pass_time(1)
    assert members_of(driver) == [follower]


def test_sync_that_is_repeated_in_stable_is_no_heartbeat(driver) -> None:
    """Kafka's GroupMetadataManager.classicGroupSyncToClassicGroup answers it and does nothing
    else.
    """
    _, follower = driver.stable(None, None)
    driver.pass_time(SESSION_MS - 1)
    driver.sync("again", follower, 1)
    driver.pass_time(1)
    assert members_of(driver) == []


def test_dead_group_waits_for_nothing(driver) -> None:
    two_joined(driver)
    driver.sync("waits", "id-2", 1)
    driver.join("pending", known=True)
    driver.take(driver.group.die(E.not_coordinator))
    assert driver.answers["waits"].error is E.not_coordinator
    assert driver.group.next_deadline_ms() is None
    assert driver.group.is_unused
