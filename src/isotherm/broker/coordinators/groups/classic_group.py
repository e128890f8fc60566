"""The state machine of a classic group: it takes requests and the time, and returns effects.

        EMPTY --join--> PREPARING_REBALANCE --all joined, or timeout--> COMPLETING_REBALANCE
        COMPLETING_REBALANCE --leader's sync--> STABLE --join, leave, timeout--> PREPARING_REBALANCE
        PREPARING_REBALANCE --no members left--> EMPTY --deleted or expired--> DEAD

Invariants
- The leader, if there is one, is a member. A group in COMPLETING_REBALANCE or STABLE has both.
- A member waits for at most one join and one sync. Each is answered exactly once.
- The generation rises by one at the end of each PREPARING_REBALANCE and at no other time.
- A member with a deadline either sends a request before it, or `expire` removes the member.

Source: Kafka ClassicGroup.java, GroupMetadataManager.java; KIP-62, 134 (initial delay), 345 (static
members), 394 (known member ids), 814 (leader that skips the assignment).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import group_log
from isotherm.broker.coordinators.groups.classic_checks import (
    GroupState,
    accepts_member,
    join_error,
    member_error,
    sync_error,
)
from isotherm.broker.coordinators.groups.classic_members import ClassicMember, ClassicMembers
from isotherm.broker.coordinators.groups.classic_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinedMember,
    JoinRequest,
    JoinResult,
    StoreGroup,
    SyncRequest,
    SyncResult,
)
from isotherm.types import TimestampMs

# Kafka: CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS. A new member does not know its member id until
# its join is answered, so it cannot send heartbeats.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000


class ClassicGroupSettings(NamedTuple):
    initial_rebalance_delay_ms: int
    max_size: int


class _JoinTimer(NamedTuple):
    """The deadline after which a rebalance completes without the members that have not joined.

    In the initial rebalance, `remaining_ms` is how much longer new members may extend it.
    """

    deadline_ms: TimestampMs
    remaining_ms: int = 0
    is_initial: bool = False


class ClassicGroup:
    group_type = "classic"

    def __init__(
        self, group_id: str, settings: ClassicGroupSettings, *, now_ms: TimestampMs
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = ClassicMembers()
        self.subscribed_topics: frozenset[str] | None = None
        self._settings = settings
        self._pending_members: dict[str, TimestampMs] = {}
        self._pending_sync: set[str] = set()
        self._sync_deadline_ms: TimestampMs | None = None
        self._join_timer: _JoinTimer | None = None
        self._new_member_added = False
        self._effects: list[Effect] = []

    # ---- requests

    def join(self, request: JoinRequest, now_ms: TimestampMs) -> list[Effect]:
        error = join_error(self, request)
        # As in Kafka, the size is checked before the protocols.
        if not accepts_member(self, request.member_id, self._settings.max_size):
            # The client gives up after this error, so its place is freed at once.
            self._pending_members.pop(request.member_id, None)
            if request.member_id in self.members:
                self._remove(request.member_id)
            self._answer_join_error(request, ErrorCode.group_max_size_reached)
        elif error is not ErrorCode.none:
            self._answer_join_error(request, error)
        elif request.member_id == NO_MEMBER_ID:
            self._join_new(request, now_ms)
        elif request.member_id in self._pending_members and request.group_instance_id is None:
            self._add_member(request, request.member_id, now_ms)
        else:
            self._join_existing(request, now_ms)
        return self._take_effects()

    def sync(self, request: SyncRequest, now_ms: TimestampMs) -> list[Effect]:
        error = sync_error(self, request)
        if error is not ErrorCode.none:
            self._effects.append(Answer(request.reply, SyncResult(error)))
            return self._take_effects()
        member = self.members[request.member_id]
        # In STABLE too: the sync deadline must not remove a member that syncs after the leader.
        self._sync_received(member.member_id)
        if self.state is GroupState.STABLE:
            # A retry, or a member that is slower than the leader. The assignment already exists.
            # It does not renew the session, as in Kafka 4.3.1
            # (GroupMetadataManager.classicGroupSyncToClassicGroup).
            self._effects.append(Answer(request.reply, self._sync_result(member)))
            return self._take_effects()
        self._drop_sync(member, ErrorCode.rebalance_in_progress)
        member.sync_reply = request.reply
        # The member cannot send heartbeats while it waits for the answer. The sync deadline of the
        # group bounds the wait instead.
        member.deadline_ms = None
        if self.members.is_leader(member):
            self._assign(request.assignments, now_ms)
        return self._take_effects()

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: TimestampMs
    ) -> ErrorCode:
        error = member_error(self, member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.illegal_generation
        self.members[member_id].reset_session_timeout(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(
        self, members: Iterable[tuple[str, str | None]], now_ms: TimestampMs
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """Remove members named by (member id, group instance id); a code for each, in order.

        An admin client may name a static member by its instance id alone.
        """
        codes = [self._leave(member_id, instance_id) for member_id, instance_id in members]
        if ErrorCode.none in codes:
            self._rebalance_or_complete_join(now_ms)
        return codes, self._take_effects()

    def offsets_committed(self, member_id: str, now_ms: TimestampMs) -> None:
        """Count a commit as a heartbeat, as Kafka does.

        A commit in a transaction does not count.
        """
        if member_id in self.members:
            self.members[member_id].reset_session_timeout(now_ms)

    def die(self, error: ErrorCode = ErrorCode.unknown_member_id) -> list[Effect]:
        """Delete the group, or replace it by another one.

        Waiting requests are answered with `error`.
        """
        for member in self.members.all():
            # Before `_remove`, which answers what still waits with UNKNOWN_MEMBER_ID.
            self._drop_join(member, error)
            self._drop_sync(member, error)
            self._remove(member.member_id)
        self._pending_members.clear()
        self._join_timer = self._sync_deadline_ms = None
        self.state = GroupState.DEAD
        return self._take_effects()

    def find_subscribed_topics(self) -> None:
        """Update the topics of all members' subscriptions.

        None if they are unknown: the members are not consumers, or no protocol is selected yet.
        """
        self.subscribed_topics = None
        if self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.protocol_name is not None:
            self.subscribed_topics = self.members.subscribed_topics(self.protocol_name)

    def may_read(self, topic: str) -> bool:
        """Whether members may be reading the topic; True if that cannot be known."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def shown_state(self) -> str:
        return self.state.value

    @property
    def is_unused(self) -> bool:
        """Whether the group has never had a member and none is joining.

        Such a group is not in the log.
        """
        return (
            self.state is GroupState.EMPTY and self.generation_id == 0 and not self._pending_members
        ) or self.state is GroupState.DEAD

    # ---- time

    def next_deadline_ms(self) -> TimestampMs | None:
        """The time at which `expire` has work if no request comes before; None if never."""
        deadlines = [
            member.deadline_ms for member in self.members.all() if member.deadline_ms is not None
        ]
        deadlines += self._pending_members.values()
        if self._sync_deadline_ms is not None:
            deadlines.append(self._sync_deadline_ms)
        if self._join_timer is not None:
            deadlines.append(self._join_timer.deadline_ms)
        return min(deadlines, default=None)

    def expire(self, now_ms: TimestampMs) -> list[Effect]:
        """Remove expired members, and complete a rebalance whose timeout has passed."""
        self._expire_members(now_ms)
        if self._sync_deadline_ms is not None and now_ms >= self._sync_deadline_ms:
            self._sync_deadline_ms = None
            for member_id in list(self._pending_sync):
                self._remove(member_id)
            self._prepare_rebalance(now_ms)
        timer = self._join_timer
        if timer is not None and now_ms >= timer.deadline_ms:
            # KIP-134: each new member extends the initial delay, up to the rebalance timeout. So
            # the members of an application that starts share one rebalance.
            if timer.is_initial and self._new_member_added and timer.remaining_ms > 0:
                self._put_off_initial_join(timer.remaining_ms, now_ms)
            else:
                self._complete_join(now_ms)
        return self._take_effects()

    def _expire_members(self, now_ms: TimestampMs) -> None:
        late = [id_ for id_, deadline_ms in self._pending_members.items() if now_ms >= deadline_ms]
        for member_id in late:
            del self._pending_members[member_id]
        silent = [
            member.member_id
            for member in self.members.all()
            if member.deadline_ms is not None and now_ms >= member.deadline_ms
        ]
        for member_id in silent:
            group_log.member_failed(self, member_id)
            self._remove(member_id)
        if silent:
            self._rebalance_or_complete_join(now_ms)
        # A rebalance waits for pending members too. Without the late ones it may be complete.
        elif late:
            self._maybe_complete_join(now_ms)

    # ---- joining

    def _join_new(self, request: JoinRequest, now_ms: TimestampMs) -> None:
        old_id = self.members.static_member_id(request.group_instance_id)
        if old_id is not None:
            self._replace_static(old_id, request, now_ms)
        elif request.group_instance_id is None and request.requires_known_member_id:
            # KIP-394: the client must join again with this id. Clients that time out and retry
            # with no id would otherwise leave a member behind at each attempt.
            self._pending_members[request.new_member_id] = now_ms + request.session_timeout_ms
            self._effects.append(
                Answer(
                    request.reply,
                    JoinResult(ErrorCode.member_id_required, request.new_member_id),
                )
            )
        else:
            self._add_member(request, request.new_member_id, now_ms)

    def _join_existing(self, request: JoinRequest, now_ms: TimestampMs) -> None:
        error = member_error(self, request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            self._answer_join_error(request, error)
            return
        member = self.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        is_leader = self.members.is_leader(member)
        if self.state is GroupState.COMPLETING_REBALANCE and is_unchanged:
            # A retry: the member has not seen the answer to its last join.
            self._effects.append(Answer(request.reply, self._join_result(member)))
        elif self.state is GroupState.STABLE and is_unchanged and not is_leader:
            # Only a leader may start a rebalance by an unchanged rejoin, for example after new
            # partitions.
            self._effects.append(Answer(request.reply, self._join_result(member)))
        else:
            self._update(member, request)
            self._rebalance_or_complete_join(now_ms)

    def _add_member(self, request: JoinRequest, member_id: str, now_ms: TimestampMs) -> None:
        group_log.member_joins(self, member_id)
        self._pending_members.pop(member_id, None)
        member = ClassicMember.of_request(request, member_id)
        member.join_reply = request.reply
        member.deadline_ms = now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        if self._join_timer is not None and self._join_timer.is_initial:
            self._new_member_added = True
        self._rebalance_or_complete_join(now_ms)

    def _update(self, member: ClassicMember, request: JoinRequest) -> None:
        if member.join_reply is not None:
            # A retry, perhaps over a new connection. The older request must be answered too.
            self._effects.append(
                Answer(
                    member.join_reply,
                    JoinResult(ErrorCode.rebalance_in_progress, member.member_id),
                )
            )
        member.update(request)
        member.join_reply = request.reply
        member.deadline_ms = None

    def _replace_static(self, old_id: str, request: JoinRequest, now_ms: TimestampMs) -> None:
        """Give a restarted static member its new member id. The old member id is fenced."""
        old_leader = self.members.leader_id
        member = self.members[old_id]
        self._drop_join(member, ErrorCode.fenced_instance_id)
        self._drop_sync(member, ErrorCode.fenced_instance_id)
        self.members.rename(member, request.new_member_id)
        if old_id in self._pending_sync:
            self._pending_sync.discard(old_id)
            self._pending_sync.add(member.member_id)
        member.update(request)
        # KIP-345: with the same protocol the assignment stays, and a restart costs no rebalance.
        if self.state is GroupState.STABLE and self.members.select_protocol() == self.protocol_name:
            member.reset_session_timeout(now_ms)
            # The log must have the new member id before the member learns it.
            self._effects.append(StoreGroup())
            result = self._rejoined_result(member, request, str(old_leader))
            self._effects.append(Answer(request.reply, result))
            return
        member.join_reply = request.reply
        member.deadline_ms = None
        self._rebalance_or_complete_join(now_ms)

    def _rejoined_result(
        self, member: ClassicMember, request: JoinRequest, old_leader: str
    ) -> JoinResult:
        """The answer to a static member that rejoins without a rebalance (KIP-814).

        A leader of an older client would compute and send an assignment. It gets the old leader's
        member id as leader, so it acts as a follower.
        """
        if request.supports_skipping_assignment:
            is_leader = self.members.is_leader(member)
            return self._join_result(member)._replace(skip_assignment=is_leader)
        return self._join_result(member)._replace(leader=old_leader, members=())

    # ---- rebalancing

    def rebalance(self, now_ms: TimestampMs) -> list[Effect]:
        """Start a rebalance: all members of a stable group must join again."""
        self._prepare_rebalance(now_ms)
        return self._take_effects()

    def _rebalance_or_complete_join(self, now_ms: TimestampMs) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE) or (
            self.state is GroupState.EMPTY and self.members
        ):
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: TimestampMs) -> None:
        group_log.prepares_rebalance(self)
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.all():
                # The assignment of this generation will never arrive, because a new generation
                # follows.
                member.assignment = b""
                if member.is_awaiting_sync:
                    self._drop_sync(member, ErrorCode.rebalance_in_progress)
                    member.reset_session_timeout(now_ms)
        self._pending_sync.clear()
        self._sync_deadline_ms = None
        is_initial = self.state is GroupState.EMPTY
        self._move_to(GroupState.PREPARING_REBALANCE, now_ms)
        timeout_ms = self.members.rebalance_timeout_ms()
        if is_initial:
            # As in Kafka, the first delay is a whole one, though the rebalance timeout may be
            # shorter.
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._put_off_initial_join(max(timeout_ms, delay_ms), now_ms)
        else:
            self._join_timer = _JoinTimer(now_ms + timeout_ms)
            self._maybe_complete_join(now_ms)

    def _put_off_initial_join(self, remaining_ms: int, now_ms: TimestampMs) -> None:
        self._new_member_added = False
        delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
        self._join_timer = _JoinTimer(
            now_ms + delay_ms, max(remaining_ms - delay_ms, 0), is_initial=True
        )

    def _maybe_complete_join(self, now_ms: TimestampMs) -> None:
        timer = self._join_timer
        # An initial rebalance always lasts until its delay has passed (KIP-134).
        if self.state is not GroupState.PREPARING_REBALANCE or timer is None or timer.is_initial:
            return
        if self.members.awaiting_join_count() == len(self.members) and not self._pending_members:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: TimestampMs) -> None:
        self._join_timer = None
        for member in self.members.all():
            if not member.is_awaiting_join and member.group_instance_id is None:
                self._remove(member.member_id)
        if not self.members:
            self._become_empty(now_ms)
            return
        if not self.members.elect_joined_leader():
            # Only static members are left and none has rejoined. A static member stays until its
            # session timeout, so the rebalance waits longer.
            self._join_timer = _JoinTimer(now_ms + self.members.rebalance_timeout_ms())
            return
        self._begin_generation(now_ms)

    def _become_empty(self, now_ms: TimestampMs) -> None:
        self.generation_id += 1
        self.protocol_name = None
        self.subscribed_topics = None
        self._move_to(GroupState.EMPTY, now_ms)
        group_log.became_empty(self)
        self._effects.append(StoreGroup())

    def _begin_generation(self, now_ms: TimestampMs) -> None:
        self.generation_id += 1
        self.protocol_name = self.members.select_protocol()
        self.find_subscribed_topics()
        self._move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        group_log.stabilized(self)
        # A member that joins but never syncs would block the group: it is removed at this deadline.
        self._pending_sync = set(self.members.by_id)
        self._sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms()
        for member in self.members.all():
            reply, member.join_reply = member.join_reply, None
            if reply is not None:
                self._effects.append(Answer(reply, self._join_result(member)))
            # Has an effect only because `join_reply` is None by now.
            member.reset_session_timeout(now_ms)

    # ---- assigning

    def _sync_received(self, member_id: str) -> None:
        self._pending_sync.discard(member_id)
        if not self._pending_sync:
            self._sync_deadline_ms = None

    def _assign(self, assignments: dict[str, bytes], now_ms: TimestampMs) -> None:
        self._move_to(GroupState.STABLE, now_ms)
        group_log.assigned(self)
        # Before the answers in the list. The record is made when the effect is carried out, so it
        # has the assignments below.
        self._effects.append(StoreGroup())
        for member in self.members.all():
            member.assignment = assignments.get(member.member_id, b"")
            reply, member.sync_reply = member.sync_reply, None
            if reply is not None:
                self._effects.append(Answer(reply, self._sync_result(member)))
                # A member that has not synced may be gone: the leader's sync is no sign of its
                # life.
                member.reset_session_timeout(now_ms)

    # ---- leaving

    def _leave(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if member_id == NO_MEMBER_ID and group_instance_id is not None:
            member_id = self.members.static_member_id(group_instance_id) or NO_MEMBER_ID
        elif member_id in self._pending_members:
            del self._pending_members[member_id]
            return ErrorCode.none
        error = member_error(self, member_id, group_instance_id)
        if error is ErrorCode.none:
            group_log.member_left(self, member_id)
            self._remove(member_id)
        return error

    def _remove(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        self._drop_join(member, ErrorCode.unknown_member_id)
        self._drop_sync(member, ErrorCode.unknown_member_id)
        self._sync_received(member_id)

    # ---- answers

    def _drop_join(self, member: ClassicMember, error: ErrorCode) -> None:
        reply, member.join_reply = member.join_reply, None
        if reply is not None:
            self._effects.append(Answer(reply, JoinResult(error, member.member_id)))

    def _drop_sync(self, member: ClassicMember, error: ErrorCode) -> None:
        reply, member.sync_reply = member.sync_reply, None
        if reply is not None:
            self._effects.append(Answer(reply, SyncResult(error)))

    def _answer_join_error(self, request: JoinRequest, error: ErrorCode) -> None:
        self._effects.append(Answer(request.reply, JoinResult(error, request.member_id)))

    def _join_result(self, member: ClassicMember) -> JoinResult:
        is_leader = self.members.is_leader(member)
        return JoinResult(
            ErrorCode.none,
            member.member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            str(self.members.leader_id),
            self._joined_members() if is_leader else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        name = str(self.protocol_name)
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(name))
            for member in self.members.all()
        )

    def _sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(ErrorCode.none, self.protocol_type, self.protocol_name, member.assignment)

    def _move_to(self, state: GroupState, now_ms: TimestampMs) -> None:
        self.state = state
        self.state_timestamp_ms = now_ms

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
