"""The consumer group's state machine, rule by rule (KIP-848; Kafka: GroupMetadataManager)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import consumer_replay
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.consumer_member import ConsumerMember, MemberState
from isotherm.broker.coordinators.groups.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.broker.coordinators.groups.topic_selection import Selection, Version, Viewer
from isotherm.broker.metadata.access.principal import ANONYMOUS

SESSION_MS = 45_000
REBALANCE_MS = 60_000
TOPIC = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)


def catalog(version: int = 1, **partition_counts: int) -> TopicCatalog:
    ids = {"t": TOPIC, "other": OTHER}
    topics = {
        name: SimpleNamespace(name=name, topic_id=ids[name], partitions=range(count))
        for name, count in (partition_counts or {"t": 4}).items()
    }
    image: Any = SimpleNamespace(
        end_offset=version,
        topics_by_name=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
    )
    return TopicCatalog(image)


def selected(pattern: str, *names: str) -> dict[str, Selection]:
    """The selection of member `a`."""
    viewer: Any = Viewer(ANONYMOUS, "127.0.0.1", SimpleNamespace())
    return {"a": Selection(pattern, frozenset(names), viewer, Version(1, 0))}


class Driver:
    """Drives a consumer group. A request that is refused leaves the group as it was."""

    def __init__(self, max_size: int = 10) -> None:
        settings = ConsumerGroupSettings(SESSION_MS, 5000, max_size)
        self.group = ConsumerGroup("g", settings)
        self.catalog = catalog()
        self.now_ms = 1000
        self.records: list[Any] = []

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        sent = MemberHeartbeat(member_id, epoch, **fields)
        kept_alive, changed = self.group.copy(), self.group.copy()
        kept = kept_alive.keep_alive(sent, self.catalog, self.now_ms)
        result, records = changed.heartbeat(sent, self.catalog, self.now_ms, 77)
        if kept is not None:
            # The short way has the same effects.
            assert (kept, []) == (result, records)
            assert vars(kept_alive) == vars(changed)
        self.group = changed
        self.records = records
        return result

    def join(self, member_id: str, **fields: Any) -> Any:
        defaults = {"topic_names": frozenset({"t"}), "rebalance_timeout_ms": REBALANCE_MS}
        return self.beat(member_id, 0, **{**defaults, "owned": frozenset(), **fields})

    def error(self, member_id: str, epoch: int, **fields: Any) -> ErrorCode:
        with pytest.raises(MemberRejectedError) as refused:
            self.beat(member_id, epoch, **fields)
        return refused.value.code

    def join_error(self, member_id: str, **fields: Any) -> ErrorCode:
        with pytest.raises(MemberRejectedError) as refused:
            self.join(member_id, **fields)
        return refused.value.code


@pytest.fixture
def driver() -> Driver:
    return Driver()


def parts(*indexes: int, topic: uuid.UUID = TOPIC) -> frozenset[tuple[uuid.UUID, int]]:
    return frozenset((topic, index) for index in indexes)


def test_first_member_gets_everything_at_once(driver) -> None:
    result = driver.join("a")
    assert (result.epoch, result.assigned) == (1, parts(0, 1, 2, 3))
    assert driver.group.shown_state == "Stable"
    assert [type(record.key) for record in driver.records] == [
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupCurrentMemberAssignmentKey,
    ]


def test_work_for_a_partition_is_the_same_however_many_a_member_has(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    unions: list[None] = []
    compared: list[None] = []
    held = ConsumerMember.held.fget
    monkeypatch.setattr(
        ConsumerMember, "held", property(lambda m: (unions.append(None), held(m))[1])
    )
    less = uuid.UUID.__lt__
    monkeypatch.setattr(uuid.UUID, "__lt__", lambda a, b: (compared.append(None), less(a, b))[1])
    driver.catalog = catalog(t=1000, other=1000)
    names = frozenset({"t", "other"})
    driver.join("a", topic_names=names)
    driver.join("b", topic_names=names)
    kept = driver.beat("a", 1).assigned
    driver.beat("a", 1, owned=kept)
    driver.beat("b", 2, owned=frozenset())
    driver.group.leave("b", None, -1)
    assert len(driver.beat("a", 2, owned=kept).assigned) == 2000
    # A union is as long as the assignment, so there is none for each partition.
    assert len(unions) < 100
    # UUIDs compare in Python.
    assert not compared


def test_heartbeat_without_news_writes_and_tells_nothing(driver) -> None:
    driver.join("a")
    result = driver.beat("a", 1)
    assert (result.epoch, result.assigned, driver.records) == (1, None, [])


def test_full_heartbeat_gets_the_whole_assignment(driver) -> None:
    driver.join("a")
    owned = parts(0, 1, 2, 3)
    result = driver.beat(
        "a", 1, topic_names=frozenset({"t"}), rebalance_timeout_ms=REBALANCE_MS, owned=owned
    )
    assert (result.assigned, driver.records) == (owned, [])


def test_partitions_move_only_once_their_holder_has_given_them_up(driver) -> None:
    driver.join("a")
    joined = driver.join("b")
    assert (joined.epoch, joined.assigned) == (2, frozenset())
    assert driver.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS

    response = driver.beat("a", 1)
    assert (response.epoch, len(response.assigned)) == (1, 2)
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert driver.group.shown_state == "Reconciling"
    assert driver.beat("b", 2).assigned is None

    # While it still owns them, the member stays at its epoch. Once it has revoked them, it moves
    # on.
    assert driver.beat("a", 1, owned=parts(0, 1, 2, 3)).epoch == 1
    assert driver.beat("a", 1, owned=response.assigned).epoch == 2
    assert driver.group.shown_state == "Reconciling", "b has yet to get them"
    got = driver.beat("b", 2)
    assert got.assigned == parts(0, 1, 2, 3) - response.assigned
    assert driver.group.shown_state == "Stable"


def test_leaving_member_frees_its_partitions_for_the_others(driver) -> None:
    driver.join("a")
    driver.join("b")
    first = driver.beat("a", 1).assigned
    driver.beat("a", 1, owned=first)
    driver.beat("b", 2)
    changed = driver.group.copy()
    result, records = changed.leave("b", None, -1)
    driver.group = changed
    assert result.epoch == -1
    assert [record.value for record in records[:3]] == [None, None, None]
    response = driver.beat("a", 2)
    assert (response.epoch, response.assigned) == (3, parts(0, 1, 2, 3))


def test_silent_member_is_removed_after_the_session_timeout(driver) -> None:
    driver.join("a")
    driver.now_ms += SESSION_MS - 1
    driver.join("b")
    assert driver.group.next_deadline_ms() == 1000 + SESSION_MS
    assert driver.group.expire(1000 + SESSION_MS - 1) == []
    assert driver.group.expire(1000 + SESSION_MS)
    assert list(driver.group.members) == ["b"]


def test_member_that_does_not_revoke_in_time_is_removed(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a", 1)
    deadline_ms = driver.now_ms + REBALANCE_MS
    driver.now_ms = deadline_ms - 1
    driver.beat("a", 1, owned=parts(0, 1, 2, 3))
    driver.beat("b", 2)
    driver.group.expire(deadline_ms)
    assert list(driver.group.members) == ["b"]
    assert driver.error("a", 1) is ErrorCode.unknown_member_id


def test_epochs_that_are_not_current_are_fenced(driver) -> None:
    driver.join("a")
    assert driver.error("a", 2) is ErrorCode.fenced_member_epoch
    driver.group.group_epoch = 5
    driver.beat("a", 1)
    assert driver.error("a", 1) is ErrorCode.fenced_member_epoch
    # The member missed our last answer, and owns nothing that is not assigned to it.
    assert driver.beat("a", 1, owned=parts(0, 1)).epoch == 5
    assert driver.error("a", 1, owned=parts(0, 9)) is ErrorCode.fenced_member_epoch


def test_unknown_member_must_join(driver) -> None:
    driver.join("a")
    assert driver.error("b", 1) is ErrorCode.unknown_member_id


def test_full_group_takes_no_other_member() -> None:
    driver = Driver(max_size=1)
    driver.join("a")
    assert driver.join_error("b") is ErrorCode.group_max_size_reached
    assert driver.join("a").epoch == 1


def test_refused_request_changes_nothing(driver) -> None:
    driver.join("a")
    before = vars(driver.group.copy()) | {"_settings": None}
    assert driver.error("a", 7, topic_names=frozenset()) is ErrorCode.fenced_member_epoch
    assert vars(driver.group.copy()) | {"_settings": None} == before


def test_changed_subscription_moves_the_member_to_a_new_epoch(driver) -> None:
    driver.catalog = catalog(t=2, other=1)
    driver.join("a")
    result = driver.beat("a", 1, topic_names=frozenset({"other"}), owned=parts(0, 1))
    assert (result.epoch, result.assigned) == (1, frozenset())
    result = driver.beat("a", 1, owned=frozenset())
    assert (result.epoch, result.assigned) == (2, parts(0, topic=OTHER))


def test_new_partitions_of_a_topic_are_given_out(driver) -> None:
    driver.catalog = catalog(1, t=1)
    assert driver.join("a").assigned == parts(0)
    driver.catalog = catalog(2, t=3)
    result = driver.beat("a", 1)
    assert (result.epoch, result.assigned) == (2, parts(0, 1, 2))


def test_unrelated_change_of_metadata_changes_nothing(driver) -> None:
    driver.join("a")
    driver.catalog = catalog(2, t=4, other=3)
    assert driver.beat("a", 1).epoch == 1
    assert driver.records == []


def test_pattern_follows_the_topics_that_it_selects(driver) -> None:
    driver.catalog = catalog(1, t=1)
    pattern = "t|oth.*"
    joined = driver.join(
        "a", topic_names=None, topic_regex=pattern, selections=selected(pattern, "t")
    )
    assert joined.assigned == parts(0)
    driver.catalog = catalog(2, t=1, other=1)
    assert driver.beat("a", 1).assigned is None, "the selection is the same"
    response = driver.beat("a", 1, selections=selected(pattern, "t", "other"))
    assert response.assigned == parts(0) | parts(0, topic=OTHER)
    assert driver.group.may_read("other")
    # The right to see a topic has been taken away.
    response = driver.beat("a", 2, selections=selected(pattern, "other"), owned=parts(0))
    assert response.assigned == parts(0, topic=OTHER)
    # An empty pattern removes the pattern.
    response = driver.beat("a", 2, topic_names=frozenset({"t"}), topic_regex="", owned=frozenset())
    assert response.assigned == parts(0)


def test_selection_of_another_pattern_than_the_members_is_not_taken(driver) -> None:
    joined = driver.join("a", topic_names=None, topic_regex="t", selections=selected("x", "t"))
    assert joined.assigned == frozenset()
    assert driver.group.selection_of(driver.group.members["a"]).names == frozenset()


def read_back(driver: Driver) -> None:
    """A new broker leads the group: it has the log's records, and no selection."""
    group = ConsumerGroup("g", driver.group.settings)
    for record in driver.group.all_records(0):
        consumer_replay.replay(group, record)
    group.resume(driver.now_ms)
    driver.group = group


def test_pattern_moves_nothing_after_a_restart_if_it_selects_the_same(driver) -> None:
    driver.join("a", topic_names=None, topic_regex="t", selections=selected("t", "t"))
    driver.beat("a", 1)
    read_back(driver)
    assert driver.beat("a", 1, selections=selected("t", "t")).assigned is None
    assert (driver.group.group_epoch, driver.records) == (1, [])


def test_topic_that_a_principal_may_no_longer_see_after_a_restart_is_taken_away(driver) -> None:
    driver.join("a", topic_names=None, topic_regex="t", selections=selected("t", "t"))
    driver.beat("a", 1)
    read_back(driver)
    result = driver.beat("a", 1, selections=selected("t"), owned=frozenset())
    assert result.assigned == frozenset()


def test_member_whose_pattern_is_not_resolved_yet_keeps_its_topics(driver) -> None:
    """Another member's change assigns the partitions anew.

    Then its own heartbeat says what it selects.
    """
    driver.catalog = catalog(1, t=1, other=1)
    driver.join("a", topic_names=None, topic_regex="t", selections=selected("t", "t"))
    driver.beat("a", 1)
    read_back(driver)
    driver.join("b", topic_names=frozenset({"other"}))
    assert driver.group.target["a"] == parts(0)
    assert driver.group.may_read("any"), "the pattern may select any topic"
    driver.beat("a", 1, selections=selected("t", "t", "other"))
    assert driver.group.group_epoch == 3, "it selects more than was assigned by"


def test_static_member_that_comes_back_takes_over_its_partitions(driver) -> None:
    driver.join("a", instance_id="i1")
    changed = driver.group.copy()
    result, _ = changed.leave("a", "i1", -2)
    driver.group = changed
    assert result.epoch == -2
    back = driver.join("a2", instance_id="i1")
    assert (back.epoch, back.assigned) == (1, parts(0, 1, 2, 3))
    assert list(driver.group.members) == ["a2"]
    assert set(driver.group.owners.values()) == {"a2"}


def test_instance_id_in_use_is_not_released(driver) -> None:
    driver.join("a", instance_id="i1")
    for member_id in ("a", "b"):
        code = driver.join_error(member_id, instance_id="i1")
        assert code is ErrorCode.unreleased_instance_id
    changed = driver.group.copy()
    changed.leave("a", "i1", -2)
    driver.group = changed
    assert driver.join("a", instance_id="i1").assigned == parts(0, 1, 2, 3)
    assert driver.error("b", 1, instance_id="i1") is ErrorCode.fenced_instance_id
    assert driver.error("b", 1, instance_id="i2") is ErrorCode.unknown_member_id


def test_static_member_that_stays_away_is_removed(driver) -> None:
    driver.join("a", instance_id="i1")
    driver.group.leave("a", "i1", -2)
    driver.group.expire(driver.now_ms + SESSION_MS)
    assert driver.group.is_empty


def test_partition_keeps_the_epoch_at_which_its_member_got_it(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a", 1, owned=parts(0, 1, 2, 3))
    revoking = driver.group.members["a"]
    assert revoking.pending_revocation
    assert set(revoking.assignment_epochs.values()) == {1}
    assert revoking.assignment_epochs.keys() == revoking.held
    driver.beat("a", 1, owned=revoking.assigned)
    driver.beat("b", 2, owned=frozenset())
    first, second = driver.group.members["a"], driver.group.members["b"]
    assert first.assignment_epochs == dict.fromkeys(first.assigned, 1)
    assert second.assignment_epochs == dict.fromkeys(second.assigned, 2)
    assert (first.epoch, len(first.assigned), len(second.assigned)) == (2, 2, 2)


def test_group_goes_by_the_assignor_that_most_members_want(driver) -> None:
    assert driver.group.assignor == "uniform"
    driver.join("a", server_assignor="range")
    driver.join("b", server_assignor="range")
    driver.join("c", server_assignor="uniform")
    assert driver.group.assignor == "range"


FULL = {
    "topic_names": frozenset({"t"}), "rebalance_timeout_ms": REBALANCE_MS, "owned": frozenset()
}  # fmt: skip


@pytest.mark.parametrize(
    ("epoch", "changes", "is_full"),
    [
        (1, {}, True),
        (0, {"topic_names": None, "rebalance_timeout_ms": -1, "owned": None}, True),
        (1, {"topic_names": None, "topic_regex": "t"}, True),
        (1, {"topic_names": None}, False),
        (1, {"rebalance_timeout_ms": -1}, False),
        (1, {"owned": None}, False),
    ],
)
def test_heartbeat_with_all_its_fields_is_full(epoch, changes, is_full) -> None:
    """Kafka: isFullHeartbeat. Only such a one is always answered with the assignment."""
    assert MemberHeartbeat("a", epoch, **(FULL | changes)).is_full is is_full


def test_heartbeat_changes_the_fields_that_it_has(driver) -> None:
    driver.join("a", rack_id="r", server_assignor="range", client_id="c", client_host="/h")
    driver.beat("a", 1, rebalance_timeout_ms=7, client_id="d", client_host="/i")
    member = driver.group.members["a"]
    assert (member.rack_id, member.server_assignor, member.topic_names) == ("r", "range", {"t"})
    assert (member.rebalance_timeout_ms, member.client_id, member.client_host) == (7, "d", "/i")
    assert [type(record.key) for record in driver.records] == [ConsumerGroupMemberMetadataKey]
    driver.beat("a", 1, rack_id="s", server_assignor="uniform", client_id="d", client_host="/i")
    member = driver.group.members["a"]
    assert (member.rack_id, member.server_assignor) == ("s", "uniform")
    assert member.rebalance_timeout_ms == 7


def test_pattern_that_is_not_resolved_yet_may_match_any_topic(driver) -> None:
    selections = selected("t.*", "t")
    driver.join("a", topic_names=None, topic_regex="t.*", selections=selections)
    assert (driver.group.may_read("t"), driver.group.may_read("other")) == (True, False)
    read_back(driver)
    assert driver.group.may_read("other")


def test_static_members_successor_is_written_after_the_tombstones(driver) -> None:
    driver.join("a", instance_id="i1")
    changed = driver.group.copy()
    changed.leave("a", "i1", -2)
    driver.group = changed
    driver.join("a2", instance_id="i1")
    kinds = [(record.key.member_id, record.value is None) for record in driver.records[:5]]
    assert kinds == [("a", True)] * 3 + [("a2", False)] * 2
    assert list(driver.group.target) == ["a2"]
    assert set(driver.group.session_deadlines) == {"a2"}


def test_group_that_is_read_back_waits_anew(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a", 1)
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    other = ConsumerGroup("g", driver.group.settings)
    for record in driver.group.all_records(0):
        consumer_replay.replay(other, record)
    other.resume(500)
    assert other.session_deadlines == {"a": 500 + SESSION_MS, "b": 500 + SESSION_MS}
    assert other.rebalance_deadlines == {"a": 500 + REBALANCE_MS}
    assert other.owners == driver.group.owners


def test_group_assigns_while_its_target_is_of_an_earlier_epoch(driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.group.remove(["b"])
    assert driver.group.shown_state == "Assigning"
    driver.beat("a", 1)
    assert driver.group.shown_state == "Stable"


def test_epochs_are_equal_numbers_not_the_same_objects(driver) -> None:
    driver.join("a")
    driver.group.members["a"] = replace(driver.group.members["a"], epoch=int("1000"))
    driver.group.group_epoch, driver.group.target_epoch = int("1000"), int("1000")
    assert driver.group.shown_state == "Stable"
    assert driver.beat("a", int("1000")).epoch == 1000
    assert driver.records == []


def test_members_that_are_removed_together_raise_the_epoch_once(driver) -> None:
    for member_id in "abc":
        driver.join(member_id)
    epoch = driver.group.group_epoch
    records = driver.group.remove(["a", "c"])
    assert (list(driver.group.members), driver.group.group_epoch) == (["b"], epoch + 1)
    assert [record.value is None for record in records] == [True] * 6 + [False]
    assert set(driver.group.target) == {"b"}


def test_hash_of_the_metadata_changes_with_topics_and_partitions() -> None:
    before = catalog(1, t=2).metadata_hash(frozenset({"t", "other"}))
    assert catalog(2, t=2).metadata_hash(frozenset({"other", "t", "none"})) == before
    assert catalog(1, t=3).metadata_hash(frozenset({"t", "other"})) != before
    assert catalog(1, t=2, other=1).metadata_hash(frozenset({"t", "other"})) != before
    assert catalog(1, t=2, other=1).metadata_hash(frozenset({"t"})) == before
    assert -(2**63) <= before < 2**63
    again = catalog(1, t=2)
    again.find("t").topic_id = uuid.UUID(int=9)
    assert again.metadata_hash(frozenset({"t"})) != before, (
        "the topic was deleted and created again"
    )


def leave_for_a_while(driver: Driver, member_id: str, instance_id: str) -> None:
    changed = driver.group.copy()
    _, driver.records = changed.leave(member_id, instance_id, -2)
    driver.group = changed


def test_new_pattern_alone_moves_the_member_to_a_new_epoch(driver) -> None:
    driver.catalog = catalog(1, t=1, other=1)
    driver.join("a", topic_names=None, topic_regex="t", selections=selected("t", "t"))
    selections = selected("other", "other")
    result = driver.beat("a", 1, topic_regex="other", owned=frozenset(), selections=selections)
    assert (result.epoch, result.assigned) == (2, parts(0, topic=OTHER))
    assert driver.beat("a", 2, topic_regex="other").epoch == 2


def test_static_member_that_has_left_is_fenced_at_each_earlier_epoch(driver) -> None:
    driver.join("a", instance_id="i1")
    driver.group.group_epoch = 5
    assert driver.beat("a", 1, instance_id="i1").epoch == 5
    leave_for_a_while(driver, "a", "i1")
    (record,) = driver.records
    assert record.value.member_epoch == -2
    for epoch in (1, 5):
        code = driver.error("a", epoch, instance_id="i1", owned=frozenset())
        assert code is ErrorCode.fenced_member_epoch


def test_static_member_that_leaves_for_a_while_gives_up_what_it_was_to_revoke(driver) -> None:
    driver.join("a", instance_id="i1")
    driver.join("b")
    kept = driver.beat("a", 1, instance_id="i1").assigned
    assert driver.group.members["a"].pending_revocation
    leave_for_a_while(driver, "a", "i1")
    assert driver.beat("b", 2).assigned == parts(0, 1, 2, 3) - kept
    assert driver.group.members["a"].assigned == kept
    # It has its session timeout to come back, not the rest of its time to revoke.
    assert driver.group.rebalance_deadlines == {}
    assert set(driver.group.session_deadlines) == {"a", "b"}


def test_only_targets_that_change_are_written(driver) -> None:
    driver.catalog = catalog(t=2, other=1)
    driver.join("a")
    driver.join("b", topic_names=frozenset({"other"}))
    targets = [
        record.key.member_id
        for record in driver.records
        if isinstance(record.key, ConsumerGroupTargetAssignmentMemberKey)
    ]
    assert targets == ["b"]
    assert driver.group.target == {"a": parts(0, 1), "b": parts(0, topic=OTHER)}


def test_member_that_unsubscribes_while_it_revokes_must_revoke_that_topic_too(driver) -> None:
    """Kafka: CurrentAssignmentBuilder.updateCurrentAssignment."""
    driver.catalog = catalog(t=4, other=1)
    everything = parts(0, 1, 2, 3) | parts(0, topic=OTHER)
    driver.join("a", topic_names=frozenset({"t", "other"}))
    driver.join("b")
    kept = driver.beat("a", 1, owned=everything).assigned
    assert parts(0, topic=OTHER) <= kept
    told = driver.beat("a", 1, topic_names=frozenset({"t"}), owned=everything)
    assert (told.epoch, told.assigned) == (1, kept - parts(0, topic=OTHER))
    member = driver.group.members["a"]
    assert member.state is MemberState.UNREVOKED_PARTITIONS
    assert member.held == everything
    assert member.assignment_epochs == dict.fromkeys(everything, 1)
    assert driver.beat("a", 1, owned=everything).assigned is None
    assert driver.beat("a", 1, owned=told.assigned).epoch == driver.group.group_epoch


def test_member_in_a_state_of_a_newer_version_rejoins_from_scratch(driver) -> None:
    """Kafka: CurrentAssignmentBuilder, MemberState.UNKNOWN. A broker was downgraded."""
    driver.join("a")
    driver.group.members["a"] = replace(driver.group.members["a"], state=MemberState(3))
    assert driver.group.members["a"].state == 127
    assert driver.group.shown_state == "Reconciling"
    assert driver.error("a", 1) is ErrorCode.fenced_member_epoch
    assert driver.error("a", 1, owned=parts(0)) is ErrorCode.fenced_member_epoch
    assert driver.join("a").assigned == parts(0, 1, 2, 3)
    assert driver.group.shown_state == "Stable"


def test_time_to_revoke_ends_with_the_revocation(driver) -> None:
    driver.join("a")
    driver.join("b")
    kept = driver.beat("a", 1).assigned
    assert driver.group.rebalance_deadlines == {"a": driver.now_ms + REBALANCE_MS}
    driver.now_ms += 1000
    driver.beat("a", 1, owned=parts(0, 1, 2, 3))
    assert driver.group.rebalance_deadlines == {"a": driver.now_ms - 1000 + REBALANCE_MS}
    driver.beat("a", 1, owned=kept)
    assert driver.group.rebalance_deadlines == {}
    assert driver.group.session_deadlines["a"] == driver.now_ms + SESSION_MS


def test_heartbeat_at_the_previous_epoch_may_own_all_that_is_assigned(driver) -> None:
    driver.join("a")
    driver.group.group_epoch = 2
    driver.beat("a", 1)
    assert driver.beat("a", 1, owned=parts(0, 1, 2, 3)).epoch == 2
