"""The state machine of a share group (KIP-932). It takes heartbeats and the time, and returns
answers and records.

Invariants
- The group is the fold of its records: `apply` alone changes what the log has of it.
- target_epoch <= group_epoch, and no member's epoch exceeds the target's.
- A partition is assigned only once its state is initialized.
- Methods change the object, apart from those that say so. The coordinator calls them on a `copy`,
  appends the records, and only then replaces the original with the copy. `keep_alive` has no
  records and needs no copy.

The hash of the metadata is Isotherm's own (`TopicCatalog.metadata_hash`).

Source: Kafka ShareGroup, GroupMetadataManager.shareGroupHeartbeat.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import share_group_records
from isotherm.broker.coordinators.groups.assignors import simple
from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, MemberSubscription
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH, NOTHING
from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
)
from isotherm.broker.coordinators.groups.share_member import (
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareMember,
    TopicPartitions,
)
from isotherm.broker.coordinators.groups.state_partitions import (
    NO_STATES,
    StatePartitions,
    Topics,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.types import TimestampMs

# The first member bumps it, so members start at epoch 2, as in Kafka 4.3.
FIRST_EPOCH = 1
_EMPTY, _STABLE = SHARE_GROUP_STATES = ("Empty", "Stable")
_NOTHING_TO_DO: Topics = {}


class ShareGroupSettings(NamedTuple):
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initialize_retry_interval_ms: int
    max_size: int


class ShareGroup:
    group_type = "share"
    protocol_type = "share"

    def __init__(self, group_id: str, settings: ShareGroupSettings) -> None:
        self.group_id = group_id
        self.settings = settings
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        # Wall-clock time. 0 before the first assignment.
        self.target_ms: TimestampMs = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Assignment] = {}
        self.states: StatePartitions | None = None
        # The catalog with which the hash was computed last.
        self.catalog_version = -1
        # The catalog with which a heartbeat has found nothing to do for the group.
        self.settled_version = -1
        self.session_deadlines: dict[str, TimestampMs] = {}

    def copy(self) -> ShareGroup:
        """One level deep is enough: members, assignments and topic sets are immutable."""
        other = ShareGroup(self.group_id, self.settings)
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        return other

    # ---- views

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def shown_state(self) -> str:
        """The state that ShareGroupDescribe and ListGroups return."""
        return _STABLE if self.members else _EMPTY

    @property
    def assignor(self) -> str:
        return simple.NAME

    def subscribed_names(self) -> frozenset[str]:
        return frozenset().union(*(member.topic_names for member in self.members.values()))

    # ---- heartbeats

    def keep_alive(
        self, beat: ShareHeartbeat, catalog: TopicCatalog, now_ms: TimestampMs
    ) -> ShareHeartbeatResult | None:
        """The answer to a heartbeat that changes nothing but its session's deadline.

        None if it may change more; nothing has changed then.
        """
        member = self.members.get(beat.member_id)
        if (
            member is None
            or catalog.version != self.settled_version
            or self.group_epoch != self.target_epoch
            or not beat.epoch == member.epoch == self.target_epoch
            or member.updated(beat) != member
        ):
            return None
        self._reset_session_timeout(member.member_id, now_ms)
        assigned = None if beat.topic_names is None else member.assigned
        return ShareHeartbeatResult(
            member.member_id, member.epoch, assigned, self.group_epoch, _NOTHING_TO_DO
        )

    def things_of(self, beat: ShareHeartbeat, catalog: TopicCatalog) -> int:
        """How many things the step of a heartbeat goes through, by order of magnitude: topics of
        members, and members to which a partition may be assigned. Changes nothing."""
        subscriptions = [
            *(member.topic_names for member in self.members.values()),
            beat.topic_names or frozenset(),
        ]
        names_count = sum(map(len, subscriptions))
        topics = map(catalog.find, frozenset().union(*subscriptions))
        partitions_count = sum(len(topic.partitions) for topic in topics if topic is not None)
        return names_count + partitions_count * (len(self.members) + 1)

    def heartbeat(
        self,
        beat: ShareHeartbeat,
        catalog: TopicCatalog,
        now_ms: TimestampMs,
        wall_ms: TimestampMs,
    ) -> tuple[ShareHeartbeatResult, list[GroupRecord]]:
        """Process a heartbeat. A member joins with epoch 0.

        Raises MemberRejectedError; the caller then discards this object.
        """
        records: list[GroupRecord] = []
        before = self._member_of(beat)
        member = before.updated(beat)
        # Looked at before the change of this member, which bumps the epoch by itself.
        is_bumped = self.target_epoch >= self.group_epoch and self._has_unassigned()
        if member != before:
            self._emit(share_group_records.member_record(self.group_id, member), now_ms, records)
            is_bumped |= member.topic_names != before.topic_names
        if is_bumped or catalog.version != self.catalog_version:
            is_bumped = self._bump_if_changed(catalog, is_bumped, now_ms, records)
        self._assign_if_due(catalog, now_ms, wall_ms, records)
        member = self._reconciled(member, catalog, is_bumped, now_ms, records)
        self._reset_session_timeout(member.member_id, now_ms)
        retry_ms = now_ms - self.settings.initialize_retry_interval_ms
        states = self.known_states
        uninitialized = states.missing(self.subscribed_names(), catalog, retry_ms)
        if uninitialized:
            states = states.with_initializing(uninitialized)
            records += self._changed_states(states, catalog, now_ms)
        elif not records and not states.initializing:
            self.settled_version = catalog.version
        is_full = beat.epoch == JOIN_EPOCH or beat.topic_names is not None
        assigned = member.assigned if is_full or member.assigned != before.assigned else None
        result = ShareHeartbeatResult(
            member.member_id, member.epoch, assigned, self.group_epoch, uninitialized
        )
        return result, records

    def _member_of(self, beat: ShareHeartbeat) -> ShareMember:
        """The member before this heartbeat; a new one if it joins."""
        member = self.members.get(beat.member_id)
        if member is None and len(self.members) >= self.settings.max_size:
            raise MemberRejectedError(
                ErrorCode.group_max_size_reached,
                f"the group is full group_id={self.group_id} size={len(self.members)}",
            )
        if beat.epoch == JOIN_EPOCH:
            return member or ShareMember(member_id=beat.member_id)
        if member is None:
            raise self._unknown_member(beat.member_id)
        # The answer with the current epoch may have been lost.
        if beat.epoch not in (member.epoch, member.previous_epoch):
            raise MemberRejectedError(
                ErrorCode.fenced_member_epoch,
                f"the member epoch is not current member_id={member.member_id}"
                f" epoch={beat.epoch} current={member.epoch}",
            )
        return member

    def _unknown_member(self, member_id: str) -> MemberRejectedError:
        return MemberRejectedError(
            ErrorCode.unknown_member_id, f"no such member member_id={member_id}"
        )

    def _reset_session_timeout(self, member_id: str, now_ms: TimestampMs) -> None:
        self.session_deadlines[member_id] = now_ms + self.settings.session_timeout_ms

    def keep_sessions_of(self, other: ShareGroup) -> None:
        """Take later deadlines of sessions from the group of which this is a changed copy."""
        for member_id, deadline_ms in other.session_deadlines.items():
            if member_id in self.members:
                own_ms = self.session_deadlines.get(member_id, deadline_ms)
                self.session_deadlines[member_id] = max(own_ms, deadline_ms)

    # ---- epochs and assignments

    def _has_unassigned(self) -> bool:
        """Whether members subscribe to a topic of which not just the initialized partitions are
        assigned."""
        initialized = self.known_states.initialized
        if not initialized:
            return False
        assigned: dict[uuid.UUID, set[int]] = {}
        for target in self.target.values():
            for topic_id, partition in target:
                assigned.setdefault(topic_id, set()).add(partition)
        subscribed = self.subscribed_names()
        return any(
            topic.name in subscribed and frozenset(assigned.get(topic_id, ())) != topic.partitions
            for topic_id, topic in initialized.items()
        )

    def _bump_if_changed(
        self,
        catalog: TopicCatalog,
        is_forced: bool,
        now_ms: TimestampMs,
        records: list[GroupRecord],
    ) -> bool:
        """True if the group has a new epoch."""
        self.catalog_version = catalog.version
        metadata_hash = catalog.metadata_hash(self.subscribed_names())
        is_bumped = is_forced or metadata_hash != self.metadata_hash
        if is_bumped:
            record = share_group_records.epoch_record(
                self.group_id, self.group_epoch + 1, metadata_hash
            )
            self._emit(record, now_ms, records)
        return is_bumped

    def _assign_if_due(
        self,
        catalog: TopicCatalog,
        now_ms: TimestampMs,
        wall_ms: TimestampMs,
        records: list[GroupRecord],
    ) -> None:
        """Compute a new target for a new epoch, unless the last one is too young."""
        interval_ms = self.settings.assignment_interval_ms
        is_late = self.target_ms == 0 or interval_ms == 0 or wall_ms >= self.target_ms + interval_ms
        if self.target_epoch >= self.group_epoch or not is_late:
            return
        initialized = self.known_states.initialized
        subscriptions = {
            member_id: MemberSubscription(
                None,
                self._topic_ids(member.topic_names, catalog),
                self.target.get(member_id, NOTHING),
            )
            for member_id, member in self.members.items()
        }
        topics = {
            topic_id: sorted(initialized[topic_id].partitions) if topic_id in initialized else []
            for subscription in subscriptions.values()
            for topic_id in subscription.topics
        }
        target = simple.assign(subscriptions, topics)
        for member_id in subscriptions:
            assigned = target.get(member_id, NOTHING)
            if self.target.get(member_id) != assigned:
                record = share_group_records.target_record(self.group_id, member_id, assigned)
                self._emit(record, now_ms, records)
        record = share_group_records.target_epoch_record(self.group_id, self.group_epoch, wall_ms)
        self._emit(record, now_ms, records)

    def _reconciled(
        self,
        member: ShareMember,
        catalog: TopicCatalog,
        is_forced: bool,
        now_ms: TimestampMs,
        records: list[GroupRecord],
    ) -> ShareMember:
        after = member.reconciled(
            self.target.get(member.member_id, NOTHING),
            self.target_epoch,
            self._topic_ids(member.topic_names, catalog),
            is_forced=is_forced,
        )
        if after != member:
            self._emit(share_group_records.current_record(self.group_id, after), now_ms, records)
        return after

    @staticmethod
    def _topic_ids(names: Iterable[str], catalog: TopicCatalog) -> frozenset[uuid.UUID]:
        topics = map(catalog.find, names)
        return frozenset(topic.topic_id for topic in topics if topic is not None)

    # ---- the states of partitions

    def initialized(
        self,
        partitions: Mapping[uuid.UUID, Collection[int]],
        catalog: TopicCatalog,
        now_ms: TimestampMs,
    ) -> list[GroupRecord]:
        """Note partitions whose state has been initialized; a later heartbeat assigns them."""
        if not partitions:
            return []
        states = self.known_states.with_initialized(partitions, catalog)
        return self._changed_states(states, catalog, now_ms)

    def uninitialized(
        self,
        partitions: Mapping[uuid.UUID, Collection[int]],
        catalog: TopicCatalog,
        now_ms: TimestampMs,
    ) -> list[GroupRecord]:
        """Note partitions whose state could not be initialized; the next heartbeat tries again."""
        if not self.known_states.initializing or not partitions:
            return []
        return self._changed_states(self.known_states.with_failed(partitions), catalog, now_ms)

    def begin_alteration(
        self,
        partitions: Mapping[str, Collection[int]],
        catalog: TopicCatalog,
        now_ms: TimestampMs,
    ) -> tuple[dict[uuid.UUID, TopicPartitions], list[GroupRecord]]:
        """Begin to move the start offsets of partitions, by topic: those of them that exist, and
        the records. The caller initializes their states anew with the group's epoch, and calls
        `initialized` or `uninitialized`.

        Raises MemberRejectedError (NON_EMPTY_GROUP).
        """
        self.check_empty()
        altered = {
            topic.topic_id: TopicPartitions(
                name, frozenset(index for index in of_topic if index < len(topic.partitions))
            )
            for name, of_topic in partitions.items()
            if (topic := catalog.find(name)) is not None
        }
        if not altered:
            return altered, []
        states = self.known_states.with_initializing(altered)
        return altered, self._changed_states(states, catalog, now_ms)

    def begin_offset_deletion(
        self, names: Iterable[str], catalog: TopicCatalog, now_ms: TimestampMs
    ) -> tuple[dict[uuid.UUID, frozenset[int]], list[GroupRecord]]:
        """Begin to delete the states of topics: the partitions whose states the caller has to
        delete before it calls `end_offset_deletion`, and the records. A topic that the group has no
        states of is left out. What an earlier deletion has left is deleted again.

        Raises MemberRejectedError (NON_EMPTY_GROUP).
        """
        self.check_empty()
        states = self.states
        if states is None:
            return {}, []
        gone: dict[uuid.UUID, frozenset[int]] = {}
        for topic in filter(None, map(catalog.find, names)):
            if topic.topic_id in states.initialized:
                gone[topic.topic_id] = states.initialized[topic.topic_id].partitions
            elif topic.topic_id in states.deleting:
                gone[topic.topic_id] = frozenset(range(len(topic.partitions)))
        return gone, self._changed_states(states.with_deleting(gone), catalog, now_ms)

    def end_offset_deletion(
        self, topic_ids: Collection[uuid.UUID], catalog: TopicCatalog, now_ms: TimestampMs
    ) -> list[GroupRecord]:
        """Note topics whose states have been deleted."""
        if self.states is None:
            return []
        return self._changed_states(self.states.with_deleted(topic_ids), catalog, now_ms)

    def begin_deletion(
        self, catalog: TopicCatalog, now_ms: TimestampMs
    ) -> tuple[dict[uuid.UUID, frozenset[int]], list[GroupRecord]]:
        """Begin to delete the group: the partitions whose states the caller has to delete before it
        appends the group's tombstones, and the records. Nothing is assigned any more meanwhile.

        Raises MemberRejectedError (NON_EMPTY_GROUP).
        """
        self.check_empty()
        if self.states is None:
            return {}, []
        gone = self.states.all_topics(catalog)
        names = {topic_id: topic.name for topic_id, topic in gone.items()}
        records: list[GroupRecord] = []
        self._emit(share_group_records.state_record(self.group_id, {}, {}, names), now_ms, records)
        return {topic_id: topic.partitions for topic_id, topic in gone.items()}, records

    def check_empty(self) -> None:
        """Raise MemberRejectedError (NON_EMPTY_GROUP) if the group has members."""
        if self.members:
            raise MemberRejectedError(
                ErrorCode.non_empty_group,
                f"the group has members group_id={self.group_id} members={len(self.members)}",
            )

    def topics_deleted(
        self, topic_ids: Collection[uuid.UUID], catalog: TopicCatalog, now_ms: TimestampMs
    ) -> list[GroupRecord]:
        """Forget the states of deleted topics. The share coordinator deletes them by itself."""
        states = self.known_states.without(topic_ids)
        if states == self.known_states:
            return []
        return self._changed_states(states, catalog, now_ms)

    @property
    def known_states(self) -> StatePartitions:
        """`states`, also of a group that never had any."""
        return NO_STATES if self.states is None else self.states

    def _changed_states(
        self, states: StatePartitions, catalog: TopicCatalog, now_ms: TimestampMs
    ) -> list[GroupRecord]:
        records: list[GroupRecord] = []
        self._emit(states.record(self.group_id, catalog), now_ms, records)
        return records

    # ---- leaving

    def leave(
        self, member_id: str, catalog: TopicCatalog, now_ms: TimestampMs
    ) -> list[GroupRecord]:
        """Remove a member. The remaining ones get its partitions through their next heartbeats.

        Raises MemberRejectedError if there is no such member.
        """
        if member_id not in self.members:
            raise self._unknown_member(member_id)
        records: list[GroupRecord] = []
        for tombstone in share_group_records.member_tombstones(self.group_id, member_id):
            self._emit(tombstone, now_ms, records)
        metadata_hash = catalog.metadata_hash(self.subscribed_names())
        record = share_group_records.epoch_record(
            self.group_id, self.group_epoch + 1, metadata_hash
        )
        self._emit(record, now_ms, records)
        return records

    # ---- time

    def next_deadline_ms(self) -> TimestampMs | None:
        return min(self.session_deadlines.values(), default=None)

    def expire(self, catalog: TopicCatalog, now_ms: TimestampMs) -> list[GroupRecord]:
        """Remove the member whose session has ended first, if one has. Each member is a step of its
        own, as in Kafka: a group of many may lose them all at once."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        deadlines = self.session_deadlines
        late = min(member_id for member_id, end_ms in deadlines.items() if end_ms == deadline_ms)
        return self.leave(late, catalog, now_ms)

    def resume(self, now_ms: TimestampMs) -> None:
        """Continue after a restart. Each member gets a full session timeout, and what is being
        initialized its time."""
        for member_id in self.members:
            self._reset_session_timeout(member_id, now_ms)
        if self.states is not None:
            self.states = self.states._replace(since_ms=now_ms)

    # ---- the log

    def _emit(self, record: GroupRecord, now_ms: TimestampMs, records: list[GroupRecord]) -> None:
        records.append(record)
        self.apply(record, now_ms)

    def apply(self, record: GroupRecord, now_ms: TimestampMs) -> None:
        """Apply a record of the group, apart from the tombstone that deletes it. Records come in
        the order of the log."""
        key, value = record
        self.settled_version = -1
        if isinstance(key, ShareGroupMemberMetadataKey):
            self._apply_member(key.member_id, value)
        elif isinstance(key, ShareGroupMetadataKey):
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(key, ShareGroupTargetAssignmentMetadataKey):
            self.target_epoch, self.target_ms = (
                (-1, 0) if value is None else (value.assignment_epoch, value.assignment_timestamp)
            )
        elif isinstance(key, ShareGroupTargetAssignmentMemberKey):
            if value is None:
                self.target.pop(key.member_id, None)
            else:
                self.target[key.member_id] = _assignment(value.topic_partitions)
        elif isinstance(key, ShareGroupCurrentMemberAssignmentKey):
            # The tombstone of the member's metadata follows that of its assignment.
            if value is not None:
                member = self.members.get(key.member_id) or ShareMember(member_id=key.member_id)
                self.members[key.member_id] = replace(
                    member,
                    epoch=value.member_epoch,
                    previous_epoch=value.previous_member_epoch,
                    assigned=_assignment(value.assigned_partitions),
                )
        elif isinstance(key, ShareGroupStatePartitionMetadataKey):
            self.states = None if value is None else StatePartitions.of(value, now_ms)

    def _apply_member(self, member_id: str, value: Any) -> None:
        if value is None:
            self.members.pop(member_id, None)
            self.session_deadlines.pop(member_id, None)
            return
        member = self.members.get(member_id) or ShareMember(member_id=member_id)
        self.members[member_id] = replace(
            member,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
        )


def _assignment(items: Iterable[Any]) -> Assignment:
    return frozenset((item.topic_id, index) for item in items for index in item.partitions)
