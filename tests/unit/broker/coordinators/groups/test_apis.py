"""The group APIs in every version, as a client sees them, over a real coordinator and real logs."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import offset_fetch
from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.coordinators.groups import share_group_records
from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import Producer
from isotherm.broker.coordinators.groups.share_group import ShareGroupSettings
from isotherm.broker.error_mapping import error_code
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acl_changes import AclBinding
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.node import BrokerNode
from isotherm.broker.server.requests.context import RequestContext
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import decoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader, version_codec
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.types import TopicPartition

E = ErrorCode
TEN_S = datetime.timedelta(seconds=10)
# A subscription of version 1 to topic t with no owned partitions, and its partition 0 as an
# assignment.
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
MINE = b"\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "remote.log.storage.system.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}


def versions(api_key: ApiKey) -> list[int]:
    low, high = SERVED[api_key]
    return list(range(low, high + 1))


class Live:
    """A broker over one folder. Each `run` starts it, plays a scenario, and stops it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, scenario: Callable[[], Awaitable[None]], **settings: str) -> None:
        texts = {
            **embedded_defaults(self._directory, {}),
            **SETTINGS,
            **{name.replace("_", "."): text for name, text in settings.items()},
        }

        async def live() -> None:
            self.node = BrokerNode(parse_broker_config(texts))
            await self.node.start()
            try:
                await self.coordinator.wait_until_loaded()
                controller = self.node.services.controller
                if controller.image.topic("t") is None:
                    topic = NewTopic(name="t", num_partitions=2)
                    await self.node.services.run_control(lambda: controller.create_topics([topic]))
                await scenario()
            finally:
                await self.node.stop()

        asyncio.run(live())

    @property
    def coordinator(self) -> Any:
        return self.node.services.group_coordinator

    @property
    def topic_id(self) -> uuid.UUID:
        return self.node.services.metadata.image.topics_by_name["t"].topic_id

    async def call(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        """The response as a client decodes it."""
        header = RequestHeader(api_key, version, 1, "test")
        context = RequestContext(self.node.services, header, "127.0.0.1", "PLAINTEXT")
        request = entity_of(request_class(api_key, version), fields)
        try:
            response = APIS[api_key].handle(context, request)
            response = await response if inspect.isawaitable(response) else response
        except IsothermError as error:
            response = APIS[api_key].refuse(context, request, error_code(error))
        frame = b"".join(version_codec(api_key, version).write_response(1, response))
        response_type = response_class(api_key, version)
        entity, end = decoder(response_type)(frame, 9 if response_type.__flexible__ else 8)
        assert end == len(frame)
        return entity

    # ---- requests of one member

    def join(self, version: int = 9, member_id: str = "", **fields: Any) -> Awaitable[Any]:
        defaults = {
            "group_id": "g",
            "session_timeout": TEN_S,
            "rebalance_timeout": TEN_S,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
            "reason": None,
        }
        return self.call(ApiKey.JOIN_GROUP, version, **{**defaults, **fields})

    async def joined(self, version: int = 9) -> Any:
        response = await self.join(version)
        if response.error_code is E.member_id_required:
            response = await self.join(version, response.member_id)
        assert response.error_code is E.none
        return response

    def sync(self, joined: Any, version: int = 5, **fields: Any) -> Awaitable[Any]:
        defaults = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": joined.member_id, "assignment": MINE}],
        }
        return self.call(ApiKey.SYNC_GROUP, version, **{**defaults, **fields})

    async def stable(self) -> Any:
        joined = await self.joined()
        assert (await self.sync(joined)).assignment == MINE
        return joined

    async def commit(self, version: int = 9, offset: int = 5, **fields: Any) -> list[E]:
        """Commit offsets. Returns the codes of partitions 0, 1 and 9; 9 does not exist."""
        defaults = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": datetime.timedelta(milliseconds=-1),
            "topics": [
                {
                    "name": "t",
                    "topic_id": self.topic_id,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": offset + index,
                            "committed_leader_epoch": 3,
                            "committed_metadata": "noted",
                        }
                        for index in (0, 1, 9)
                    ],
                }
            ],
        }
        response = await self.call(ApiKey.OFFSET_COMMIT, version, **{**defaults, **fields})
        return [partition.error_code for partition in response.topics[0].partitions]

    async def fetch(self, version: int = 9, *, everything: bool = False, **fields: Any) -> Any:
        """Fetch offsets. Returns them by partition, or the error of the group."""
        topics = [{"name": "t", "topic_id": self.topic_id, "partition_indexes": (0, 1)}]
        # Up to version 7 a request has one group and no member.
        require_stable = fields.pop("require_stable", False)
        asked = {"group_id": "g", "topics": None if everything else topics}
        response = await self.call(
            ApiKey.OFFSET_FETCH,
            version,
            groups=[{**asked, "member_id": None, "member_epoch": -1, **fields}],
            require_stable=require_stable,
            **asked,
        )
        group = response.groups[0] if version >= 8 else response
        if version >= 2 and group.error_code is not E.none:
            return group.error_code
        return {
            partition.partition_index: partition.committed_offset
            if partition.error_code is E.none
            else partition.error_code
            for topic in group.topics
            for partition in topic.partitions
        }


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_member_joins_in_every_version(live: Live, version: int) -> None:
    async def scenario() -> None:
        first = await live.join(version)
        if version >= 4:
            assert first.error_code is E.member_id_required
            first = await live.join(version, first.member_id)
        assert (first.error_code, first.generation_id, first.leader) == (
            E.none,
            1,
            first.member_id,
        )
        assert first.member_id.startswith("test-")
        assert [member.member_id for member in first.members] == [first.member_id]
        unknown = await live.join(version, "stranger")
        assert unknown.error_code is E.unknown_member_id
        short = await live.join(version, session_timeout=datetime.timedelta(seconds=1))
        assert short.error_code is E.invalid_session_timeout
        nameless = await live.join(version, group_id="")
        assert nameless.error_code is E.invalid_group_id

    live.run(scenario)


def test_generation_lives_through_every_version_of_the_other_apis(live: Live) -> None:
    async def scenario() -> None:
        joined = await live.stable()
        member = {"group_id": "g", "member_id": joined.member_id, "group_instance_id": None}
        for version in versions(ApiKey.SYNC_GROUP):
            assert (await live.sync(joined, version)).assignment == MINE
            stale = await live.sync(joined, version, generation_id=7)
            assert stale.error_code is E.illegal_generation
        for version in versions(ApiKey.HEARTBEAT):
            beat = await live.call(ApiKey.HEARTBEAT, version, generation_id=1, **member)
            assert beat.error_code is E.none
            beat = await live.call(
                ApiKey.HEARTBEAT, version, generation_id=1, **{**member, "group_id": "none"}
            )
            assert beat.error_code is E.unknown_member_id
        for version in versions(ApiKey.DESCRIBE_GROUPS):
            response = await live.call(
                ApiKey.DESCRIBE_GROUPS,
                version,
                groups=("g", "none"),
                include_authorized_operations=True,
            )
            shown, missing = response.groups
            assert (shown.group_state, shown.protocol_data) == ("Stable", "range")
            assert shown.members[0].member_assignment == MINE
            assert shown.members[0].client_host == "/127.0.0.1"
            assert missing.group_state == "Dead"
            assert missing.error_code is (E.group_id_not_found if version >= 6 else E.none)
        for version in versions(ApiKey.LIST_GROUPS):
            response = await live.call(
                ApiKey.LIST_GROUPS, version, states_filter=("stable",), types_filter=()
            )
            assert [group.group_id for group in response.groups] == ["g"]
        response = await live.call(
            ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=("consumer",)
        )
        assert response.groups == ()

    live.run(scenario)


def test_a_share_group_of_a_kafka_broker_is_listed_and_keeps_its_id(live: Live) -> None:
    async def kafka() -> None:
        await live.coordinator.ensure_topic()
        shards = live.coordinator.shards
        shards.append(shards.of_group("g"), [share_group_records.epoch_record("g", 2, 0)])

    async def isotherm() -> None:
        for types in ((), ("Share",), ("classic", "consumer")):
            answer = await live.call(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=types)
            assert [listed(group) for group in answer.groups] == (
                [] if "classic" in types else [("g", "share", "Empty", "share")]
            )
        assert (await live.join()).error_code is E.inconsistent_group_protocol
        assert await live.commit() == [E.group_id_not_found] * 2 + [E.unknown_topic_or_partition]
        beat = await live.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id="g",
            member_id="a",
            member_epoch=0,
            rebalance_timeout=TEN_S,
            subscribed_topic_names=("t",),
            topic_partitions=(),
        )
        assert beat.error_code is E.group_id_not_found
        assert live.coordinator.shards.count == 1
        settings = live.coordinator.shards.share_settings("g")
        assert settings == ShareGroupSettings(50_000, 5_000, 70, 30_000, 200)

    live.run(kafka)
    live.run(
        isotherm,
        group_share_session_timeout_ms="50000",
        group_share_assignment_interval_ms="70",
    )


def listed(group: Any) -> tuple[str, ...]:
    return (group.group_id, group.protocol_type, group.group_state, group.group_type)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_member_leaves_in_every_version(live: Live, version: int) -> None:
    async def scenario() -> None:
        joined = await live.stable()
        identity = {
            "member_id": joined.member_id,
            "group_instance_id": None,
            "reason": None,
        }
        asked = {"group_id": "g", "member_id": joined.member_id, "members": [identity]}
        left = await live.call(ApiKey.LEAVE_GROUP, version, **asked)
        again = await live.call(ApiKey.LEAVE_GROUP, version, **asked)
        if version >= 3:
            assert [member.error_code for member in left.members] == [E.none]
            assert [member.error_code for member in again.members] == [E.unknown_member_id]
        else:
            assert (left.error_code, again.error_code) == (E.none, E.unknown_member_id)
        assert live.coordinator.find("g").is_empty

    live.run(scenario)


@pytest.mark.parametrize("version", [2, 9])
def test_all_offsets_of_a_group_leave_turns(
    live: Live, turns: list[None], monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(offset_fetch, "AnswerTurns", partial(AnswerTurns, 1))

    async def scenario() -> None:
        await live.commit(9, 5)
        del turns[:]
        assert await live.fetch(version, everything=True) == {0: 5, 1: 6}
        # One for each offset but the first, and one for the topic.
        assert len(turns) >= 2

    live.run(scenario)


def test_offsets_go_through_every_version(live: Live) -> None:
    async def scenario() -> None:
        for version in versions(ApiKey.OFFSET_FETCH):
            assert await live.fetch(version) == {0: -1, 1: -1}
        unknown = E.unknown_topic_or_partition
        for version in versions(ApiKey.OFFSET_COMMIT):
            assert await live.commit(version, version * 10) == [E.none, E.none, unknown]
            assert await live.fetch() == {0: version * 10, 1: version * 10 + 1}
        for version in versions(ApiKey.OFFSET_FETCH):
            assert await live.fetch(version) == {0: 100, 1: 101}
            if version >= 2:
                assert await live.fetch(version, everything=True) == {0: 100, 1: 101}
        assert await live.commit(10, topics=[_of_unknown_id()]) == [E.unknown_topic_id]

    live.run(scenario)


def test_offset_of_an_earlier_topic_of_the_same_name_is_none_by_id(live: Live) -> None:
    async def scenario() -> None:
        earlier = {
            TopicPartition("t", 0): OffsetAndMetadata(5, topic_id=uuid.UUID(int=99)),
            TopicPartition("t", 1): OffsetAndMetadata(6),  # by an older version, which stored no id
        }
        assert await live.fetch() == {0: -1, 1: -1}  # makes the topic of offsets
        live.coordinator.offsets.commit("g", Committer(), earlier)
        assert await live.fetch(9) == {0: 5, 1: 6}
        assert await live.fetch(10) == {0: -1, 1: 6}

    live.run(scenario)


def _of_unknown_id() -> dict[str, Any]:
    asked = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    return {"topic_id": uuid.UUID(int=99), "partitions": [asked]}


def test_commit_is_refused_to_strangers_and_to_the_wrong_generation(live: Live) -> None:
    async def scenario() -> None:
        of_nobody = {"generation_id_or_member_epoch": 1, "member_id": "x"}
        assert (await live.commit(9, **of_nobody))[0] is E.group_id_not_found
        assert (await live.commit(8, **of_nobody))[0] is E.illegal_generation
        joined = await live.stable()
        member = {"member_id": joined.member_id}
        assert (await live.commit(generation_id_or_member_epoch=1, **member))[0] is E.none
        stale = await live.commit(generation_id_or_member_epoch=0, **member)
        assert stale[0] is E.illegal_generation
        assert (await live.commit())[0] is E.unknown_member_id

    live.run(scenario)


def test_metadata_that_is_too_large_is_refused_for_its_partition_alone(live: Live) -> None:
    async def scenario() -> None:
        codes = await live.commit()
        assert codes[:2] == [E.offset_metadata_too_large] * 2
        assert await live.fetch() == {0: -1, 1: -1}

    live.run(scenario, offset_metadata_max_bytes="4")


def test_offsets_and_groups_are_deleted_only_when_unused(live: Live) -> None:
    async def scenario() -> None:
        topics = [{"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
        asked = {"group_id": "g", "topics": topics}
        missing = await live.call(ApiKey.OFFSET_DELETE, 0, **asked)
        assert missing.error_code is E.group_id_not_found
        await live.commit()
        joined = await live.stable()
        in_use = await live.call(ApiKey.OFFSET_DELETE, 0, **asked)
        assert [partition.error_code for partition in in_use.topics[0].partitions] == [
            E.group_subscribed_to_topic,
            E.unknown_topic_or_partition,
        ]
        for version in versions(ApiKey.DELETE_GROUPS):
            response = await live.call(ApiKey.DELETE_GROUPS, version, groups_names=("g", "none"))
            codes = [result.error_code for result in response.results]
            assert codes == [E.non_empty_group, E.group_id_not_found]
        live.coordinator.leave("g", [(joined.member_id, None)])
        deleted = await live.call(ApiKey.OFFSET_DELETE, 0, **asked)
        assert deleted.topics[0].partitions[0].error_code is E.none
        assert await live.fetch() == {0: -1, 1: 6}
        response = await live.call(ApiKey.DELETE_GROUPS, 2, groups_names=("g",))
        assert response.results[0].error_code is E.none
        assert await live.fetch() == {0: -1, 1: -1}

    live.run(scenario)
    live.run(lambda: _nothing_is_left(live))


async def _nothing_is_left(live: Live) -> None:
    assert list(live.coordinator.all_groups()) == []
    assert await live.fetch(everything=True) == {}


def test_group_is_as_it_was_after_a_restart(live: Live) -> None:
    members: list[Any] = []

    async def before() -> None:
        members.append(await live.stable())
        member = {"member_id": members[0].member_id, "generation_id_or_member_epoch": 1}
        assert (await live.commit(**member))[0] is E.none

    async def after() -> None:
        assert (await live.sync(members[0])).assignment == MINE
        assert await live.fetch() == {0: 5, 1: 6}

    live.run(before)
    live.run(after)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_transactional_offsets_count_once_the_marker_is_there(
    live: Live, committed: bool, restart: bool
) -> None:
    async def begin() -> None:
        await live.commit(offset=1)
        codes = live.coordinator.commit_transactional_offsets(
            "g",
            Producer(7, 0),
            Committer(),
            {TopicPartition("t", 0): OffsetAndMetadata(50)},
        )
        assert list(codes.values()) == [E.none]
        assert await live.fetch() == {0: 1, 1: 2}
        assert await live.fetch(require_stable=True) == {0: E.unstable_offset_commit, 1: 2}

    async def end() -> None:
        index = live.coordinator.offsets_partition("g")
        services = live.node.services
        partition = services.replica_manager.find_partition("__consumer_offsets", None, index)
        now_ms = services.clock.now_ms()
        kind = ControlRecordType.COMMIT if committed else ControlRecordType.ABORT
        marker = build_end_transaction_marker(
            kind, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms
        )
        partition.append(marker, required_acks=1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
        if not restart:
            live.coordinator.complete_transaction(index, 7, committed=committed, appended=None)
            await check()

    async def check() -> None:
        assert await live.fetch(require_stable=True) == {0: 50 if committed else 1, 1: 2}

    async def begin_and_end() -> None:
        await begin()
        await end()

    live.run(begin_and_end)
    live.run(check)


def test_offsets_without_members_expire_and_the_group_with_them(live: Live) -> None:
    async def scenario() -> None:
        await live.commit()
        shard = live.coordinator.shards.of_group("g")
        offsets = live.coordinator.offsets
        offsets.expire(shard)
        assert await live.fetch() == {0: 5, 1: 6}
        long_ago = {
            TopicPartition("t", 0): OffsetAndMetadata(9, commit_timestamp_ms=1),
        }
        offsets.commit("g", Committer(), long_ago)
        offsets.expire(shard)
        assert await live.fetch() == {0: -1, 1: 6}
        offsets.commit("other", Committer(), long_ago)
        other = live.coordinator.shards.of_group("other")
        offsets.expire(other)
        assert other.find("other") is None

    live.run(scenario)


def test_retention_that_a_client_asks_for_is_kept(live: Live) -> None:
    async def scenario() -> None:
        await live.commit(2, retention_time=datetime.timedelta(0))
        live.coordinator.offsets.expire(live.coordinator.shards.of_group("g"))
        assert await live.fetch() == {0: -1, 1: -1}

    live.run(scenario)


# ---- the consumer protocol


def beat(live: Live, version: int = 1, **fields: Any) -> Awaitable[Any]:
    defaults = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": TEN_S,
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }
    return live.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **{**defaults, **fields})


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_modern_member_joins_commits_and_leaves(live: Live, version: int) -> None:
    async def scenario() -> None:
        joined = await beat(live, version)
        assert (joined.error_code, joined.member_epoch) == (E.none, 2)
        assert joined.heartbeat_interval == datetime.timedelta(seconds=5)
        (given,) = joined.assignment.topic_partitions
        assert (given.topic_id, given.partitions) == (live.topic_id, (0, 1))
        member = {"member_id": "m", "generation_id_or_member_epoch": 2}
        assert (await live.commit(**member))[0] is E.none
        stale = await live.commit(**{**member, "generation_id_or_member_epoch": 1})
        assert stale[0] is E.stale_member_epoch
        assert await live.fetch(member_id="m", member_epoch=2) == {0: 5, 1: 6}
        assert await live.fetch(member_id="m", member_epoch=3) is E.stale_member_epoch
        assert await live.fetch(member_id="x", member_epoch=1) is E.unknown_member_id
        described = await live.call(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            version,
            group_ids=("g", "none"),
            include_authorized_operations=False,
        )
        shown, missing = described.groups
        assert (shown.group_state, shown.group_epoch, shown.assignor_name) == (
            "Stable",
            2,
            "uniform",
        )
        assert shown.members[0].assignment.topic_partitions[0].topic_name == "t"
        assert missing.error_code is E.group_id_not_found
        left = await beat(live, version, member_epoch=-1)
        assert (left.error_code, left.member_epoch) == (E.none, -1)
        fenced = await beat(live, version, member_epoch=2)
        assert fenced.error_code is E.unknown_member_id

    live.run(scenario)


def test_commit_of_an_earlier_epoch_counts_for_all_its_partitions_or_for_none(live: Live) -> None:
    """Source: Kafka OffsetMetadataManager.commitOffset, where the first partition that the member
    may not commit ends the commit."""

    async def scenario() -> None:
        await beat(live)
        # The member has partition 0 since epoch 2, and has got partition 1 in epoch 5.
        members = live.coordinator.consumer.find("g").members
        epochs = {(live.topic_id, 0): 2, (live.topic_id, 1): 5}
        members["m"] = dataclasses.replace(members["m"], epoch=5, assignment_epochs=epochs)
        member = {"member_id": "m", "generation_id_or_member_epoch": 3}
        stale = [E.stale_member_epoch, E.stale_member_epoch, E.unknown_topic_or_partition]
        assert await live.commit(**member) == stale
        assert await live.fetch() == {0: -1, 1: -1}

    live.run(scenario)


def test_version_0_lets_the_broker_name_the_member(live: Live) -> None:
    async def scenario() -> None:
        joined = await beat(live, 0, member_id="")
        assert len(joined.member_id) == 22

    live.run(scenario)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"group_id": ""}, E.invalid_request),
        ({"member_id": ""}, E.invalid_request),
        ({"member_id": " "}, E.invalid_request),
        ({"instance_id": " "}, E.invalid_request),
        ({"rack_id": " "}, E.invalid_request),
        ({"member_epoch": -3}, E.invalid_request),
        ({"member_epoch": -2}, E.invalid_request),
        ({"instance_id": ""}, E.invalid_request),
        ({"rebalance_timeout": datetime.timedelta(milliseconds=-1)}, E.invalid_request),
        ({"topic_partitions": None}, E.invalid_request),
        ({"subscribed_topic_names": None}, E.invalid_request),
        ({"server_assignor": "mine"}, E.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, E.invalid_regular_expression),
        ({"member_epoch": 3}, E.group_id_not_found),
    ],
)
def test_wrong_heartbeat_is_refused_and_makes_no_group(
    live: Live, wrong: dict[str, Any], expected: E
) -> None:
    async def scenario() -> None:
        assert (await beat(live, **wrong)).error_code is expected
        assert list(live.coordinator.all_groups()) == []

    live.run(scenario)


def test_pattern_of_a_member_selects_what_its_principal_may_describe(live: Live) -> None:
    async def scenario() -> None:
        controller = live.node.services.controller
        acl = AclBinding(2, "t", 3, "User:ANONYMOUS", "*", 3, 3)  # READ on the topic
        topics = [NewTopic(name="secret", num_partitions=3)]
        await live.node.services.run_control(lambda: controller.create_topics(topics))
        await live.node.services.run_control(lambda: controller.create_acls([acl]))
        joined = await beat(live, subscribed_topic_names=None, subscribed_topic_regex=".*")
        assert joined.error_code is E.none
        assert [partition.topic_id for partition in joined.assignment.topic_partitions] == [
            live.topic_id
        ]

    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    live.run(scenario, authorizer_class_name=authorizer)


@pytest.mark.parametrize("policy", ["bidirectional", "disabled"])
def test_group_changes_its_protocol_while_it_is_empty_or_if_the_policy_allows(
    live: Live, policy: str
) -> None:
    async def scenario() -> None:
        await beat(live)
        await beat(live, member_epoch=-1)
        joined = await live.stable()
        if policy == "disabled":
            assert (await beat(live)).error_code is E.group_id_not_found
            live.coordinator.leave("g", [(joined.member_id, None)])
        beaten = await beat(live)
        assert (beaten.error_code, beaten.member_epoch) == (
            E.none,
            2 if policy == "disabled" else joined.generation_id + 1,
        )
        (group,) = live.coordinator.all_groups()
        assert group.group_type == "consumer"
        response = await live.call(
            ApiKey.DESCRIBE_GROUPS, 6, groups=("g",), include_authorized_operations=False
        )
        assert response.groups[0].error_code is E.group_id_not_found

    async def after() -> None:
        (group,) = live.coordinator.all_groups()
        assert (group.group_type, "m" in group.members) == ("consumer", True)
        epoch = group.members["m"].epoch
        assert (await beat(live, member_epoch=epoch)).error_code is E.none

    live.run(scenario, group_consumer_migration_policy=policy)
    live.run(after)


def test_member_that_waits_must_join_the_upgraded_group(live: Live) -> None:
    async def scenario() -> None:
        joined = await live.stable()
        waiting = asyncio.ensure_future(live.join(3))
        await asyncio.sleep(0)
        beaten = await beat(live, member_id="modern")
        sent_back = await waiting
        assert sent_back.error_code is E.rebalance_in_progress
        assert live.coordinator.leave("g", [(sent_back.member_id, None)]) == [E.none]
        assert beaten.error_code is E.none
        again = await live.join(9, joined.member_id)
        assert (again.error_code, again.generation_id) == (E.none, beaten.member_epoch + 1)
        synced = await live.sync(again)
        assert synced.error_code is E.none
        # The last member of the consumer protocol leaves: the group becomes a classic one again.
        await beat(live, member_id="modern", member_epoch=-1)
        (group,) = live.coordinator.all_groups()
        assert (group.group_type, group.shown_state) == ("classic", "PreparingRebalance")
        again = await live.join(9, joined.member_id)
        assert (again.error_code, again.leader) == (E.none, joined.member_id)

    async def after() -> None:
        (group,) = live.coordinator.all_groups()
        assert (group.group_type, len(group.members)) == ("classic", 1)

    live.run(scenario)
    live.run(after)


def test_name_too_long_for_a_record_is_refused_and_no_request_waits(live: Live) -> None:
    async def scenario() -> None:
        long = "g" * 40_000
        commit = await live.commit(group_id=long)
        assert commit[0] is E.invalid_request
        assert (await beat(live, group_id=long)).error_code is E.invalid_request
        assert (await live.join(6, group_id=long)).error_code is E.invalid_group_id
        assert (await live.join(6, long)).error_code is E.invalid_request
        assert (await live.join(6, group_instance_id=long)).error_code is E.invalid_request
        assert (await beat(live, member_id=long)).error_code is E.invalid_request
        assert list(live.coordinator.all_groups()) == []
        assert (await live.join(3)).error_code is E.none

    live.run(scenario)
