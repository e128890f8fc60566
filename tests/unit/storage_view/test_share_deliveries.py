"""The states of a share group are read backwards, within bounds, and have the results of a fold of
the whole log."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_shard import ShareShard
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    SharePartitionKey,
    ShareSnapshot,
    ShareStateRecord,
    ShareUpdate,
    encode_record,
    state_partition,
)
from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from isotherm.storage_view import share_deliveries
from isotherm.storage_view.share_deliveries import (
    GroupDeliveries,
    ShareDeliveries,
    read_share_deliveries,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset, TopicPartition

GROUP = "workers"
TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_DNS, "t")
PLACES = [TopicPartition("t", number) for number in range(4)]
KEYS = [SharePartitionKey(GROUP, TOPIC_ID, place.partition) for place in PLACES]
OTHER = SharePartitionKey("others", TOPIC_ID, 0)
E = ErrorCode


class ScriptedBroker:
    """Leads the partitions of the topic of states. Each record is a batch of its own."""

    def __init__(self, partition_count: int = 1) -> None:
        self.partitions: list[list[ShareStateRecord]] = [[] for _ in range(partition_count)]
        self.log_start = 0
        self.records_at_once = 700
        self.topic_error = self.fetch_error = E.none
        self.leader_id = 1
        self.clock = SimClock()
        self.fetch_s = 0.0
        self.fetches: list[Offset] = []

    def add(self, record: ShareStateRecord) -> None:
        self.partitions[state_partition(record.key, len(self.partitions))].append(record)

    def read(self, places: Sequence[TopicPartition] = PLACES) -> GroupDeliveries:
        client = cast(ClusterClient, self)
        return read_share_deliveries(client, self.clock, GROUP, places)

    def ask_any(self, api: ApiKey, fields: Mapping[str, Any], **_: int) -> Any:
        assert api is ApiKey.METADATA
        partitions = [
            SimpleNamespace(partition_index=index, leader_id=self.leader_id)
            for index in range(len(self.partitions))
        ]
        states = SimpleNamespace(
            name=SHARE_STATE_TOPIC,
            topic_id=None,
            error_code=self.topic_error,
            partitions=[] if self.topic_error is not E.none else partitions,
        )
        topic = SimpleNamespace(name="t", topic_id=TOPIC_ID, error_code=E.none, partitions=[])
        assert [each["name"] for each in fields["topics"]] == ["t", SHARE_STATE_TOPIC]
        broker = SimpleNamespace(node_id=1, host="broker", port=9092)
        return SimpleNamespace(brokers=[broker], topics=[topic, states])

    def ask(self, address: NodeAddress, api: ApiKey, fields: Mapping[str, Any], **_: int) -> Any:
        assert address == NodeAddress("broker", 9092)
        return self._fetched(fields) if api is ApiKey.FETCH else self._offset(fields)

    def _offset(self, fields: Mapping[str, Any]) -> Any:
        ((partition,),) = (topic["partitions"] for topic in fields["topics"])
        index = partition["partition_index"]
        end = len(self.partitions[index])
        entry = SimpleNamespace(
            partition_index=index,
            offset=end if partition["timestamp"] == -1 else self.log_start,
            error_code=E.none,
        )
        topic = SimpleNamespace(name=SHARE_STATE_TOPIC, partitions=[entry])
        return SimpleNamespace(topics=[topic])

    def _fetched(self, fields: Mapping[str, Any]) -> Any:
        ((partition,),) = (topic["partitions"] for topic in fields["topics"])
        records = self.partitions[partition["partition"]]
        first = partition["fetch_offset"]
        assert self.log_start <= first < len(records)
        self.fetches.append(first)
        self.clock.advance(int(self.fetch_s * 1000))
        batches = [
            build_batch([(0, *encode_record(record), ())], base_offset=first + number)
            for number, record in enumerate(records[first : first + self.records_at_once])
        ]
        fetched = SimpleNamespace(error_code=self.fetch_error, records=b"".join(batches))
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[fetched])])


def snapshot(key: SharePartitionKey, *batches: StateBatch, start: Offset = 0) -> ShareStateRecord:
    return ShareStateRecord(key, ShareSnapshot(0, 0, 0, start, 0, batches, 0, 0))


def update(key: SharePartitionKey, *batches: StateBatch, start: Offset = -1) -> ShareStateRecord:
    return ShareStateRecord(key, ShareUpdate(0, 0, start, 0, batches))


def test_states_are_counted_from_the_start_offset_on() -> None:
    broker = ScriptedBroker()
    broker.add(snapshot(KEYS[0], StateBatch(0, 9, 1, 2), StateBatch(10, 14, 2, 4)))
    broker.add(snapshot(KEYS[1], StateBatch(0, 3, 1, 2)))
    broker.add(update(KEYS[0], StateBatch(20, 21, 4, 0), StateBatch(25, 25, 3, 0), start=7))
    broker.add(ShareStateRecord(KEYS[1], None))
    broker.add(snapshot(KEYS[2]))
    read = broker.read()
    assert read == GroupDeliveries(
        {PLACES[0]: ShareDeliveries(3, 5, 3, 4), PLACES[2]: ShareDeliveries()}, {}
    )
    assert broker.read([]) == GroupDeliveries()


def random_log(seed: int, size: int) -> list[ShareStateRecord]:
    """Quiet share partitions, a busy one, and those of another group."""
    draw = random.Random(seed)
    records = [snapshot(key) for key in (*KEYS[:3], OTHER)]
    for _ in range(size):
        key = draw.choice((KEYS[0], OTHER)) if draw.random() < 0.999 else draw.choice(KEYS[:3])
        first = draw.randrange(100)
        last = first + draw.randrange(5)
        batch = StateBatch(first, last, draw.randrange(1, 4), draw.choice((0, 2, 4)))
        kind = draw.random()
        if kind < 0.99:
            records.append(update(key, batch, start=draw.choice((-1, first))))
        elif kind < 0.998:
            records.append(snapshot(key, batch, start=first))
        else:
            records += [ShareStateRecord(key, None), snapshot(key)]
    return records


@pytest.mark.parametrize("seed", range(4))
def test_reading_backwards_gives_the_states_of_the_whole_log(seed: int) -> None:
    broker = ScriptedBroker()
    shard = ShareShard(0, 500)
    broker.log_start = 3000 * (seed % 2)
    for offset, record in enumerate(random_log(seed, 9000)):
        broker.add(record)
        if offset >= broker.log_start:
            shard.replay(record, offset)
    states = {
        place: ShareDeliveries.of(shard.states[key].snapshot)
        for place, key in zip(PLACES, KEYS, strict=True)
        if key in shard.states
    }
    assert len(states) >= 2
    assert broker.read() == GroupDeliveries(states, {})


def test_states_near_the_end_are_read_without_the_rest() -> None:
    broker = ScriptedBroker()
    for _ in range(5000):
        broker.add(update(OTHER))
    broker.add(snapshot(KEYS[0], StateBatch(0, 1, 1, 2)))
    assert broker.read(PLACES[:1]).by_partition == {PLACES[0]: ShareDeliveries(2)}
    assert min(broker.fetches) >= 3000


def test_what_cannot_be_read_has_a_reason() -> None:
    broker = ScriptedBroker()
    broker.add(snapshot(KEYS[0]))
    broker.topic_error = E.topic_authorization_failed
    reason = f"{SHARE_STATE_TOPIC}: TOPIC_AUTHORIZATION_FAILED"
    assert broker.read(PLACES[:1]) == GroupDeliveries({}, {PLACES[0]: reason})
    broker.topic_error, broker.fetch_error = E.none, E.topic_authorization_failed
    (reason,) = broker.read(PLACES[:1]).errors.values()
    assert "refuses the read" in reason
    assert "TOPIC_AUTHORIZATION_FAILED" in reason
    broker.fetch_error, broker.leader_id = E.none, -1
    (reason,) = broker.read(PLACES[:1]).errors.values()
    assert "no leader" in reason


def test_reading_ends_in_time_and_the_other_partitions_have_their_states() -> None:
    broker = ScriptedBroker(partition_count=50)
    indexes = [state_partition(key, 50) for key in KEYS]
    quick, slow = PLACES[indexes.index(min(indexes))], PLACES[indexes.index(max(indexes))]
    for place in (quick, slow):
        broker.add(snapshot(KEYS[place.partition]))
    broker.fetch_s = share_deliveries.READ_S
    read = broker.read([slow, quick])
    assert list(read.by_partition) == [quick]
    assert "takes too long" in read.errors[slow]


def test_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_deliveries, "KEPT_BYTES_MAX", 1000)
    broker = ScriptedBroker()
    broker.add(snapshot(KEYS[0], StateBatch(0, 0, 1, 2)))
    for offset in range(50):
        broker.add(update(KEYS[0], StateBatch(offset, offset, 1, 2)))
    (reason,) = broker.read(PLACES[:1]).errors.values()
    assert "too large" in reason
