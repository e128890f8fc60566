"""A classic group that the test drives by hand: members with names, and a clock that the test
moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_protocol import (
    Answer,
    JoinRequest,
    Protocol,
    StoreGroup,
    SyncRequest,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000


class GroupDriver:
    """Drives a classic group. Keeps the answer to each request under the request's reply token."""

    def __init__(self, *, max_size: int = 100) -> None:
        self.now_ms = 1_000_000
        settings = ClassicGroupSettings(DELAY_MS, max_size)
        self.group = ClassicGroup("g", settings, now_ms=self.now_ms)
        self.answers: dict[Any, Any] = {}
        self.stores = 0
        self._ids = itertools.count(1)

    def join(
        self,
        reply: Any,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        known: bool = False,
        skips: bool = False,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Any:
        """Send a JoinGroup. Returns the answer if there is one already, else None."""
        request = JoinRequest(
            reply,
            member_id,
            instance_id,
            "client",
            "/host",
            protocol_type,
            tuple(Protocol(*protocol) for protocol in protocols),
            SESSION_MS,
            rebalance_ms,
            known,
            skips,
            f"id-{next(self._ids)}",
        )
        self.take(self.group.join(request, self.now_ms))
        return self.answers.get(reply)

    def sync(self, reply: Any, member_id: str, generation: int, **assignments: bytes) -> Any:
        assigned = {name.replace("_", "-"): value for name, value in assignments.items()}
        request = SyncRequest(member_id, None, generation, None, None, assigned, reply)
        self.take(self.group.sync(request, self.now_ms))
        return self.answers.get(reply)

    def leave(self, *members: tuple[str, str | None]) -> Any:
        codes, effects = self.group.leave(members, self.now_ms)
        self.take(effects)
        return codes

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Any:
        return self.group.heartbeat(member_id, instance_id, generation, self.now_ms)

    def pass_time(self, ms: int) -> None:
        """Advance the clock by `ms`. Deadlines on the way expire in order, each at its own time."""
        end_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    def take(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            if isinstance(effect, StoreGroup):
                self.stores += 1
            else:
                assert isinstance(effect, Answer)
                assert effect.reply not in self.answers, "answered twice"
                self.answers[effect.reply] = effect.result

    def stable(self, *instance_ids: str | None) -> list[str]:
        """Form a stable group with a member for each instance id. Returns the member ids, the
        leader's first."""
        for index, instance_id in enumerate(instance_ids):
            self.join(("form", index), instance_id=instance_id)
        self.pass_time(DELAY_MS * len(instance_ids) + 1)
        ids = [self.answers["form", index].member_id for index in range(len(instance_ids))]
        generation = self.group.generation_id
        leader = self.group.members.leader_id
        for member_id in sorted(ids, key=lambda each: each == leader):
            assignments = {each.replace("-", "_"): f"for {each}".encode() for each in ids}
            self.sync(("form sync", member_id), member_id, generation, **assignments)
        return sorted(ids, key=lambda each: each != leader)


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


@pytest.fixture
def make_driver() -> type[GroupDriver]:
    return GroupDriver
