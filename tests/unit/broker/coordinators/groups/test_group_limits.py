"""Limits of requests to the group coordinator, at their borders, and the errors beyond them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH
from isotherm.broker.coordinators.groups.member_heartbeat import MemberHeartbeat
from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import Producer
from isotherm.errors import InvalidGroupIdError, InvalidRequestError, PolicyViolationError
from isotherm.types import TopicPartition
from tests.support.group_cluster import T0, Cluster, joining, run, turns

E = ErrorCode
# The longest string of a version that is not flexible.
TEXT_SIZE_MAX = 32_767


@pytest.mark.parametrize(
    ("timeout_ms", "is_valid"),
    [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)],
)
def test_session_timeout_lies_within_kafkas_default_limits(timeout_ms: int, is_valid: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        request = joining()._replace(session_timeout_ms=timeout_ms, requires_known_member_id=True)
        result = await cluster.coordinators[0].join(request)
        assert result.error is (E.member_id_required if is_valid else E.invalid_session_timeout)

    run(scenario)


def test_group_id_has_at_most_the_size_of_a_string() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]

        async def join(group_id: str) -> Any:
            request = joining()._replace(group_id=group_id, requires_known_member_id=True)
            return (await coordinator.join(request)).error

        assert await join("g" * TEXT_SIZE_MAX) is E.member_id_required
        for group_id in ("", "g" * (TEXT_SIZE_MAX + 1), "ö" * (TEXT_SIZE_MAX // 2 + 1)):
            with pytest.raises(InvalidGroupIdError):
                await join(group_id)

    run(scenario)


def test_member_and_instance_ids_have_at_most_the_size_of_a_string() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        fits = joining("m" * TEXT_SIZE_MAX)
        assert (await coordinator.join(fits)).error is E.unknown_member_id
        for request in (
            joining("m" * (TEXT_SIZE_MAX + 1)),
            joining()._replace(group_instance_id="i" * (TEXT_SIZE_MAX + 1)),
            # The new member's id begins with the client's.
            joining()._replace(client_id="c" * TEXT_SIZE_MAX),
        ):
            with pytest.raises(InvalidRequestError):
                await coordinator.join(request)

    run(scenario)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("x" * 4096, E.none),
        ("x" * 4097, E.offset_metadata_too_large),
        # Kafka counts UTF-16 units, of which this character takes two.
        ("\N{GRINNING FACE}" * 2048, E.none),
        ("\N{GRINNING FACE}" * 2048 + "x", E.offset_metadata_too_large),
    ],
)
def test_metadata_of_an_offset_has_at_most_4096_characters(
    metadata: str, expected: ErrorCode
) -> None:
    async def scenario(cluster: Cluster) -> None:
        offsets = cluster.coordinators[0].offsets
        codes = offsets.commit("g", Committer(), {T0: OffsetAndMetadata(5, metadata=metadata)})
        assert codes == {T0: expected}
        found = offsets.fetch("g", [T0])[T0].committed
        assert (found is not None) == (expected is E.none)

    run(scenario)


def test_member_of_a_group_that_is_gone_is_unknown_whatever_it_says() -> None:
    """Kafka looks for the group first, then at the protocols."""

    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        request = joining("m")._replace(protocols=())
        assert (await coordinator.join(request)).error is E.unknown_member_id
        request = joining()._replace(protocols=())
        assert (await coordinator.join(request)).error is E.inconsistent_group_protocol
        assert list(coordinator.all_groups()) == []

    run(scenario)


def test_commit_of_a_member_creates_no_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        offsets = {T0: OffsetAndMetadata(5)}
        member = Committer(generation_id=0, member_id="m")
        assert coordinator.offsets.commit("g", member, offsets) == {T0: E.group_id_not_found}
        # TxnOffsetCommit has no such error.
        codes = coordinator.commit_transactional_offsets("g", Producer(7, 0), member, offsets)
        assert codes == {T0: E.illegal_generation}
        assert list(coordinator.all_groups()) == []
        assert coordinator.offsets.commit("g", Committer(), offsets) == {T0: E.none}
        (group,) = coordinator.all_groups()
        assert group.shown_state == "Empty"

    run(scenario)


@pytest.mark.parametrize(
    ("protocol_type", "expected"),
    [("consumer", {T0: E.group_subscribed_to_topic}), ("connect", E.non_empty_group)],
)
def test_offsets_are_deleted_unless_members_may_read_them(
    protocol_type: str, expected: object
) -> None:
    """Kafka: ClassicGroup.validateOffsetDelete. Only consumers say which topics they read."""

    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(5)})
        assert coordinator.offsets.delete("g", [T0]) == {T0: E.none}
        assert coordinator.offsets.fetch("g", None) == {}
        assert coordinator.offsets.delete("other", [T0]) is E.group_id_not_found
        join = asyncio.ensure_future(
            coordinator.join(joining()._replace(protocol_type=protocol_type))
        )
        await turns()
        assert coordinator.offsets.delete("g", [T0]) == expected
        join.cancel()

    run(scenario)


def test_transactional_offset_has_the_time_of_its_commit() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        offsets = {T0: OffsetAndMetadata(5, commit_timestamp_ms=1)}
        cluster.clock.advance(5000)  # the time of deadlines is not that of the wall
        coordinator.commit_transactional_offsets("g", Producer(7, 0), Committer(), offsets)
        stable = coordinator.offsets.fetch("g", [T0], require_stable=True)[T0]
        assert (stable.committed, stable.error) == (None, E.unstable_offset_commit)
        index = coordinator.offsets_partition("g")
        coordinator.complete_transaction(index, 7, committed=True, appended=None)
        committed = coordinator.offsets.fetch("g", [T0], require_stable=True)[T0].committed
        assert committed.offset == 5
        assert committed.commit_timestamp_ms == cluster.clock.now_ms()

    run(scenario)


def test_each_offset_of_a_commit_is_as_late_as_its_record() -> None:
    """A transaction that commits replaces only what was written before its offset."""

    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        partitions = [TopicPartition("t", index) for index in range(3)]
        coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(1)})
        pending = {partition: OffsetAndMetadata(50) for partition in partitions}
        coordinator.commit_transactional_offsets("g", Producer(7, 0), Committer(), pending)
        plain = {partition: OffsetAndMetadata(60) for partition in partitions}
        coordinator.offsets.commit("g", Committer(), plain)
        index = coordinator.offsets_partition("g")
        coordinator.complete_transaction(index, 7, committed=True, appended=None)
        found = coordinator.offsets.fetch("g", partitions)
        assert [found[partition].committed.offset for partition in partitions] == [60] * 3

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "timeout_s"), [({}, 5.0), ({"offsets_commit_timeout_ms": 1500}, 1.5)]
)
def test_commit_waits_for_the_replicas_for_its_timeout_at_most(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], timeout_s: float
) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        assert coordinator.uncommitted("g") is None
        coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(1)})
        timeouts: list[float] = []
        shard = coordinator.shards.of_group("g")
        monkeypatch.setattr(shard, "wait_committed", timeouts.append)
        coordinator.uncommitted("g")
        assert timeouts == [timeout_s], "offsets.commit.timeout.ms"
        cluster.partition.replicate()
        assert coordinator.uncommitted("g") is None

    run(scenario, **settings)


def test_group_is_deleted_only_without_members() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        assert coordinator.delete_group("g") is E.group_id_not_found
        coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(5)})
        assert coordinator.delete_group("g") is E.none
        assert list(coordinator.all_groups()) == []
        assert coordinator.offsets.fetch("g", None) == {}

    run(scenario)


def test_groups_of_a_coordinator_are_bounded_however_they_are_created() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        offset = {T0: OffsetAndMetadata(5)}
        for group_id in ("a", "b"):
            assert coordinator.offsets.commit(group_id, Committer(), offset) == {T0: E.none}
        named = r"key=group\.coordinator\.groups\.max"
        with pytest.raises(PolicyViolationError, match=named):
            coordinator.offsets.commit("c", Committer(), offset)
        with pytest.raises(PolicyViolationError, match=named):
            await coordinator.join(joining()._replace(group_id="c"))
        beat = MemberHeartbeat("m", JOIN_EPOCH, topic_names=frozenset({"t"}))
        with pytest.raises(PolicyViolationError, match=named):
            await coordinator.consumer.heartbeat("c", beat)
        # Those that exist go on.
        assert coordinator.offsets.commit("b", Committer(), offset) == {T0: E.none}

    run(scenario, group_coordinator_groups_max=2)
