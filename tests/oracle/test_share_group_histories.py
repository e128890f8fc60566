"""A share group of Kafka's and one of ours get the same random heartbeats: they give the same
answers, and write the same records.

The records are compared after each request. Hashes of the metadata differ, so do times, and which
of equal shares a member gets (`test_share_assignments` compares that): of an assignment its size is
compared.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
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
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    decode_share_record,
)
from isotherm.broker.coordinators.groups.share_member import ShareHeartbeat
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.protocol.api_keys import ApiKey
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.raw_requests import ask, read_answer, request_frame
from tests.support.conditions import wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

E = ErrorCode
STEPS = 40
# Divisible by any number of members, so that all shares are equal.
PARTITIONS = 12
MEMBERS = "abcd"
MAX_SIZE = 3
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.max.size": str(MAX_SIZE),
    "group.share.max.share.sessions": "10",
    # The test's own pace removes no member.
    "group.share.session.timeout.ms": "3600000",
    "group.share.max.session.timeout.ms": "3600000",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.assignment.interval.ms": "0",
}
OFFSETS_TOPIC = "__consumer_offsets"
NOT_YET = {E.coordinator_not_available, E.coordinator_load_in_progress, E.not_coordinator}


class Kafka:
    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS) for name in "tu"]
        for created in admin.create_topics(topics).values():
            created.result(300)
        self.topic_ids: dict[str, uuid.UUID] = {}

        def are_shown() -> bool:
            asked = [{"topic_id": str(uuid.UUID(int=0)), "name": name} for name in "tu"]
            answer = self.call("METADATA", 12, topics=asked)
            self.topic_ids = {
                topic.name: topic.topic_id for topic in answer.topics if topic.topic_id
            }
            return len(self.topic_ids) == len(asked)

        wait_until(are_shown, "the topics")

        def is_available() -> bool:
            self.call("FIND_COORDINATOR", 6, key_type=0, coordinator_keys=["x"])
            return self.heartbeat("x", "a", 5, None).error_code not in NOT_YET

        wait_until(is_available, "the group coordinator")
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "reader",
                "fetch.wait.max.ms": 5,
            }
        )
        self._reader.assign([TopicPartition(OFFSETS_TOPIC, 0, 0)])
        self._read = 0

    def close(self) -> None:
        self._reader.close()

    def call(self, api: str, version: int, **fields: Any) -> Any:
        payload = ask(self._servers, request_frame(ApiKey[api], version, fields))
        assert isinstance(payload, bytes), payload
        return read_answer(ApiKey[api], version, payload)

    def heartbeat(self, group: str, member: str, epoch: int, names: Any) -> Any:
        return self.call(
            "SHARE_GROUP_HEARTBEAT",
            1,
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=names,
        )

    def new_records(self) -> list[GroupRecord]:
        """Of share groups, since the last call."""
        partition = TopicPartition(OFFSETS_TOPIC, 0)
        _, end = self._reader.get_watermark_offsets(partition, timeout=300)
        records = []
        while self._read < end:
            for message in self._reader.consume(end - self._read, 60):
                assert message.error() is None
                self._read = message.offset() + 1
                record = decode_share_record(message.key(), message.value())
                if record is not None:
                    encoded = encode_key(record.key), encode_value(record.value)
                    assert encoded == (message.key(), message.value())
                    records.append(record)
        return records


class Isotherm:
    """Groups by their ids, in place of a coordinator."""

    def __init__(self, topic_ids: dict[str, uuid.UUID]) -> None:
        topics = {
            name: SimpleNamespace(name=name, topic_id=topic_id, partitions=range(PARTITIONS))
            for name, topic_id in topic_ids.items()
        }
        image: Any = SimpleNamespace(
            end_offset=1,
            topics_by_name=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
        )
        self.catalog = TopicCatalog(image)
        self.groups: dict[str, ShareGroup] = {}

    def heartbeat(
        self, group_id: str, member_id: str, epoch: int, names: Any
    ) -> tuple[Any, list[GroupRecord], bool]:
        """The answer, the records, and whether partitions are to be initialized."""
        group = self.groups.get(group_id)
        if group is None:
            if epoch != 0:
                return (E.group_id_not_found, None, 0, None), [], False
            group = self.new_group(group_id)
        before, group = group, group.copy()
        try:
            if epoch == -1:
                records = group.leave(member_id, self.catalog, 0)
                self.groups[group_id] = group
                return (E.none, member_id, epoch, None), records, False
            subscribed = None if names is None else frozenset(names)
            beat = ShareHeartbeat(member_id, epoch, None, "raw", "/127.0.0.1", subscribed)
            kept = before.keep_alive(beat, self.catalog, 0)
            result, records = group.heartbeat(beat, self.catalog, 0, 0)
        except MemberRejectedError as error:
            return (error.code, None, 0, None), [], False
        if kept is not None:
            assert (kept, []) == (result, records)
        pending = bool(result.uninitialized)
        if pending:
            partitions = {key: topic.partitions for key, topic in result.uninitialized.items()}
            records += group.initialized(partitions, self.catalog, 0)
        self.groups[group_id] = group
        size = None if result.assigned is None else len(result.assigned)
        return (E.none, result.member_id, result.epoch, size), records, pending

    def change(self, group_id: str, method: str, *arguments: Any) -> tuple[E, Any, list[Any]]:
        """The error, and what a step of deletion or alteration gives."""
        found = self.groups.get(group_id)
        if found is None and method != "begin_alteration":
            return E.group_id_not_found, {}, []
        group = (found or self.new_group(group_id)).copy()
        try:
            partitions, records = getattr(group, method)(*arguments, self.catalog, 0)
        except MemberRejectedError as error:
            return error.code, {}, []
        self.groups[group_id] = group
        return E.none, partitions, records

    @staticmethod
    def new_group(group_id: str) -> ShareGroup:
        return ShareGroup(group_id, ShareGroupSettings(45_000, 5_000, 0, 30_000, MAX_SIZE))


@pytest.fixture(scope="module")
def kafka(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("kafka")
    with running_kafka(directory, {**EAGER_SETTINGS, **SETTINGS}) as server:
        client = Kafka(server.bootstrap_server)
        yield client
        client.close()


class History:
    """Both groups, and the requests that they have had."""

    def __init__(self, kafka: Kafka, group_id: str) -> None:
        self.kafka, self.group_id = kafka, group_id
        self.isotherm = Isotherm(kafka.topic_ids)
        self.epochs = dict.fromkeys(MEMBERS, 0)
        # What Isotherm reads of Kafka's records.
        self.read = Isotherm.new_group(group_id)
        # Of the assignments that members have got.
        self.sizes: dict[str, int] = {}
        self.steps: list[Any] = []
        self._hashes: list[list[int]] = [[], []]
        kafka.new_records()

    def beat(self, member: str, epoch: int, names: Any) -> Any:
        """The answer, which both have given."""
        found, records, initializes = self.isotherm.heartbeat(self.group_id, member, epoch, names)
        answer = self.kafka.heartbeat(self.group_id, member, epoch, names)
        assigned = answer.assignment
        size = (
            None if assigned is None else sum(len(e.partitions) for e in assigned.topic_partitions)
        )
        expected = (answer.error_code, answer.member_id, answer.member_epoch, size)
        written = self._written()
        if initializes:
            wait_until(lambda: self._has_initialized(written), "the states")
        self.steps.append((member, epoch, names, expected))
        shown = "\n".join(map(str, self.steps[-20:]))
        if epoch > 0 and names is None and None in (found[3], size):
            # Other partitions, but as many: only one of the two has chosen the same ones again.
            found, expected = (
                (*each[:3], None if each[3] == self.sizes.get(member) else each[3])
                for each in (found, expected)
            )
        assert found == expected, shown
        if size is not None:
            self.sizes[member] = size
        assert self._shown(1, records) == self._shown(0, written), shown
        if answer.error_code is E.none:
            self.epochs[member] = max(0, answer.member_epoch)
        return answer

    def alter(self, offsets: dict[str, dict[int, int]]) -> None:
        group, isotherm = self.group_id, self.isotherm
        code, partitions, records = isotherm.change(group, "begin_alteration", offsets)
        if partitions:
            done = {key: topic.partitions for key, topic in partitions.items()}
            records += isotherm.groups[group].initialized(done, isotherm.catalog, 0)
        topics = [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "start_offset": offset}
                    for index, offset in of_topic.items()
                ],
            }
            for name, of_topic in offsets.items()
        ]
        answer = self.kafka.call("ALTER_SHARE_GROUP_OFFSETS", 0, group_id=group, topics=topics)
        assert answer.error_code == code
        altered = {
            (topic.topic_id, partition.partition_index)
            for topic in answer.responses
            for partition in topic.partitions
            if partition.error_code is E.none
        }
        assert altered == {
            (key, partition) for key in partitions for partition in partitions[key].partitions
        }
        written = self._written()
        if partitions:
            wait_until(lambda: self._has_initialized(written), "the states")
        assert self._shown(1, records) == self._shown(0, written)

    def delete_offsets(self, *names: str) -> None:
        group, isotherm = self.group_id, self.isotherm
        code, partitions, records = isotherm.change(group, "begin_offset_deletion", names)
        if partitions:
            records += isotherm.groups[group].end_offset_deletion(partitions, isotherm.catalog, 0)
        topics = [{"topic_name": name} for name in names]
        answer = self.kafka.call("DELETE_SHARE_GROUP_OFFSETS", 0, group_id=group, topics=topics)
        assert answer.error_code == code
        deleted = [
            response.topic_id for response in answer.responses if response.error_code is E.none
        ]
        assert set(deleted) == partitions.keys()
        assert self._shown(1, records) == self._shown(0, self._written())

    def delete_group(self) -> E:
        group, isotherm = self.group_id, self.isotherm
        code, _, records = isotherm.change(group, "begin_deletion")
        if code is E.none:
            del isotherm.groups[group]
            records += share_group_records.group_tombstones(group)
        answer = self.kafka.call("DELETE_GROUPS", 2, groups_names=[group])
        assert [result.error_code for result in answer.results] == [code]
        assert self._shown(1, records) == self._shown(0, self._written())
        return code

    def _written(self) -> list[GroupRecord]:
        """Kafka's new records."""
        records = self.kafka.new_records()
        for record in records:
            if isinstance(record.key, ShareGroupMetadataKey) and record.value is None:
                self.read = Isotherm.new_group(self.group_id)
            else:
                self.read.apply(record, 0)
        return records

    def _has_initialized(self, written: list[GroupRecord]) -> bool:
        written += self._written()
        values = [
            record.value
            for record in written
            if isinstance(record.key, ShareGroupStatePartitionMetadataKey)
        ]
        return bool(values) and not values[-1].initializing_topics

    def _shown(self, side: int, records: list[GroupRecord]) -> list[Any]:
        """The records with what is equal of both. Kafka's tables have no order of members."""
        return sorted(
            (
                record.key.__api_key__,
                getattr(record.key, "member_id", ""),
                self._value(side, record.value),
            )
            for record in records
        )

    def _value(self, side: int, value: Any) -> str:
        if value is None:
            return "tombstone"
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            fields[field.name] = getattr(value, field.name)
        if "metadata_hash" in fields:
            hashes = self._hashes[side]
            if fields["metadata_hash"] not in hashes:
                hashes.append(fields["metadata_hash"])
            fields["metadata_hash"] = hashes.index(fields["metadata_hash"])
        fields.pop("assignment_timestamp", None)
        for name in ("topic_partitions", "assigned_partitions"):
            if name in fields:
                fields[name] = sum(len(each.partitions) for each in fields[name])
        for name in ("initializing_topics", "initialized_topics", "deleting_topics"):
            if name in fields:
                fields[name] = sorted(map(str, fields[name]))
        return str(fields)

    def check_description(self) -> None:
        answer = self.kafka.call("SHARE_GROUP_DESCRIBE", 1, group_ids=[self.group_id])
        (described,) = answer.groups
        assert (self.read.group_epoch, self.read.target_epoch, self.read.shown_state) == (
            described.group_epoch,
            described.assignment_epoch,
            described.group_state,
        )
        assert {key: (each.epoch, each.assigned) for key, each in self.read.members.items()} == {
            member.member_id: (
                member.member_epoch,
                frozenset(
                    (topic.topic_id, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for member in described.members
        }
        group = self.isotherm.groups[self.group_id]
        assert (
            described.group_state,
            described.group_epoch,
            described.assignment_epoch,
            described.assignor_name,
        ) == (group.shown_state, group.group_epoch, group.target_epoch, group.assignor)
        assert {
            member.member_id: (
                member.member_epoch,
                member.client_id,
                member.client_host,
                frozenset(member.subscribed_topic_names),
                sum(len(topic.partitions) for topic in member.assignment.topic_partitions),
            )
            for member in described.members
        } == {
            member_id: (
                member.epoch,
                member.client_id,
                member.client_host,
                member.topic_names,
                len(member.assigned),
            )
            for member_id, member in group.members.items()
        }


@pytest.mark.parametrize("seed", range(3))
def test_heartbeats_are_answered_and_written_as_by_kafka(kafka: Kafka, seed: int) -> None:
    rng = random.Random(seed)
    history = History(kafka, f"seed-{seed}")
    history.beat("a", 0, ["t"])
    for _ in range(STEPS):
        member = rng.choice(MEMBERS)
        epoch = history.epochs[member]
        kind = rng.random()
        if kind < 0.15:
            epoch = -1
        elif kind < 0.3:
            epoch = max(1, epoch + rng.choice([-2, -1, 1]))
        elif kind < 0.35:
            epoch = 0
        # One topic, for which alone the order of Kafka's tables does not matter.
        names = rng.choice([["t"], ["t"], ["u"], ["missing"]])
        if epoch != 0 and rng.random() < 0.8:
            names = None
        history.beat(member, epoch, names)
    history.check_description()


def test_a_member_gets_topics_after_their_states_and_loses_what_it_gives_up(kafka: Kafka) -> None:
    history = History(kafka, "one")
    assert not history.beat("a", 0, ["u", "t"]).assignment.topic_partitions
    assigned = history.beat("a", history.epochs["a"], None).assignment.topic_partitions
    assert {topic.topic_id for topic in assigned} == set(kafka.topic_ids.values())
    # The second heartbeat finds nothing to do.
    for _ in range(2):
        assert history.beat("a", history.epochs["a"], None).assignment is None
    history.check_description()
    (assigned,) = history.beat("a", history.epochs["a"], ["u"]).assignment.topic_partitions
    assert assigned.topic_id == kafka.topic_ids["u"]
    # The previous epoch, as if the answer were lost, and one that never was.
    history.beat("a", history.epochs["a"] - 1, None)
    history.beat("a", 99, None)
    history.beat("a", -1, None)
    history.beat("a", -1, None)
    history.check_description()


def test_offsets_and_groups_are_altered_and_deleted_as_by_kafka(kafka: Kafka) -> None:
    history = History(kafka, "altered")
    history.delete_offsets("t")
    assert history.delete_group() is E.group_id_not_found
    history.alter({"t": {0: 5, 99: 1}, "missing": {0: 0}})
    history.alter({"missing": {0: 0}})
    history.beat("a", 0, ["t"])
    history.beat("a", history.epochs["a"], None)
    history.alter({"t": {1: 7}})
    history.delete_offsets("t")
    assert history.delete_group() is E.non_empty_group
    history.beat("a", -1, None)
    history.alter({"t": {1: 7}, "u": {2: 0}})
    history.delete_offsets("missing", "t")
    history.delete_offsets("t", "u")
    history.beat("b", 0, ["t", "u"])
    history.beat("b", -1, None)
    history.check_description()
    assert history.delete_group() is E.none
    history.beat("b", 5, None)
    history.beat("b", 0, ["u"])
    history.beat("b", history.epochs["b"], None)
    history.check_description()
