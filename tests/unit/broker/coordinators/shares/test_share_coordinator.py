"""The share coordinator over real logs: what it answers, what is in its log, and that a load gives
the state that was in memory."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_state import (
    BATCHES_MAX,
    BATCHES_PER_WRITE_MAX,
    StateWrite,
)
from isotherm.broker.coordinators.shares.share_state_records import (
    SharePartitionKey,
    ShareSnapshot,
    ShareUpdate,
)
from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    NotCoordinatorError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey
from tests.support.conditions import until
from tests.unit.broker.coordinators.shares.test_state_batches import by_offset

E = ErrorCode
SNAPSHOT_EVERY = "share_coordinator_snapshot_update_records_per_snapshot"
PRUNE_MS = "share_coordinator_state_topic_prune_interval_ms"
RENEW_MS = "share_coordinator_cold_partition_snapshot_interval_ms"


def write(*batches: StateBatch, start_offset: int = -1, epochs: tuple[int, int] = (-1, -1)) -> Any:
    return StateWrite(epochs[0], epochs[1], start_offset, 0, batches)


def snapshots(states: dict[Any, Any]) -> dict[Any, ShareSnapshot]:
    return {key: state.snapshot for key, state in states.items()}


async def started(broker: Any, partition: int = 0) -> SharePartitionKey:
    """A share partition whose state begins at offset 0."""
    key = SharePartitionKey("g", broker.create_topic(), partition)
    await broker.coordinator.ensure_topic()
    broker.coordinator.initialize(key, 0, 0)
    return key


def test_a_state_is_read_after_a_restart(broker: Any) -> None:
    keys = []

    async def first() -> None:
        keys.append(await started(broker))
        broker.coordinator.write(keys[0], write(StateBatch(0, 9, 1, 2), StateBatch(12, 12, 2, 4)))

    async def second() -> None:
        _, state = broker.coordinator.read(keys[0], -1)
        assert state.start_offset == 0
        assert state.batches == (StateBatch(0, 9, 1, 2), StateBatch(12, 12, 2, 4))

    broker.run(first)
    broker.run(second)


def test_a_snapshot_follows_a_full_run_of_updates(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        for offset in range(8):
            broker.coordinator.write(key, write(StateBatch(offset, offset, 1, 2)))
        values = [record.value for record in broker.records()]
        kinds = ["snapshot" if isinstance(value, ShareSnapshot) else "update" for value in values]
        assert kinds == ["snapshot", *["update"] * 3, "snapshot", *["update"] * 3, "snapshot"]
        assert [value.snapshot_epoch for value in values] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
        assert values[4].batches == (StateBatch(0, 3, 1, 2),)

    broker.run(scenario, **{SNAPSHOT_EVERY: 3})


def test_a_new_beginning_does_not_end_a_run_of_updates(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        for offset in range(2):
            broker.coordinator.write(key, write(StateBatch(offset, offset, 1, 2)))
        broker.coordinator.initialize(key, 1, 5)
        for offset in range(5, 7):
            broker.coordinator.write(key, write(StateBatch(offset, offset, 1, 2)))
        kinds = [type(record.value) for record in broker.records()]
        assert kinds == [
            ShareSnapshot, ShareUpdate, ShareUpdate, ShareSnapshot, ShareUpdate, ShareSnapshot
        ]  # fmt: skip

    broker.run(scenario, **{SNAPSHOT_EVERY: 3})


@pytest.mark.parametrize("seed", range(10))
def test_a_load_gives_the_state_in_memory(broker: Any, seed: int) -> None:
    rng = random.Random(seed)
    states: list[dict[Any, Any]] = []
    starts_of_log: list[int] = []

    async def history() -> None:
        topic_id = broker.create_topic()
        await broker.coordinator.ensure_topic()
        keys = [SharePartitionKey(group, topic_id, index) for group in "ab" for index in range(3)]
        model: dict[Any, list[StateBatch]] = {}
        starts: dict[Any, int] = {}
        for _ in range(120):
            key = rng.choice(keys)
            action = rng.choice(["initialize", "delete", *["write"] * 8, "read"])
            if action == "initialize":
                starts[key] = rng.randrange(5)
                broker.coordinator.initialize(key, -1, starts[key])
                model[key] = []
            elif action == "delete":
                broker.coordinator.delete(key)
                model.pop(key, None)
            elif key in model and action == "read":
                broker.coordinator.read(key, rng.choice([-1, 100]))
            elif key in model:
                first = rng.randrange(30)
                batch = StateBatch(first, first + rng.randrange(6), rng.randrange(4), 2)
                starts[key] = max(starts[key], rng.choice([0, 0, 0, first]))
                broker.coordinator.write(key, write(batch, start_offset=starts[key]))
                model[key].append(batch)
        states.append(next(iter(broker.coordinator._shards.active())).states)
        assert states[0].keys() == model.keys()
        for key, batches in model.items():
            # Batches below a start offset are gone, whatever the start offset is later.
            snapshot = states[0][key].snapshot
            assert snapshot.start_offset == starts[key]
            assert by_offset(snapshot.batches, 0) == by_offset(batches, starts[key])

    async def loaded() -> None:
        states.append(next(iter(broker.coordinator._shards.active())).states)

    async def pruned() -> None:
        shard = next(iter(broker.coordinator._shards.active()))
        broker.coordinator._log.prune(shard)
        starts_of_log.append(broker.state_partition().log.log_start_offset)

    broker.run(history, **{SNAPSHOT_EVERY: 4})
    broker.run(loaded, **{SNAPSHOT_EVERY: 4})
    assert states[0] == states[1]
    # A pruned log gives the same snapshots. It no longer tells how many updates were before.
    broker.run(pruned, **{SNAPSHOT_EVERY: 4})
    broker.run(loaded, **{SNAPSHOT_EVERY: 4})
    assert starts_of_log[0] > 0
    assert snapshots(states[0]) == snapshots(states[2])


def test_records_that_no_load_needs_are_deleted(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        other = key._replace(partition=1)
        broker.coordinator.initialize(other, 0, 0)
        for offset in range(10):
            broker.coordinator.write(key, write(StateBatch(offset, offset, 1, 2)))
        log = broker.state_partition().log
        # The other partition's only snapshot is the log's second record.
        await until(lambda: log.log_start_offset == 1)
        broker.coordinator.delete(other)
        await until(lambda: log.log_start_offset > 1)
        assert isinstance(broker.records()[0].value, ShareSnapshot)
        assert broker.records()[0].key == key

    broker.run(scenario, **{SNAPSHOT_EVERY: 2, PRUNE_MS: 1})


def test_an_old_snapshot_is_written_again_once(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        broker.coordinator.write(key, write(StateBatch(0, 4, 1, 2)))
        broker.clock.advance(10)
        await until(lambda: len(broker.records()) == 3)
        renewed = broker.records()[2].value
        first = broker.records()[0].value
        assert renewed.snapshot_epoch == 1
        assert renewed.batches == (StateBatch(0, 4, 1, 2),)
        assert renewed.create_timestamp_ms == first.create_timestamp_ms
        assert renewed.write_timestamp_ms > first.write_timestamp_ms
        broker.clock.advance(10)
        shard = next(iter(broker.coordinator._shards.active()))
        await broker.coordinator._renew_snapshots(shard)
        assert len(broker.records()) == 3, "nothing has changed"

    broker.run(scenario, **{RENEW_MS: 1})


def test_the_states_of_a_deleted_topic_are_deleted(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        kept = SharePartitionKey("g", broker.create_topic("u"), 0)
        broker.coordinator.initialize(kept, 0, 0)
        broker.controller.delete_topics([key.topic_id])
        shard = next(iter(broker.coordinator._shards.active()))
        await until(lambda: key not in shard.states)
        assert list(shard.states) == [kept]
        assert broker.records()[-1] == (key, None)

    broker.run(scenario)


def test_many_states_are_deleted_in_parts(broker: Any, turns: list[None]) -> None:
    async def scenario() -> None:
        key = await started(broker)
        for number in range(450):
            broker.coordinator.initialize(key._replace(group_id=f"g{number}"), 0, 0)
        turns.clear()
        broker.controller.delete_topics([key.topic_id])
        await until(lambda: broker.coordinator.share_partition_count == 0)
        assert len(turns) >= 2

    broker.run(scenario)


def test_older_epochs_are_fenced(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        _, state = broker.coordinator.read(key, 5)
        assert state.leader_epoch == 0, "the state before the read"
        assert broker.records()[-1].value == ShareUpdate(0, 5, 0, 0, ())
        before = len(broker.records())
        broker.coordinator.read(key, 5)
        with pytest.raises(FencedLeaderEpochError, match="leader_epoch=4 current=5"):
            broker.coordinator.read(key, 4)
        with pytest.raises(FencedLeaderEpochError):
            broker.coordinator.write(key, write(epochs=(-1, 4)))
        assert len(broker.records()) == before
        broker.coordinator.initialize(key, 3, 7)
        with pytest.raises(FencedStateEpochError, match="state_epoch=2 current=3"):
            broker.coordinator.write(key, write(epochs=(2, 5)))
        with pytest.raises(FencedStateEpochError):
            broker.coordinator.initialize(key, 2, 0)
        with pytest.raises(FencedLeaderEpochError):
            broker.coordinator.write(key, write(epochs=(3, 4)))
        assert len(broker.records()) == before + 1
        # A write of a newer leader does not fence: its read does.
        broker.coordinator.write(key, write(epochs=(3, 9)))
        broker.coordinator.write(key, write(epochs=(3, 5)))

    broker.run(scenario)


def test_what_is_not_there_is_refused(broker: Any) -> None:
    async def scenario() -> None:
        key = SharePartitionKey("g", broker.create_topic(), 0)
        with pytest.raises(NotCoordinatorError):
            broker.coordinator.read(key, 0)
        await broker.coordinator.ensure_topic()
        with pytest.raises(InvalidRequestError, match="not been initialized"):
            broker.coordinator.read(key, 0)
        with pytest.raises(InvalidRequestError, match="not been initialized"):
            broker.coordinator.write(key, write())
        with pytest.raises(InvalidRequestError, match="partition=-1"):
            broker.coordinator.initialize(key._replace(partition=-1), 0, 0)
        for absent in (key._replace(partition=3), key._replace(topic_id=uuid.uuid4())):
            for act in (
                lambda absent=absent: broker.coordinator.initialize(absent, 0, 0),
                lambda absent=absent: broker.coordinator.read_summary(absent),
                lambda absent=absent: broker.coordinator.delete(absent),
            ):
                with pytest.raises(UnknownTopicOrPartitionError):
                    act()
        broker.coordinator.delete(key)
        assert broker.records() == []

    broker.run(scenario)


def test_share_partitions_are_bounded(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        with pytest.raises(PolicyViolationError, match="count=1 key=share"):
            broker.coordinator.initialize(key._replace(group_id="h"), 0, 0)
        assert broker.coordinator.share_partition_count == 1
        # What is there may begin anew.
        broker.coordinator.initialize(key, 0, 5)

    broker.run(scenario, share_coordinator_share_partitions_max=1)


def test_batches_of_a_state_are_bounded(broker: Any) -> None:
    async def scenario() -> None:
        key = await started(broker)
        batches = [StateBatch(2 * offset, 2 * offset, 1, 2) for offset in range(BATCHES_MAX)]
        with pytest.raises(InvalidRequestError, match="written=10001"):
            broker.coordinator.write(key, write(*batches[: BATCHES_PER_WRITE_MAX + 1]))
        broker.coordinator.write(key, write(*batches[:BATCHES_PER_WRITE_MAX]))
        broker.coordinator.write(key, write(*batches[BATCHES_PER_WRITE_MAX:-1]))
        with pytest.raises(InvalidRequestError, match="total=20001"):
            broker.coordinator.write(key, write(*batches[-2:]))
        broker.coordinator.write(key, write(batches[-1]))

    broker.run(scenario)


def test_each_partition_is_answered_alone(broker: Any) -> None:
    async def scenario() -> None:
        topic_id = broker.create_topic()
        entries = [
            {"partition": index, "state_epoch": 0, "start_offset": 7} for index in (2, 5, 0, 2)
        ]
        topics = [{"topic_id": topic_id, "partitions": entries}]
        answer = await broker.call(
            ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, group_id="g", topics=topics
        )
        (result,) = answer.results
        assert [(partition.partition, partition.error_code) for partition in result.partitions] == [
            (0, E.none),
            (2, E.none),
            (5, E.unknown_topic_or_partition),
        ]
        # As in Kafka, the repeated entry had its effect.
        assert [record.key.partition for record in broker.records()] == [2, 0, 2]
        asked = [{"partition": index, "leader_epoch": 0} for index in (0, 1)]
        topics = [{"topic_id": topic_id, "partitions": asked}]
        for version in (0, 1):
            answer = await broker.call(
                ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, version, group_id="g", topics=topics
            )
            found, absent = answer.results[0].partitions
            assert (found.error_code, found.start_offset) == (E.none, 7)
            assert (absent.error_code, absent.start_offset) == (E.none, -1)
        answer = await broker.call(ApiKey.READ_SHARE_GROUP_STATE, 0, group_id="g", topics=topics)
        assert [partition.error_code for partition in answer.results[0].partitions] == [
            E.none,
            E.invalid_request,
        ]
        assert answer.results[0].partitions[1].error_message is not None
        answer = await broker.call(ApiKey.READ_SHARE_GROUP_STATE, 0, group_id="", topics=topics)
        assert answer.results == ()

    broker.run(scenario)
