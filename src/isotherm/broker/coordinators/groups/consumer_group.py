"""The state machine of a consumer group (KIP-848). It takes heartbeats and the time, and returns
answers and records.

Invariants
- At most one member owns a partition: `owners` is the inverse of the members' `held`.
- target_epoch <= group_epoch, and no member's epoch exceeds the target's.
- Methods change the object. The coordinator calls them on a `copy`, appends the records, and only
  then replaces the original with the copy. `keep_alive` has no records and needs no copy.

Source: Kafka ConsumerGroup.java, GroupMetadataManager.consumerGroupHeartbeat.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import consumer_records
from isotherm.broker.coordinators.groups.assignors import range as range_assignor
from isotherm.broker.coordinators.groups.assignors import uniform
from isotherm.broker.coordinators.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    Assignor,
    MemberSubscription,
)
from isotherm.broker.coordinators.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING,
    ConsumerMember,
    MemberState,
    reconcile,
)
from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.member_heartbeat import (
    HeartbeatResult,
    MemberHeartbeat,
    MemberRejectedError,
    unknown_member,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.broker.coordinators.groups.topic_selection import Selection
from isotherm.types import TimestampMs

if TYPE_CHECKING:
    from isotherm.broker.metadata.image import TopicImage

ASSIGNORS: Mapping[str, Assignor] = {
    uniform.NAME: uniform.assign,
    range_assignor.NAME: range_assignor.assign,
}
DEFAULT_ASSIGNOR = uniform.NAME
# A step of more things takes 10 ms or more, and is computed in a thread.
LOOP_STEP_THINGS_MAX = 2_000


class ConsumerGroupSettings(NamedTuple):
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_size: int


class ConsumerGroup:
    group_type = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str, settings: ConsumerGroupSettings) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        self.owners: dict[AssignedPartition, str] = {}
        # The topics of the members' patterns, by member id. They are not in the log.
        self.selections: dict[str, Selection] = {}
        self.catalog_version = -1
        self.session_deadlines: dict[str, TimestampMs] = {}
        self.rebalance_deadlines: dict[str, TimestampMs] = {}
        self.settings = settings

    def copy(self) -> ConsumerGroup:
        # One level deep is enough: members, assignments and topic sets are immutable. A heartbeat
        # costs a copy of the dicts.
        other = ConsumerGroup(self.group_id, self.settings)
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        return other

    # ---- views

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_classic(self) -> bool:
        """Whether every member speaks the classic protocol."""
        return all(member.classic is not None for member in self.members.values())

    @property
    def shown_state(self) -> str:
        """The state that ConsumerGroupDescribe and ListGroups return."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)

    def pattern_of(self, beat: MemberHeartbeat) -> str | None:
        """The pattern that the member of a heartbeat has so far."""
        member = self.members.get(beat.member_id)
        if member is None and beat.epoch == JOIN_EPOCH:
            member = self.static_member(beat.instance_id)
        return None if member is None else member.topic_regex

    def selection_of(self, member: ConsumerMember) -> Selection | None:
        """What the member's pattern selects.

        None without a pattern, or if that is not known yet.
        """
        selection = self.selections.get(member.member_id)
        return selection if selection and selection.pattern == member.topic_regex else None

    def subscribed_names(self, member: ConsumerMember, catalog: TopicCatalog) -> frozenset[str]:
        if not member.topic_regex:
            return member.topic_names
        selection = self.selection_of(member)
        if selection is not None:
            return member.topic_names | selection.names
        return member.topic_names | self._target_names(member, catalog)

    def _target_names(self, member: ConsumerMember, catalog: TopicCatalog) -> frozenset[str]:
        """The topics of the member's target assignment. They stand for its pattern's until its
        first heartbeat after a restart, which shows who it is."""
        target = self.target.get(member.member_id, NOTHING)
        return frozenset(partition.topic for partition in catalog.partitions(target))

    def _topics_of(self, member: ConsumerMember, catalog: TopicCatalog) -> list[TopicImage]:
        """The topics of the member's subscription that exist."""
        topics = map(catalog.find, self.subscribed_names(member, catalog))
        return [topic for topic in topics if topic is not None]

    def may_read(self, topic: str) -> bool:
        """Whether members may be reading the topic; True if that is not known yet."""
        return any(
            topic in member.topic_names or (member.topic_regex and self._may_select(member, topic))
            for member in self.members.values()
        )

    def _may_select(self, member: ConsumerMember, topic: str) -> bool:
        selection = self.selection_of(member)
        return selection is None or selection.viewer is None or topic in selection.names

    # ---- heartbeats

    def keep_alive(
        self, beat: MemberHeartbeat, catalog: TopicCatalog, now_ms: TimestampMs
    ) -> HeartbeatResult | None:
        """The answer to a heartbeat that changes nothing but its session's deadline.

        None if it may change more; nothing has changed then.
        """
        member = self.members.get(beat.member_id)
        if (
            member is None
            or beat.epoch != member.epoch
            or beat.selections
            or catalog.version != self.catalog_version
            or self.group_epoch != self.target_epoch
            or not member.is_reconciled(self.target_epoch)
            or member.member_id in self.rebalance_deadlines
            or self._updated(member, beat) != member
        ):
            return None
        self.reset_session_timeout(member, now_ms)
        return HeartbeatResult(
            member.member_id, member.epoch, member.assigned if beat.is_full else None
        )

    def things_of(self, beat: MemberHeartbeat, catalog: TopicCatalog) -> int:
        """How many things the step of a heartbeat goes through, by order of magnitude: topics of
        members, and members to which a partition may be assigned."""
        subscriptions = [
            *(member.topic_names for member in self.members.values()),
            *(selection.names for selection in self.selections.values()),
            *(selection.names for selection in beat.selections.values()),
            beat.topic_names or frozenset(),
        ]
        names_count = sum(map(len, subscriptions))
        if names_count > LOOP_STEP_THINGS_MAX:
            return names_count
        topics = map(catalog.find, frozenset().union(*subscriptions))
        partitions_count = sum(len(topic.partitions) for topic in topics if topic is not None)
        return names_count + partitions_count * (len(self.members) + 1)

    def keep_sessions_of(self, other: ConsumerGroup) -> None:
        """Take later deadlines of sessions from the group of which this is a changed copy."""
        for member_id, deadline_ms in other.session_deadlines.items():
            if member_id in self.members:
                own_ms = self.session_deadlines.get(member_id, deadline_ms)
                self.session_deadlines[member_id] = max(own_ms, deadline_ms)

    def heartbeat(
        self, beat: MemberHeartbeat, catalog: TopicCatalog, now_ms: TimestampMs, wall_ms: int
    ) -> tuple[HeartbeatResult, list[GroupRecord]]:
        """Process a heartbeat. A member joins with epoch 0.

        Raises MemberRejectedError; the caller then discards this object.
        """
        records: list[GroupRecord] = []
        before = self._member_of(beat, records)
        member = self._updated(before, beat)
        is_forced = self._select({**self.members, member.member_id: member}, beat, catalog)
        member = self.advance(
            before, member, beat.owned, catalog, now_ms, wall_ms, records, is_forced=is_forced
        )
        includes_assignment = beat.is_full or member.assigned != before.assigned
        result = HeartbeatResult(
            member.member_id, member.epoch, member.assigned if includes_assignment else None
        )
        return result, records

    def _select(
        self, members: Mapping[str, ConsumerMember], beat: MemberHeartbeat, catalog: TopicCatalog
    ) -> bool:
        """Take new selections. True if the topics of a member have changed by them."""
        has_changed = False
        for member_id, selection in beat.selections.items():
            member = members.get(member_id)
            if member is None or member.topic_regex != selection.pattern:
                continue  # It has changed while the pattern was being matched.
            before = self.selection_of(member)
            self.selections[member_id] = selection
            if before is not None:
                has_changed |= before.names != selection.names
            else:
                # What is beyond its target is in the others', or changes the hash of the metadata.
                has_changed |= not self._target_names(member, catalog) <= selection.names
        return has_changed

    def advance(
        self,
        before: ConsumerMember,
        member: ConsumerMember,
        owned: Assignment | None,
        catalog: TopicCatalog,
        now_ms: TimestampMs,
        wall_ms: int,
        records: list[GroupRecord],
        *,
        is_forced: bool = False,
    ) -> ConsumerMember:
        """Apply a member's change from `before` to `member`, and reconcile it by one step.

        Returns the reconciled member. Adds the records to append to `records`. `is_forced` has the
        partitions assigned anew in any case.
        """
        is_new = member.member_id not in self.members
        has_new_subscription = (
            is_new
            or member.topic_names != before.topic_names
            or member.topic_regex != before.topic_regex
        )
        if is_new or member != before:
            records.append(consumer_records.member_record(self.group_id, member))
        self._set_member(member)
        self._bump_if_changed(catalog, has_new_subscription or is_forced, records)
        if self.group_epoch > self.target_epoch:
            self._compute_target(catalog, records, wall_ms)
        subscribed = None
        if has_new_subscription:
            subscribed = frozenset(topic.topic_id for topic in self._topics_of(member, catalog))
        member = self._reconcile(member, owned, subscribed, now_ms, records, force=is_new)
        self.reset_session_timeout(member, now_ms)
        return member

    def reset_session_timeout(self, member: ConsumerMember, now_ms: TimestampMs) -> None:
        timeout_ms = self.settings.session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self.session_deadlines[member.member_id] = now_ms + timeout_ms

    def _member_of(self, beat: MemberHeartbeat, records: list[GroupRecord]) -> ConsumerMember:
        """The member before this heartbeat; a new one if it joins."""
        if beat.instance_id is not None:
            return self._static_member_of(beat, records)
        member = self.members.get(beat.member_id)
        if beat.epoch == JOIN_EPOCH:
            if member is None:
                self.check_size()
                return ConsumerMember(member_id=beat.member_id)
            return member
        if member is None:
            raise unknown_member(beat)
        self._check_epoch(member, beat)
        return member

    def _static_member_of(
        self, beat: MemberHeartbeat, records: list[GroupRecord]
    ) -> ConsumerMember:
        holder = self.static_member(beat.instance_id)
        if beat.epoch != JOIN_EPOCH:
            if holder is None:
                raise unknown_member(beat)
            if holder.member_id != beat.member_id:
                raise MemberRejectedError(
                    ErrorCode.fenced_instance_id,
                    f"another member has the instance id instance_id={beat.instance_id}",
                )
            self._check_epoch(holder, beat)
            return holder
        if holder is None:
            self.check_size()
            return ConsumerMember(member_id=beat.member_id, instance_id=beat.instance_id)
        # A member of the classic protocol does not announce a restart by leaving with epoch -2.
        if holder.epoch != LEAVE_STATIC_EPOCH and holder.classic is None:
            raise MemberRejectedError(
                ErrorCode.unreleased_instance_id,
                f"the instance id is still in use instance_id={beat.instance_id}",
            )
        return self.take_over(holder, beat.member_id, records)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        members = (member for member in self.members.values() if member.instance_id == instance_id)
        return None if instance_id is None else next(members, None)

    def known_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member.

        Raises MemberRejectedError if it is unknown, or if another member has its instance id.
        """
        member = self.members.get(member_id)
        if instance_id is not None:
            member = self.static_member(instance_id)
        if member is None:
            raise MemberRejectedError(
                ErrorCode.unknown_member_id, f"no such member member_id={member_id}"
            )
        if member.member_id != member_id:
            raise MemberRejectedError(
                ErrorCode.fenced_instance_id,
                f"another member has the instance id instance_id={instance_id}",
            )
        return member

    def take_over(
        self, holder: ConsumerMember, member_id: str, records: list[GroupRecord]
    ) -> ConsumerMember:
        """Move all state of a static member to the member id with which it has rejoined."""
        target = self.target.get(holder.member_id, NOTHING)
        self._drop_member(holder)
        records += consumer_records.member_tombstones(self.group_id, holder.member_id)
        member = replace(holder, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        self.target[member_id] = target
        records.append(consumer_records.target_record(self.group_id, member_id, target))
        self._set_member(member)
        records.append(consumer_records.member_record(self.group_id, member))
        return member

    def check_size(self) -> None:
        if len(self.members) >= self.settings.max_size:
            raise MemberRejectedError(
                ErrorCode.group_max_size_reached,
                f"the group is full group_id={self.group_id} size={len(self.members)}",
            )

    def _check_epoch(self, member: ConsumerMember, beat: MemberHeartbeat) -> None:
        """Accept the current epoch, or the previous epoch if the last response may have been lost.

        A member that missed the response still sends the previous epoch, and owns no partition
        beyond its assignment.
        """
        missed_answer = (
            beat.epoch == member.previous_epoch
            and beat.owned is not None
            and beat.owned <= member.assigned
        )
        if beat.epoch == member.epoch or (beat.epoch < member.epoch and missed_answer):
            return
        raise MemberRejectedError(
            ErrorCode.fenced_member_epoch,
            f"the member epoch is not current member_id={member.member_id}"
            f" epoch={beat.epoch} current={member.epoch}",
        )

    @staticmethod
    def _updated(member: ConsumerMember, beat: MemberHeartbeat) -> ConsumerMember:
        """The member with the fields that the heartbeat sets."""
        changes: dict[str, object] = {
            name: value
            for name, value in (
                ("instance_id", beat.instance_id),
                ("rack_id", beat.rack_id),
                ("topic_names", beat.topic_names),
                ("server_assignor", beat.server_assignor),
            )
            if value is not None
        }
        if beat.topic_regex is not None:
            # An empty regular expression removes the subscription by regular expression.
            changes["topic_regex"] = beat.topic_regex or None
        if beat.rebalance_timeout_ms != -1:
            changes["rebalance_timeout_ms"] = beat.rebalance_timeout_ms
        return replace(
            member,
            client_id=beat.client_id,
            client_host=beat.client_host,
            # A heartbeat is of the consumer protocol. A static member may have used the
            # classic one before its restart.
            classic=None,
            **changes,  # type: ignore[arg-type]
        )

    # ---- epochs and assignments

    def _bump_if_changed(
        self, catalog: TopicCatalog, is_forced: bool, records: list[GroupRecord]
    ) -> None:
        # The catalog's version is compared first, because the hash would cost time at every
        # heartbeat.
        if not is_forced and catalog.version == self.catalog_version:
            return
        self.catalog_version = catalog.version
        names = frozenset().union(
            *(self.subscribed_names(member, catalog) for member in self.members.values())
        )
        metadata_hash = catalog.metadata_hash(names)
        if is_forced or metadata_hash != self.metadata_hash:
            self.metadata_hash = metadata_hash
            self._bump(records)

    def _bump(self, records: list[GroupRecord]) -> None:
        self.group_epoch += 1
        records.append(
            consumer_records.epoch_record(self.group_id, self.group_epoch, self.metadata_hash)
        )

    def _compute_target(
        self, catalog: TopicCatalog, records: list[GroupRecord], wall_ms: int
    ) -> None:
        topics = {}
        subscriptions = {}
        for member_id, member in self.members.items():
            subscribed_topics = self._topics_of(member, catalog)
            if member.topic_regex and self.selection_of(member) is None:
                # Its first heartbeat compares with the topics that were assigned by now.
                self.selections[member_id] = Selection(
                    member.topic_regex, self._target_names(member, catalog)
                )
            topics.update({topic.topic_id: len(topic.partitions) for topic in subscribed_topics})
            subscriptions[member_id] = MemberSubscription(
                member.instance_id,
                frozenset(topic.topic_id for topic in subscribed_topics),
                self.target.get(member_id, NOTHING),
            )
        target = ASSIGNORS[self.assignor](subscriptions, topics)
        for member_id, assigned in target.items():
            if self.target.get(member_id) != assigned:
                records.append(consumer_records.target_record(self.group_id, member_id, assigned))
        self.target = target
        self.target_epoch = self.group_epoch
        records.append(
            consumer_records.target_epoch_record(self.group_id, self.target_epoch, wall_ms)
        )

    def _reconcile(
        self,
        member: ConsumerMember,
        owned: Assignment | None,
        subscribed: frozenset[uuid.UUID] | None,
        now_ms: TimestampMs,
        records: list[GroupRecord],
        *,
        force: bool,
    ) -> ConsumerMember:
        if member.state is MemberState.UNKNOWN and owned != NOTHING:
            raise MemberRejectedError(
                ErrorCode.fenced_member_epoch,
                f"the member's state is unknown, so it must rejoin member_id={member.member_id}",
            )
        after = reconcile(
            member,
            self.target.get(member.member_id, NOTHING),
            self.target_epoch,
            owned,
            lambda partition: partition not in self.owners,
            subscribed,
        )
        if after != member or force:
            self._set_member(after)
            records.append(consumer_records.current_record(self.group_id, after))
        if after.classic is not None:
            # The next join and sync of a classic member set its deadlines.
            return after
        if after.state is not MemberState.UNREVOKED_PARTITIONS:
            self.rebalance_deadlines.pop(after.member_id, None)
        elif after != member:
            # Set once per revocation, so that a member that never revokes cannot extend it by
            # heartbeats.
            self.rebalance_deadlines[after.member_id] = now_ms + after.rebalance_timeout_ms
        return after

    # ---- leaving

    def leave(
        self, member_id: str, instance_id: str | None, epoch: int
    ) -> tuple[HeartbeatResult, list[GroupRecord]]:
        """Epoch -1 removes the member. With epoch -2 a static member leaves and may rejoin."""
        member = self.known_member(member_id, instance_id)
        result = HeartbeatResult(member_id, epoch, None)
        if epoch != LEAVE_STATIC_EPOCH:
            return result, self.remove([member_id])
        # The partitions stay assigned to the member, so a restart moves none.
        # Its session timeout keeps running and removes a member that does not return.
        gone = replace(member, epoch=LEAVE_STATIC_EPOCH, pending_revocation=NOTHING)
        self._set_member(gone)
        self.rebalance_deadlines.pop(member_id, None)
        return result, [consumer_records.current_record(self.group_id, gone)]

    def remove(self, member_ids: Iterable[str]) -> list[GroupRecord]:
        """Remove members.

        The remaining members get the partitions through their next heartbeats.
        """
        records: list[GroupRecord] = []
        for member_id in member_ids:
            self._drop_member(self.members[member_id])
            records += consumer_records.member_tombstones(self.group_id, member_id)
        # Once for all of them: one new target follows.
        self._bump(records)
        return records

    # ---- the log

    def all_records(self, wall_ms: TimestampMs) -> list[GroupRecord]:
        """All records of the group, in Kafka's order, for a group that replaces a classic one."""
        group_id, members = self.group_id, self.members.values()
        return [
            *(consumer_records.member_record(group_id, member) for member in members),
            consumer_records.epoch_record(group_id, self.group_epoch, self.metadata_hash),
            *(
                consumer_records.target_record(group_id, member_id, assigned)
                for member_id, assigned in self.target.items()
            ),
            consumer_records.target_epoch_record(group_id, self.target_epoch, wall_ms),
            *(consumer_records.current_record(group_id, member) for member in members),
        ]

    # ---- time

    def next_deadline_ms(self) -> TimestampMs | None:
        deadlines = (*self.session_deadlines.values(), *self.rebalance_deadlines.values())
        return min(deadlines, default=None)

    def expire(self, now_ms: TimestampMs) -> list[GroupRecord]:
        """Remove members that did not send a heartbeat, or did not revoke partitions, in time."""
        late = {
            member_id
            for deadlines in (self.session_deadlines, self.rebalance_deadlines)
            for member_id, deadline_ms in deadlines.items()
            if now_ms >= deadline_ms
        }
        return self.remove(sorted(late)) if late else []

    def resume(self, now_ms: TimestampMs) -> None:
        """Continue after a restart. Each member gets a full session timeout."""
        for member in self.members.values():
            # No record has the owners.
            self.owners.update(dict.fromkeys(member.held, member.member_id))
            self.reset_session_timeout(member, now_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                deadline_ms = now_ms + member.rebalance_timeout_ms
                self.rebalance_deadlines[member.member_id] = deadline_ms

    # ---- members, and the partitions they own

    def _set_member(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._release(before)
        self.members[member.member_id] = member
        self.owners.update(dict.fromkeys(member.held, member.member_id))

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            # A static member's successor may own it already.
            if self.owners.get(partition) == member.member_id:
                del self.owners[partition]

    def _drop_member(self, member: ConsumerMember) -> None:
        self._release(member)
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.selections.pop(member.member_id, None)
        self.session_deadlines.pop(member.member_id, None)
        self.rebalance_deadlines.pop(member.member_id, None)
