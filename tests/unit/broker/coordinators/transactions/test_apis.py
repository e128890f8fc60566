"""The transaction APIs in every version, as a client sees them."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import list_transactions, produce
from isotherm.broker.apis.api_register import SERVED
from isotherm.broker.loop_turns import PART_SIZE
from isotherm.errors import CoordinatorLoadInProgressError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType
from isotherm.types import TopicPartition

E = ErrorCode
FOREVER = datetime.timedelta(minutes=5)


def versions(api_key: ApiKey) -> list[int]:
    low, high = SERVED[api_key]
    return list(range(low, high + 1))


async def init(broker: Any, version: int = 5, **fields: Any) -> Any:
    return await broker.call(
        ApiKey.INIT_PRODUCER_ID,
        version,
        **{"transactional_id": "tx", "transaction_timeout": FOREVER, **fields},
    )


async def producer_of(broker: Any) -> dict[str, int]:
    response = await init(broker)
    assert response.error_code is E.none
    return {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}


async def add(
    broker: Any, version: int, producer: dict[str, int], *indexes: int, topic: str = "t"
) -> list[E]:
    topics = [{"name": topic, "partitions": indexes}]
    legacy = {f"v3_and_below_{name}": value for name, value in producer.items()}
    legacy |= {"v3_and_below_transactional_id": "tx", "v3_and_below_topics": topics}
    batched = [{"transactional_id": "tx", "topics": topics, "verify_only": False, **producer}]
    response = await broker.call(
        ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=batched, **legacy
    )
    if version < 4:
        (result_of_topic,) = response.results_by_topic_v3_and_below
    else:
        assert response.error_code is E.none
        (transaction,) = response.results_by_transaction
        assert transaction.transactional_id == "tx"
        (result_of_topic,) = transaction.topic_results
    results = result_of_topic.results_by_partition
    assert result_of_topic.name == topic
    assert [result.partition_index for result in results] == list(indexes)
    return [result.partition_error_code for result in results]


def older(producer: dict[str, int]) -> dict[str, int]:
    return {**producer, "producer_epoch": producer["producer_epoch"] - 1}


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_gives_rising_epochs(broker: Any, version: int) -> None:
    async def scenario() -> None:
        first, second = await init(broker, version), await init(broker, version)
        assert (first.error_code, second.error_code) == (E.none, E.none)
        assert first.producer_id == second.producer_id
        assert (first.producer_epoch, second.producer_epoch) == (0, 1)

    broker.run(scenario)


@pytest.mark.parametrize(
    ("version", "code"), [(3, E.invalid_producer_epoch), (5, E.producer_fenced)]
)
def test_init_producer_id_by_a_fenced_producer(broker: Any, version: int, code: E) -> None:
    async def scenario() -> None:
        first = await producer_of(broker)
        await init(broker)
        assert (await init(broker, version, **first)).error_code is code

    broker.run(scenario)


def test_init_producer_id_with_an_illegal_timeout(broker: Any) -> None:
    async def scenario() -> None:
        response = await init(broker, transaction_timeout=datetime.timedelta(days=1))
        assert response.error_code is E.invalid_transaction_timeout
        assert (response.producer_id, response.producer_epoch) == (-1, -1)

    broker.run(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_add_partitions_adds_all_or_none(broker: Any, version: int) -> None:
    async def scenario() -> None:
        broker.create_topic(partitions=2)
        producer = await producer_of(broker)
        assert await add(broker, version, producer, 0, 7, 1) == [
            E.operation_not_attempted,
            E.unknown_topic_or_partition,
            E.operation_not_attempted,
        ]
        assert broker.coordinator.describe("tx").partitions == set()
        assert await add(broker, version, producer, 0, 1) == [E.none, E.none]
        added = broker.coordinator.describe("tx")
        assert added.partitions == {("t", 0), ("t", 1)}
        # From version 4 on a broker asks, for a client that writes without asking.
        assert added.client_transaction_version == (0 if version < 4 else 2)
        await producer_of_next(broker)
        fenced = E.invalid_producer_epoch if version < 2 else E.producer_fenced
        assert await add(broker, version, producer, 0) == [fenced]

    broker.run(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_only_brokers_add_partitions_of_internal_topics(broker: Any, version: int) -> None:
    """Source: Kafka KafkaApis.handleAddPartitionsToTxnRequest, with or without an authorizer."""

    async def scenario() -> None:
        broker.create_topic("__share_group_state")
        producer = await producer_of(broker)
        code = E.topic_authorization_failed if version < 4 else E.none
        assert await add(broker, version, producer, 0, topic="__share_group_state") == [code]
        added = set() if version < 4 else {("__share_group_state", 0)}
        assert broker.coordinator.describe("tx").partitions == added

    broker.run(scenario)


async def producer_of_next(broker: Any) -> dict[str, int]:
    """Initialize a second producer while the first one's transaction is open. Returns its id and
    epoch."""
    assert (await init(broker)).error_code is E.concurrent_transactions
    return await producer_of(broker)


@pytest.mark.parametrize("version", [3, 5])
def test_answers_about_many_partitions_leave_turns(
    broker: Any, turns: list[None], version: int
) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        del turns[:]
        await add(broker, version, producer, *range(5 * PART_SIZE))
        assert len(turns) >= 4

    broker.run(scenario)


def test_add_partitions_of_several_transactions_answers_each(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        topics = [{"name": "t", "partitions": (0,)}]
        asked = [
            {"transactional_id": "tx", "topics": topics, "verify_only": True, **producer},
            {"transactional_id": "tx", "topics": topics, "verify_only": False, **producer},
            {"transactional_id": "tx", "topics": topics, "verify_only": True, **producer},
            {"transactional_id": "", "topics": topics, "verify_only": False, **producer},
            {"transactional_id": "who", "topics": topics, "verify_only": False, **producer},
        ]
        response = await broker.call(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=asked)
        assert [
            result.topic_results[0].results_by_partition[0].partition_error_code
            for result in response.results_by_transaction
        ] == [
            E.transaction_abortable,
            E.none,
            E.none,
            E.invalid_request,
            E.invalid_producer_id_mapping,
        ]

    broker.run(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize("committed", [True, False])
def test_end_txn(broker: Any, version: int, committed: bool) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        fields = {"transactional_id": "tx", "committed": committed}
        await add(broker, 3, producer, 0)
        response = await broker.call(ApiKey.END_TXN, version, **fields, **producer)
        assert response.error_code is E.none
        ((_, epoch, marker),) = broker.markers_in()
        assert marker.type == (ControlRecordType.COMMIT if committed else ControlRecordType.ABORT)
        assert epoch == (1 if version >= 5 else 0)
        if version >= 5:
            assert (response.producer_id, response.producer_epoch) == (producer["producer_id"], 1)
        again = await broker.call(ApiKey.END_TXN, version, **fields, **producer)
        assert again.error_code is E.none
        opposite = {**fields, "committed": not committed}
        response = await broker.call(ApiKey.END_TXN, version, **opposite, **producer)
        assert response.error_code is E.invalid_txn_state
        fenced = E.invalid_producer_epoch if version < 2 else E.producer_fenced
        response = await broker.call(ApiKey.END_TXN, version, **fields, **older(producer))
        assert response.error_code is fenced

    broker.run(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_add_offsets_adds_the_partition_of_the_group(broker: Any, version: int) -> None:
    async def scenario() -> None:
        producer = await producer_of(broker)
        fields = {"transactional_id": "tx", "group_id": "g"}
        response = await broker.call(ApiKey.ADD_OFFSETS_TO_TXN, version, **fields, **producer)
        assert response.error_code is E.none
        assert broker.coordinator.describe("tx").partitions == {("__consumer_offsets", 1)}
        fenced = E.invalid_producer_epoch if version < 2 else E.producer_fenced
        response = await broker.call(
            ApiKey.ADD_OFFSETS_TO_TXN, version, **fields, **older(producer)
        )
        assert response.error_code is fenced
        fields["transactional_id"] = ""
        response = await broker.call(ApiKey.ADD_OFFSETS_TO_TXN, version, **fields, **producer)
        assert response.error_code is E.invalid_request

    broker.run(scenario)


async def commit_offsets(broker: Any, version: int, producer: dict[str, int]) -> list[E]:
    """Commit offsets in a transaction. Returns the codes of partitions 0 and 7; 7 does not
    exist."""
    partitions = [
        {
            "partition_index": index,
            "committed_offset": 5,
            "committed_leader_epoch": 2,
            "committed_metadata": None,
        }
        for index in (0, 7)
    ]
    response = await broker.call(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        transactional_id="tx",
        group_id="g",
        generation_id=4,
        member_id="m",
        group_instance_id="i",
        topics=[{"name": "t", "partitions": partitions}],
        **producer,
    )
    (topic,) = response.topics
    return [partition.error_code for partition in topic.partitions]


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_txn_offset_commit(broker: Any, version: int) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        if version < 5:
            refused = E.invalid_txn_state if version < 4 else E.transaction_abortable
            assert await commit_offsets(broker, version, producer) == [refused] * 2
            await broker.call(
                ApiKey.ADD_OFFSETS_TO_TXN, 0, transactional_id="tx", group_id="g", **producer
            )
        assert await commit_offsets(broker, version, producer) == [
            E.none,
            E.unknown_topic_or_partition,
        ]
        assert broker.coordinator.describe("tx").partitions == {("__consumer_offsets", 1)}
        ((group_id, committed_by, committer, offsets),) = broker.groups.commits
        assert (group_id, committed_by.producer_id) == ("g", producer["producer_id"])
        assert committer[:3] == ((4, "m", "i") if version >= 3 else (-1, "", None))
        offset = offsets[TopicPartition("t", 0)]
        assert (offset.offset, offset.metadata) == (5, "")
        assert offset.leader_epoch == (2 if version >= 2 else -1)
        refused = await commit_offsets(broker, version, older(producer))
        assert refused == [E.invalid_producer_epoch] * 2

        def loading(_: int) -> None:
            raise CoordinatorLoadInProgressError("offsets are being loaded")

        broker.groups.check_active = loading
        wait = E.coordinator_not_available if version < 2 else E.coordinator_load_in_progress
        assert await commit_offsets(broker, version, producer) == [wait] * 2

    broker.run(scenario)


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_write_txn_markers_ends_a_transaction_by_hand(broker: Any, version: int) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        marker = {
            "transaction_result": False,
            "topics": [{"name": "t", "partition_indexes": (0, 7)}],
            "coordinator_epoch": 9,
            "transaction_version": 0,
            **producer,
        }
        response = await broker.call(ApiKey.WRITE_TXN_MARKERS, version, markers=[marker])
        (answered,) = response.markers
        (topic,) = answered.topics
        codes = [partition.error_code for partition in topic.partitions]
        assert codes == [E.none, E.unknown_topic_or_partition]
        ((producer_id, _, written),) = broker.markers_in()
        assert producer_id == producer["producer_id"]
        assert (written.type, written.coordinator_epoch) == (ControlRecordType.ABORT, 9)
        older_marker = {**marker, "coordinator_epoch": 8}
        response = await broker.call(ApiKey.WRITE_TXN_MARKERS, version, markers=[older_marker])
        first = response.markers[0].topics[0].partitions[0]
        assert first.error_code is E.transaction_coordinator_fenced

    broker.run(scenario)


def test_write_txn_markers_for_many_partitions_lets_others_have_their_turn(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        turns = []
        loop = asyncio.get_running_loop()
        loop.call_soon(turns.append, None)
        marker = {
            "producer_id": 1,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [{"name": "t", "partition_indexes": (0,) * 100}],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }
        await broker.call(ApiKey.WRITE_TXN_MARKERS, 2, markers=[marker])
        assert turns == [None]
        assert len(broker.markers_in()) == 100

    broker.run(scenario)


def test_describe_producers_tells_the_open_transaction(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        started = await broker.coordinator.init_producer_id("tx", 1000, None)
        broker.add("tx", started, 0)
        broker.append(started)
        response = await broker.call(
            ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": (0, 7)}]
        )
        known, unknown = response.topics[0].partitions
        (producer,) = known.active_producers
        assert (producer.producer_id, producer.producer_epoch) == started
        assert (producer.last_sequence, producer.current_txn_start_offset) == (0, 0)
        assert (producer.last_timestamp, producer.coordinator_epoch) == (broker.clock.now_ms(), -1)
        assert unknown.error_code is E.unknown_topic_or_partition
        assert "partition=7" in unknown.error_message

    broker.run(scenario)


def test_describe_transactions(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic(partitions=2)
        producer = await producer_of(broker)
        await add(broker, 3, producer, 1, 0)
        response = await broker.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("tx",))
        (described,) = response.transaction_states
        assert described.error_code is E.none
        assert described.transaction_state == "Ongoing"
        assert described.transaction_timeout == FOREVER
        assert described.transaction_start_time.timestamp() * 1000 == broker.clock.now_ms()
        assert described.producer_id == producer["producer_id"]
        assert described.topics[0].partitions == (0, 1)

    broker.run(scenario)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {"empty", "open", "done"}),
        ({"state_filters": ("Ongoing", "Empty")}, {"empty", "open"}),
        ({"state_filters": ("Nonsense",)}, set()),
        ({"duration_filter": 1000}, {"done", "empty"}),
        ({"duration_filter": 0}, {"done", "empty"}),
        ({"transactional_id_pattern": "o.*|done"}, {"open", "done"}),
        ({"transactional_id_pattern": "pen"}, set()),
        ({"transactional_id_pattern": ""}, {"empty", "open", "done"}),
    ],
)
def test_list_transactions_filters(
    broker: Any, filters: dict[str, Any], expected: set[str]
) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producers = {}
        for name in ("done", "empty", "open"):
            producers[name] = await broker.coordinator.init_producer_id(name, 300_000, None)
        broker.add("done", producers["done"], 0)
        await broker.coordinator.end_transaction(
            "done", producers["done"], commit=True, client_version=0
        )
        broker.clock.advance(5000)
        broker.add("open", producers["open"], 0)
        response = await broker.call(ApiKey.LIST_TRANSACTIONS, 2, **filters)
        assert response.error_code is E.none
        found = {state.transactional_id: state for state in response.transaction_states}
        assert set(found) == expected
        states = {"done": "CompleteCommit", "empty": "Empty", "open": "Ongoing"}
        assert all(each.transaction_state == states[name] for name, each in found.items())
        unknown = ("Nonsense",) if "Nonsense" in filters.get("state_filters", ()) else ()
        assert response.unknown_state_filters == unknown
        ids = (producers["open"].producer_id,)
        response = await broker.call(ApiKey.LIST_TRANSACTIONS, 0, producer_id_filters=ids)
        assert [state.transactional_id for state in response.transaction_states] == ["open"]

    broker.run(scenario)


def test_patterns_of_list_transactions_have_a_thread_of_their_own(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    match = list_transactions.matching_names

    def noted(pattern: str, names: Any) -> Any:
        threads.append(threading.current_thread().name)
        return match(pattern, names)

    monkeypatch.setattr(list_transactions, "matching_names", noted)

    async def scenario() -> None:
        await producer_of(broker)
        response = await broker.call(ApiKey.LIST_TRANSACTIONS, 2, transactional_id_pattern="t.")
        assert [state.transactional_id for state in response.transaction_states] == ["tx"]

    broker.run(scenario)
    assert [name.rpartition("_")[0] for name in threads] == ["isotherm-transaction-patterns"]


def test_list_transactions_with_a_pattern_that_is_none(broker: Any) -> None:
    async def scenario() -> None:
        response = await broker.call(ApiKey.LIST_TRANSACTIONS, 2, transactional_id_pattern="(")
        assert response.error_code is E.invalid_regular_expression

    broker.run(scenario)


# ---- Produce


def send(
    broker: Any,
    version: int,
    producer: dict[str, int],
    transactional_id: str | None = "tx",
    base_sequence: int = 0,
) -> E:
    """Produce one transactional record to t-0."""
    now_ms = broker.clock.now_ms()
    batch = build_batch(
        [(now_ms, None, b"v", ())], base_sequence=base_sequence, is_transactional=True, **producer
    )
    partition = ProducePartition.of(0, memoryview(batch))
    topic_id = broker.controller.image.topics_by_name["t"].topic_id
    topic = ProduceTopic("t", None, [partition]) if version < 13 else None
    topic = topic or ProduceTopic(None, topic_id, [partition])
    response = produce.handle(
        broker.context(ApiKey.PRODUCE, version), ProduceRequest(transactional_id, -1, 1000, [topic])
    )
    assert response is not None
    return ErrorCode(response.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("version", "code"), [(3, E.invalid_txn_state), (11, E.transaction_abortable)]
)
def test_produce_to_a_partition_that_was_not_added_is_refused(
    broker: Any, version: int, code: E
) -> None:
    async def scenario() -> None:
        broker.create_topic(partitions=2)
        producer = await producer_of(broker)
        await add(broker, 3, producer, 1)
        assert send(broker, version, producer) is code
        assert broker.partition().log.log_end_offset == 0
        await add(broker, 3, producer, 0)
        assert send(broker, version, producer) is E.none

    broker.run(scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_produce_of_version_12_on_adds_the_partition(broker: Any, version: int) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        assert send(broker, version, producer) is E.none
        assert broker.coordinator.describe("tx").partitions == {("t", 0)}
        fields = {"transactional_id": "tx", "committed": True}
        response = await broker.call(ApiKey.END_TXN, 5, **fields, **producer)
        following = {**producer, "producer_epoch": response.producer_epoch}
        # The next transaction starts with sequence 0 under its own epoch.
        assert send(broker, version, producer) is E.invalid_producer_epoch
        assert send(broker, version, following) is E.none
        assert broker.partition().log.last_stable_offset == 2

    broker.run(scenario)


def test_first_batch_of_version_2_has_sequence_0(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic(partitions=2)
        producer = await producer_of(broker)
        assert send(broker, 12, producer, base_sequence=1) is E.out_of_order_sequence_number
        assert send(broker, 12, producer) is E.none
        assert send(broker, 12, producer, base_sequence=1) is E.none
        fields = {"transactional_id": "tx", "committed": True}
        response = await broker.call(ApiKey.END_TXN, 5, **fields, **producer)
        producer = {**producer, "producer_epoch": response.producer_epoch}
        assert send(broker, 12, producer, base_sequence=2) is E.out_of_order_sequence_number
        # A client of version 1 continues its sequence: its records and producer state may have been
        # deleted.
        broker.partition().log.remove_expired_producers(broker.clock.now_ms() + 2**40)
        await add(broker, 3, producer, 0)
        assert send(broker, 12, producer, base_sequence=2) is E.out_of_order_sequence_number
        assert send(broker, 11, producer, base_sequence=2) is E.none

    broker.run(scenario)


def test_produce_by_the_wrong_producer_is_refused(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        await add(broker, 3, producer, 0)
        assert send(broker, 9, older(producer)) is E.invalid_producer_epoch
        assert send(broker, 9, {**producer, "producer_id": 99}) is E.invalid_producer_id_mapping
        assert send(broker, 9, producer, "other") is E.invalid_producer_id_mapping
        assert send(broker, 9, producer, None) is E.transactional_id_authorization_failed
        assert broker.partition().log.log_end_offset == 0

    broker.run(scenario)


@pytest.mark.parametrize(
    ("version", "code"), [(9, E.not_enough_replicas), (12, E.not_enough_replicas)]
)
def test_produce_before_the_coordinator_is_loaded_is_tried_again(
    broker: Any, version: int, code: E
) -> None:
    producers = []

    async def before() -> None:
        broker.create_topic()
        producers.append(await producer_of(broker))

    async def after() -> None:
        assert send(broker, version, producers[0]) is code

    broker.run(before)
    broker.run(after, load=False)


def test_produce_is_not_verified_where_that_is_switched_off(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await producer_of(broker)
        assert send(broker, 9, producer) is E.none

    broker.run(scenario, transaction_partition_verification_enable=False)


# ---- refusals before a handler runs


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.WRITE_TXN_MARKERS,
    ],
)
def test_error_response_answers_every_item(broker: Any, api_key: ApiKey) -> None:
    topics = {
        ApiKey.ADD_PARTITIONS_TO_TXN: [{"name": "t", "partitions": (1, 2)}],
        ApiKey.TXN_OFFSET_COMMIT: [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 1, "committed_offset": 1, "committed_metadata": None}
                ],
            }
        ],
        ApiKey.DESCRIBE_PRODUCERS: [{"name": "t", "partition_indexes": (1, 2)}],
    }.get(api_key, [{"name": "t", "partition_indexes": (1, 2)}])
    ids = {"producer_id": 1, "producer_epoch": 2}
    transaction = {"transactional_id": "a", "verify_only": False, "topics": topics, **ids}
    fields: dict[str, Any] = {
        ApiKey.ADD_PARTITIONS_TO_TXN: {
            "transactions": [transaction],
            "v3_and_below_transactional_id": "a",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 2,
            "v3_and_below_topics": topics,
        },
        ApiKey.TXN_OFFSET_COMMIT: {
            "transactional_id": "a",
            "group_id": "g",
            "topics": topics,
            **ids,
        },
        ApiKey.DESCRIBE_PRODUCERS: {"topics": topics},
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ("a", "b")},
        ApiKey.WRITE_TXN_MARKERS: {
            "markers": [
                {"transaction_result": True, "coordinator_epoch": 1, "topics": topics, **ids}
            ]
        },
    }[api_key]

    async def scenario() -> None:
        for version in versions(api_key):
            answered = await broker.refused(api_key, version, E.unknown_server_error, **fields)
            assert "unknown_server_error" in repr(answered)

    broker.run(scenario)
