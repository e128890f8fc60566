"""The share group's state machine, rule by rule (KIP-932; Kafka: GroupMetadataManager).

Random histories are compared with Kafka's in `tests/oracle/test_share_group_histories.py`.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import share_group_records
from isotherm.broker.coordinators.groups.group_records import (
    GroupRecord,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_group import ShareGroup, ShareGroupSettings
from isotherm.broker.coordinators.groups.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
    decode_share_record,
)
from isotherm.broker.coordinators.groups.share_member import ShareHeartbeat, TopicPartitions
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog

SESSION_MS, ASSIGNMENT_MS, RETRY_MS = 45_000, 1_000, 30_000
SETTINGS = ShareGroupSettings(SESSION_MS, 5_000, ASSIGNMENT_MS, RETRY_MS, 3)
TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
IDS = {"t": TOPIC, "other": OTHER}


def catalog(version: int = 1, **partition_counts: int) -> TopicCatalog:
    topics = {
        name: SimpleNamespace(name=name, topic_id=IDS[name], partitions=range(count))
        for name, count in (partition_counts or {"t": 4}).items()
    }
    image: Any = SimpleNamespace(
        end_offset=version,
        topics_by_name=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
    )
    return TopicCatalog(image)


class Driver:
    """Drives a share group. A request that is refused leaves the group as it was."""

    def __init__(self) -> None:
        self.group = ShareGroup("g", SETTINGS)
        self.catalog = catalog()
        self.now_ms = 1_000
        self.records: list[GroupRecord] = []
        self.log: list[GroupRecord] = []

    def beat(self, member_id: str, epoch: int, *names: str) -> Any:
        topic_names = frozenset(names) or None
        sent = ShareHeartbeat(member_id, epoch, None, "client", "/host", topic_names)
        kept_alive, changed = self.group.copy(), self.group.copy()
        kept = kept_alive.keep_alive(sent, self.catalog, self.now_ms)
        result, records = changed.heartbeat(sent, self.catalog, self.now_ms, self.now_ms)
        if kept is not None:
            # The short way has the same effects.
            assert (kept, []) == (result, records)
            assert vars(kept_alive) == vars(changed)
        self._take(changed, records)
        return result

    def join(self, member_id: str, *names: str) -> Any:
        """With the states of its partitions initialized at once."""
        result = self.beat(member_id, 0, *(names or ("t",)))
        self.initialize(result.uninitialized)
        return self.beat(member_id, result.epoch)

    def initialize(self, partitions: dict[uuid.UUID, TopicPartitions]) -> None:
        of_topics = {topic_id: topic.partitions for topic_id, topic in partitions.items()}
        changed = self.group.copy()
        self._take(changed, changed.initialized(of_topics, self.catalog, self.now_ms))

    def change(self, method: str, *arguments: Any) -> None:
        changed = self.group.copy()
        self._take(changed, getattr(changed, method)(*arguments, self.catalog, self.now_ms))

    def begin(self, method: str, *arguments: Any) -> Any:
        """The partitions that a change of states is about."""
        changed = self.group.copy()
        found, records = getattr(changed, method)(*arguments, self.catalog, self.now_ms)
        self._take(changed, records)
        return found

    def _take(self, changed: ShareGroup, records: list[GroupRecord]) -> None:
        self.group, self.records = changed, records
        self.log += records

    def error(self, member_id: str, epoch: int) -> ErrorCode:
        with pytest.raises(MemberRejectedError) as refused:
            self.beat(member_id, epoch)
        return refused.value.code

    def epoch_of(self, member_id: str) -> int:
        return self.group.members[member_id].epoch

    def keys(self) -> list[type]:
        return [type(record.key) for record in self.records]


@pytest.fixture
def driver() -> Driver:
    return Driver()


def partitions(*numbers: int, topic: uuid.UUID = TOPIC) -> frozenset[tuple[uuid.UUID, int]]:
    return frozenset((topic, number) for number in numbers)


def test_a_first_member_gets_partitions_once_their_states_are_initialized(driver: Driver) -> None:
    assert driver.group.shown_state == "Empty"
    result = driver.beat("a", 0, "t")
    assert (result.epoch, result.assigned, result.group_epoch) == (2, frozenset(), 2)
    assert result.uninitialized == {TOPIC: TopicPartitions("t", frozenset(range(4)))}
    assert driver.keys() == [
        ShareGroupMemberMetadataKey,
        ShareGroupMetadataKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupStatePartitionMetadataKey,
    ]
    assert not driver.beat("a", 2).uninitialized  # They are being initialized.
    driver.initialize(result.uninitialized)
    driver.now_ms += ASSIGNMENT_MS
    result = driver.beat("a", 2)
    assert (result.epoch, result.assigned) == (3, partitions(0, 1, 2, 3))
    assert driver.group.shown_state == "Stable"


def test_a_heartbeat_without_news_writes_nothing(driver: Driver) -> None:
    driver.join("a")
    driver.now_ms += ASSIGNMENT_MS
    epoch = driver.beat("a", driver.epoch_of("a")).epoch
    for names in ((), ("t",)):
        result = driver.beat("a", epoch, *names)
        assert driver.records == []
        assert result.assigned == (partitions(0, 1, 2, 3) if names else None)
    changed = driver.group.copy()
    assert changed.keep_alive(
        ShareHeartbeat("a", epoch, None, "client", "/host"), driver.catalog, driver.now_ms
    )


def test_an_assignment_waits_for_the_interval_after_the_last(driver: Driver) -> None:
    driver.join("a")
    assert (driver.group.group_epoch, driver.group.target_epoch) == (3, 2)
    driver.now_ms += ASSIGNMENT_MS - 1
    assert driver.beat("a", 2).epoch == 2
    driver.now_ms += 1
    assert driver.beat("a", 2).epoch == 3


def test_a_zero_interval_assigns_at_once(driver: Driver) -> None:
    driver.group.settings = SETTINGS._replace(assignment_interval_ms=0)
    assert driver.join("a").assigned == partitions(0, 1, 2, 3)


def test_members_share_partitions_evenly(driver: Driver) -> None:
    driver.group.settings = SETTINGS._replace(assignment_interval_ms=0)
    driver.join("a")
    assert len(driver.beat("b", 0, "t").assigned) == 2
    assert len(driver.beat("a", driver.epoch_of("a")).assigned) == 2
    both = driver.group.members["a"].assigned | driver.group.members["b"].assigned
    assert both == partitions(0, 1, 2, 3)


def test_a_changed_subscription_is_filtered_before_the_next_assignment(driver: Driver) -> None:
    driver.catalog = catalog(t=2, other=2)
    driver.group.settings = SETTINGS._replace(assignment_interval_ms=0)
    driver.join("a", "t", "other")
    driver.group.settings = SETTINGS
    result = driver.beat("a", driver.epoch_of("a"), "other")
    assert driver.group.target_epoch < driver.group.group_epoch
    assert result.assigned == partitions(0, 1, topic=OTHER)
    assert driver.group.target["a"] > result.assigned


def test_a_member_may_send_the_epoch_before_but_no_other(driver: Driver) -> None:
    driver.join("a")
    driver.now_ms += ASSIGNMENT_MS
    assert driver.beat("a", 2).epoch == 3
    assert driver.beat("a", 2).epoch == 3
    assert driver.error("a", 1) is ErrorCode.fenced_member_epoch
    assert driver.error("a", 4) is ErrorCode.fenced_member_epoch
    assert driver.error("b", 3) is ErrorCode.unknown_member_id
    assert driver.beat("a", 0, "t").epoch == 3  # It joins again.


def test_a_full_group_refuses_new_members_alone(driver: Driver) -> None:
    for member_id in "abc":
        driver.beat(member_id, 0, "t")
    assert driver.error("d", 0) is ErrorCode.group_max_size_reached
    assert driver.error("d", 4) is ErrorCode.group_max_size_reached
    driver.beat("c", driver.epoch_of("c"))


def test_an_initialization_is_tried_again_after_a_while_and_after_a_failure(driver: Driver) -> None:
    first = driver.beat("a", 0, "t").uninitialized
    driver.now_ms += RETRY_MS - 1
    assert not driver.beat("a", 2).uninitialized
    driver.now_ms += 1
    assert driver.beat("a", 2).uninitialized == first
    driver.change("uninitialized", {TOPIC: [0, 1]})
    states = driver.group.states
    assert states is not None
    assert states.initializing == {TOPIC: TopicPartitions("t", frozenset({2, 3}))}
    again = driver.beat("a", 2).uninitialized
    assert again == {TOPIC: TopicPartitions("t", frozenset({0, 1}))}
    driver.change("uninitialized", {TOPIC: range(4)})
    driver.change("uninitialized", {TOPIC: range(4)})
    assert driver.records == []


def test_new_partitions_are_initialized_and_assigned(driver: Driver) -> None:
    driver.group.settings = SETTINGS._replace(assignment_interval_ms=0)
    driver.join("a")
    epoch = driver.group.group_epoch
    driver.catalog = catalog(2, t=5)
    result = driver.beat("a", driver.epoch_of("a"))
    assert driver.group.group_epoch == epoch + 1  # By the metadata.
    assert result.uninitialized == {TOPIC: TopicPartitions("t", frozenset({4}))}
    driver.initialize(result.uninitialized)
    assert driver.beat("a", result.epoch).assigned == partitions(*range(5))


def test_other_metadata_changes_nothing(driver: Driver) -> None:
    driver.join("a")
    driver.now_ms += ASSIGNMENT_MS
    epoch = driver.beat("a", driver.epoch_of("a")).epoch
    driver.catalog = catalog(2, t=4, other=1)
    driver.beat("a", epoch)
    assert driver.records == []


def test_a_deleted_topic_is_forgotten(driver: Driver) -> None:
    driver.catalog = catalog(t=1, other=1)
    driver.join("a", "t", "other")
    driver.catalog = catalog(2, other=1)
    driver.change("topics_deleted", {TOPIC})
    states = driver.group.states
    assert states is not None
    assert states.initialized == {OTHER: TopicPartitions("other", frozenset({0}))}
    driver.change("topics_deleted", {TOPIC})
    assert driver.records == []


def test_a_topic_that_is_subscribed_to_again_is_deleted_no_more(driver: Driver) -> None:
    record = share_group_records.state_record("g", {}, {}, {TOPIC: "t", OTHER: "other"})
    driver.group.apply(record, 0)
    driver.beat("a", 0, "t")
    value = driver.records[-1].value
    assert [topic.topic_id for topic in value.initializing_topics] == [TOPIC]
    # The catalog lacks the other, so its name is Kafka's for that.
    (deleting,) = value.deleting_topics
    assert (deleting.topic_id, deleting.topic_name) == (OTHER, "<UNKNOWN>")


def test_states_of_a_group_with_members_are_not_altered_or_deleted(driver: Driver) -> None:
    driver.join("a")
    for method, *arguments in (
        ("begin_alteration", {"t": [0]}),
        ("begin_offset_deletion", ["t"]),
        ("begin_deletion",),
    ):
        with pytest.raises(MemberRejectedError) as refused:
            driver.begin(method, *arguments)
        assert refused.value.code is ErrorCode.non_empty_group


def test_an_alteration_initializes_partitions_that_exist(driver: Driver) -> None:
    altered = driver.begin("begin_alteration", {"t": [3, 4], "missing": [0]})
    assert altered == {TOPIC: TopicPartitions("t", frozenset({3}))}
    driver.initialize(altered)
    result = driver.beat("a", 0, "t")
    assert result.uninitialized == {TOPIC: TopicPartitions("t", frozenset({0, 1, 2}))}


def test_a_deletion_that_failed_is_done_again(driver: Driver) -> None:
    assert driver.begin("begin_offset_deletion", ["t"]) == {}
    assert driver.begin("begin_deletion") == {}
    driver.change("end_offset_deletion", [TOPIC])
    assert driver.records == []
    driver.initialize(driver.begin("begin_alteration", {"t": [0, 1]}))
    assert driver.begin("begin_offset_deletion", ["t", "other"]) == {TOPIC: {0, 1}}
    # Which partitions the deletion has reached is not known.
    assert driver.begin("begin_offset_deletion", ["t"]) == {TOPIC: {0, 1, 2, 3}}
    assert driver.begin("begin_deletion") == {TOPIC: {0, 1, 2, 3}}
    states = driver.group.states
    assert states is not None
    assert states[:3] == ({}, {}, {TOPIC})
    driver.change("end_offset_deletion", [TOPIC])
    assert driver.begin("begin_offset_deletion", ["t"]) == {}
    # Of a topic that is gone there is nothing to delete.
    driver.group.apply(share_group_records.state_record("g", {}, {}, {OTHER: "other"}), 0)
    assert driver.begin("begin_deletion") == {}


def test_a_deletion_reaches_what_is_being_initialized(driver: Driver) -> None:
    driver.begin("begin_alteration", {"t": [2]})
    assert driver.begin("begin_deletion") == {TOPIC: {2}}


def test_a_member_that_leaves_has_its_records_deleted(driver: Driver) -> None:
    driver.join("a")
    epoch = driver.group.group_epoch
    driver.change("leave", "a")
    assert driver.keys() == [
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupMemberMetadataKey,
        ShareGroupMetadataKey,
    ]
    assert [record.value is None for record in driver.records] == [True, True, True, False]
    assert driver.group.group_epoch == epoch + 1
    assert (driver.group.members, driver.group.target) == ({}, {})
    assert driver.group.next_deadline_ms() is None
    with pytest.raises(MemberRejectedError):
        driver.change("leave", "a")


def test_members_without_heartbeats_are_removed_one_after_the_other(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    epoch = driver.group.group_epoch
    driver.now_ms += SESSION_MS - 1
    driver.join("c")
    epoch = driver.group.group_epoch
    driver.change("expire")
    assert driver.records == []
    driver.now_ms += 1
    assert driver.group.next_deadline_ms() == driver.now_ms
    driver.change("expire")
    assert driver.group.members.keys() == {"b", "c"}
    assert driver.group.next_deadline_ms() == driver.now_ms
    driver.change("expire")
    assert driver.group.members.keys() == {"c"}
    driver.change("expire")
    assert driver.records == []
    assert driver.group.group_epoch == epoch + 2


def test_a_group_is_the_fold_of_its_records(driver: Driver) -> None:
    driver.catalog = catalog(t=4, other=3)
    driver.join("a", "t")
    driver.join("b", "t", "other")
    driver.now_ms += ASSIGNMENT_MS
    driver.beat("a", driver.epoch_of("a"))
    driver.change("leave", "b")
    driver.beat("c", 0, "other")
    read = ShareGroup("g", SETTINGS)
    for record in driver.log:
        decoded = decode_share_record(encode_key(record.key), encode_value(record.value))
        assert decoded is not None
        read.apply(decoded, driver.now_ms)
    shown = ("group_epoch", "metadata_hash", "target_epoch", "target_ms", "members", "target")
    for name in shown:
        assert getattr(read, name) == getattr(driver.group, name), name
    assert read.states is not None
    assert driver.group.states is not None
    assert read.states[:3] == driver.group.states[:3]
    read.resume(7)
    assert read.session_deadlines == dict.fromkeys(driver.group.members, 7 + SESSION_MS)
    assert read.states.since_ms == 7


def test_a_copy_that_took_long_keeps_later_sessions(driver: Driver) -> None:
    driver.join("a")
    changed = driver.group.copy()
    driver.now_ms += 9
    driver.group.resume(driver.now_ms)
    changed.keep_sessions_of(driver.group)
    assert changed.session_deadlines == driver.group.session_deadlines


def test_a_step_counts_the_things_that_it_goes_through(driver: Driver) -> None:
    beat = ShareHeartbeat("a", 0, topic_names=frozenset({"t", "missing"}))
    assert driver.group.things_of(beat, driver.catalog) == 2 + 4
