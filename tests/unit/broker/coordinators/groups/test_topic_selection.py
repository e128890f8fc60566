"""What the patterns of members select: what their principals may describe, matched once
(KIP-848).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.groups import topic_selection
from isotherm.broker.coordinators.groups.topic_selection import Selection, TopicSelector, Viewer
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.errors import InvalidRegularExpressionError
from isotherm.patterns import matching_names
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.framing import RequestHeader

ROOT = Principal("User", "root")
OPEN_ALONE = {"open"}
ALL = {"__consumer_offsets", "open", "secret"}


def viewer(name: str, address: str = "10.1.1.1") -> Viewer:
    header = RequestHeader(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1, "client")
    return Viewer(Principal("User", name), address, header)


ALICE = viewer("alice")


class Group:
    """A group's selections, and the cluster that it reads.

    `matched` are the patterns that were matched.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.image = SimpleNamespace(acls={}, topics_by_name=dict.fromkeys(sorted(ALL)))
        self.authorizer: Authorizer | None = Authorizer(
            self, super_users=frozenset({ROOT}), allow_without_acl=False
        )
        self.allow("open")
        self.selections: dict[str, Selection] = {}
        self.matched: list[str] = []
        self.selector = TopicSelector(self)

        def counted(pattern: str, names: Any) -> frozenset[str]:
            self.matched.append(pattern)
            return matching_names(pattern, names)

        monkeypatch.setattr(topic_selection, "matching_names", counted)

    def allow(self, topic: str, principal: str = "User:alice") -> None:
        acl = AccessControlEntryRecord(
            id=uuid.uuid4(),
            resource_type=ResourceType.TOPIC,
            resource_name=topic,
            pattern_type=PatternType.LITERAL,
            principal=principal,
            host="*",
            operation=Operation.READ,  # which includes DESCRIBE
            permission_type=Permission.ALLOW,
        )
        self.image.acls = {**self.image.acls, acl.id: acl}

    def add_topic(self, name: str) -> None:
        self.image.topics_by_name = {**self.image.topics_by_name, name: None}

    async def beat(self, member_id: str, pattern: str, seer: Viewer = ALICE) -> set[str]:
        """A heartbeat; the topics that the member's pattern selects after it."""
        changed = await self.selector.select(
            member_id, pattern, seer, self.selections, self.authorizer
        )
        self.selections |= changed
        return set(self.selections[member_id].names)

    async def refreshed(self) -> None:
        """Wait until the thread is done with the patterns that heartbeats have begun."""
        while self.selector._running:
            await asyncio.wait(list(self.selector._running.values()))


Scenario = Callable[[Group], Awaitable[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(scenario: Scenario) -> None:
        group = Group(monkeypatch)
        try:
            asyncio.run(scenario(group))
        finally:
            group.selector.close()

    return run


def test_pattern_selects_what_its_principal_may_describe(run: Any) -> None:
    async def scenario(group: Group) -> None:
        assert await group.beat("a", ".*") == OPEN_ALONE
        assert await group.beat("b", ".*", viewer("nobody")) == set()
        assert await group.beat("c", ".*", viewer("root")) == ALL
        assert {name: set(each.names) for name, each in group.selections.items()} == {
            "a": OPEN_ALONE,
            "b": set(),
            "c": ALL,
        }
        assert group.matched == [".*"], "once for all members and principals"

    run(scenario)


def test_everything_is_selected_without_an_authorizer(run: Any) -> None:
    async def scenario(group: Group) -> None:
        group.authorizer = None
        assert await group.beat("a", ".*", viewer("nobody")) == ALL

    run(scenario)


def test_rights_apply_from_the_next_heartbeat_on(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await group.beat("a", ".*")
        group.allow("secret")
        assert await group.beat("a", ".*") == {"open", "secret"}
        group.image.acls = {}
        assert await group.beat("a", ".*") == set()
        assert group.matched == [".*"]

    run(scenario)


def test_member_is_seen_by_who_sends_its_heartbeats_now(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await group.beat("a", ".*", viewer("root"))
        assert await group.beat("a", ".*") == OPEN_ALONE

    run(scenario)


def test_each_pattern_is_matched_once_however_many_members_there_are(run: Any) -> None:
    async def scenario(group: Group) -> None:
        for turn in range(3):
            for index in range(25):
                await group.beat(f"m{index}", f"(x{{1,100}})|open|{index}")
            assert len(group.matched) == len(set(group.matched)) == 25, turn

    run(scenario)


def test_heartbeat_that_changes_nothing_selects_nothing(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await group.beat("a", ".*")
        assert not await group.selector.select("a", ".*", ALICE, group.selections, group.authorizer)

    run(scenario)


def test_member_does_not_wait_for_new_topics_and_gets_them_later(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await group.beat("a", "o.*")
        await group.beat("b", "o.*", viewer("root"))
        group.add_topic("other")
        assert await group.beat("a", "o.*") == OPEN_ALONE
        await group.refreshed()
        await group.beat("a", "o.*")
        assert set(group.selections["a"].names) == OPEN_ALONE
        # Both at once, so that the group assigns its partitions once.
        assert set(group.selections["b"].names) == {"open", "other"}
        assert group.matched == ["o.*"] * 2

    run(scenario)


def test_change_of_a_topic_that_keeps_its_name_matches_nothing_again(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await group.beat("a", ".*")
        group.image.topics_by_name = dict(group.image.topics_by_name)
        assert await group.beat("a", ".*") == OPEN_ALONE
        await group.refreshed()
        assert group.matched == [".*"]

    run(scenario)


def test_members_that_join_at_once_share_one_resolution(run: Any) -> None:
    async def scenario(group: Group) -> None:
        await asyncio.gather(*(group.beat(f"m{index}", ".*") for index in range(10)))
        assert group.matched == [".*"]

    run(scenario)


def test_invalid_pattern_is_refused_each_time(run: Any) -> None:
    async def scenario(group: Group) -> None:
        for _ in range(2):
            with pytest.raises(InvalidRegularExpressionError, match=r"pattern='a\('"):
                await group.beat("a", "a(")
        assert group.selections == {}

    run(scenario)


def test_kept_results_have_a_bound(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_selection, "KEPT_NAMES_MAX", 7)

    async def scenario(group: Group) -> None:
        for index in range(5):
            assert await group.beat(f"m{index}", f".*|{index}", viewer("root")) == ALL
            assert group.selector._names_count <= 7
            assert group.selector._names_count == sum(
                len(result.names) for result in group.selector._results.values()
            )
        # A result that was dropped is made again.
        assert await group.beat("n", ".*|0") == OPEN_ALONE

    run(scenario)


def test_selection_of_a_restart_is_replaced_by_the_members_first_heartbeat(run: Any) -> None:
    async def scenario(group: Group) -> None:
        group.selections = {
            "a": Selection(".*", frozenset({"secret"})),
            "b": Selection(".*", frozenset({"secret"})),
        }
        assert await group.beat("a", ".*") == OPEN_ALONE
        assert set(group.selections["b"].names) == {"secret"}, "it is not known who b is"

    run(scenario)
