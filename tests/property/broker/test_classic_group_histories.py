"""Random histories of a classic group: its invariants hold whatever the members do.

Members join (new, known, static), sync, send heartbeats, leave and stop sending in any order, with
ids and generations that may be stale. The invariants are those at the head of
`isotherm.broker.coordinators.groups.classic_group`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_protocol import (
    Answer,
    JoinRequest,
    JoinResult,
    Protocol,
    StoreGroup,
    SyncRequest,
)
from isotherm.broker.coordinators.groups.group_snapshot import group_value, restore_group

SETTINGS = ClassicGroupSettings(initial_rebalance_delay_ms=50, max_size=4)
DONE_MS = 1_000_000

PROTOCOLS = st.lists(st.sampled_from(["range", "sticky", "odd"]), unique=True, max_size=3)
SLOT = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("join"), SLOT, st.sampled_from([None, "i1", "i2"]), PROTOCOLS, st.booleans()),
    st.tuples(st.just("sync"), SLOT, st.booleans()),
    st.tuples(st.just("heartbeat"), SLOT),
    st.tuples(st.just("leave"), SLOT),
    st.tuples(st.just("time"), st.integers(0, 120)),
)


class History:
    """Applies steps to a group and checks the invariants after each."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.group = ClassicGroup("g", SETTINGS, now_ms=0)
        self.slots: dict[int, tuple[str, str | None]] = {}
        self.asked: dict[int, int] = {}
        self.answered: set[int] = set()
        self.generation_before = 0
        self.was_preparing = False

    def apply(self, step: tuple[Any, ...]) -> None:
        self.generation_before = self.group.generation_id
        self.was_preparing = self.group.state is GroupState.PREPARING_REBALANCE
        getattr(self, step[0])(*step[1:])
        self.check()

    def join(self, slot: int, instance_id: str | None, protocols: list[str], known: bool) -> None:
        member_id, _ = self.slots.get(slot, ("", None))
        reply = self._reply(slot)
        self.slots[slot] = (member_id, instance_id)
        request = JoinRequest(
            reply,
            member_id,
            instance_id,
            "c",
            "/h",
            "consumer",
            tuple(Protocol(name, b"\0\0") for name in protocols),
            100,
            200,
            known,
            False,
            f"id-{reply}",
        )
        self._take(self.group.join(request, self.now_ms))

    def sync(self, slot: int, is_current: bool) -> None:
        member_id, instance_id = self.slots.get(slot, ("", None))
        generation = self.group.generation_id - (not is_current)
        assignments = {each.member_id: each.member_id.encode() for each in self.group.members.all()}
        request = SyncRequest(
            member_id, instance_id, generation, None, None, assignments, self._reply(slot)
        )
        self._take(self.group.sync(request, self.now_ms))

    def heartbeat(self, slot: int) -> None:
        member_id, instance_id = self.slots.get(slot, ("", None))
        self.group.heartbeat(member_id, instance_id, self.group.generation_id, self.now_ms)

    def leave(self, slot: int) -> None:
        member_id, instance_id = self.slots.pop(slot, ("", None))
        codes, effects = self.group.leave([(member_id, instance_id)], self.now_ms)
        assert len(codes) == 1
        self._take(effects)

    def time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.generation_before = self.group.generation_id
            self.was_preparing = self.group.state is GroupState.PREPARING_REBALANCE
            self._take(self.group.expire(self.now_ms))
            self.check()
            later_ms = self.group.next_deadline_ms()
            assert later_ms is None or later_ms > self.now_ms
        self.now_ms = end_ms

    def _reply(self, slot: int) -> int:
        reply = len(self.asked)
        self.asked[reply] = slot
        return reply

    def _take(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, StoreGroup):
                continue
            assert isinstance(effect, Answer)
            assert effect.reply not in self.answered
            self.answered.add(effect.reply)
            result = effect.result
            slot = self.asked[effect.reply]
            if isinstance(result, JoinResult):
                gives_id = result.error in (ErrorCode.none, ErrorCode.member_id_required)
                if gives_id:
                    self.slots[slot] = (result.member_id, self.slots.get(slot, ("", None))[1])
                elif result.error is ErrorCode.unknown_member_id:
                    self.slots.pop(slot, None)

    def check(self) -> None:
        group, members = self.group, self.group.members
        assert (members.leader_id in members) == bool(members)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert members
            assert group.protocol_name in members.shared_protocols() or not members
        if group.state is GroupState.EMPTY:
            assert not members
        assert group.generation_id - self.generation_before in (0, 1)
        waiting = [each.join_reply for each in members.all() if each.is_awaiting_join]
        waiting += [each.sync_reply for each in members.all() if each.is_awaiting_sync]
        assert sorted(waiting) == sorted(set(self.asked) - self.answered)
        assert len(waiting) == len(set(waiting))
        for member in members.all():
            heard = member.is_awaiting_join or member.is_awaiting_sync
            assert heard or member.deadline_ms is not None
            assert not member.is_awaiting_sync or group.state is GroupState.COMPLETING_REBALANCE
            assert not member.is_awaiting_join or group.state is GroupState.PREPARING_REBALANCE


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=60))
def test_invariants_hold_and_silence_ends_in_an_empty_group(steps: list[tuple[Any, ...]]) -> None:
    history = History()
    for step in steps:
        history.apply(step)
    history.time(DONE_MS)
    assert history.group.state is GroupState.EMPTY
    assert set(history.asked) == history.answered


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=60))
def test_stored_group_is_restored_as_it_was(steps: list[tuple[Any, ...]]) -> None:
    history = History()
    for step in steps:
        history.apply(step)
        group = history.group
        if group.state not in (GroupState.STABLE, GroupState.EMPTY):
            continue
        value = group_value(group, wall_offset_ms=7)
        restored = restore_group("g", value, SETTINGS, now_ms=history.now_ms, wall_offset_ms=7)
        assert group_value(restored, wall_offset_ms=7) == value
        assert (restored.state, restored.generation_id) == (group.state, group.generation_id)
        assert restored.state_timestamp_ms == group.state_timestamp_ms
