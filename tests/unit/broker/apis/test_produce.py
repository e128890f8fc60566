"""Produce: what is appended and answered, which batches are refused, and waits for flushes and
kernels."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import struct
import threading
import uuid
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import batch_checks, produce
from isotherm.broker.server.requests.context import HangUpError
from isotherm.broker.threads.kernel_warm_up import KernelWarmUp
from isotherm.config.topic import TopicConfig
from isotherm.errors import InvalidRequestError
from isotherm.protocol.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
)
from isotherm.record import validation
from isotherm.record.batch import CompressionType, build_batch
from isotherm.record.conditional_batch import set_condition
from isotherm.record.few_records import FEW_RECORDS_MAX
from isotherm.record.validation import AppendOrigin
from isotherm.types import REMOTE_LOG_METADATA_TOPIC
from tests.support.led_topic import lead_topic

TOPIC_ID = uuid.UUID(int=7)


def batch(parts: Any, *values: bytes, **settings: Any) -> bytearray:
    now_ms = parts.clock.now_ms()
    return build_batch([(now_ms, b"k", value, ()) for value in values], **settings)


def request(
    records: bytearray | None, *, acks: int = -1, topic: str | None = "t", partition: int = 0
) -> ProduceRequest:
    view = None if records is None else memoryview(records)
    topic_id = TOPIC_ID if topic is None else None
    topics = [ProduceTopic(topic, topic_id, [ProducePartition.of(partition, view)])]
    return ProduceRequest(None, acks, 1000, topics)


def answer(parts: Any, wanted: ProduceRequest, version: int = 9) -> ProducePartitionResponse:
    response = produce.handle(parts.context(0, version), wanted)
    assert response is not None
    ((partition,),) = [topic.partitions for topic in response.topics]
    return partition


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("topic", ["t", None])
def test_produce_answers_the_base_offset(parts: Any, acks: int, topic: str | None) -> None:
    async def scenario() -> None:
        first = answer(parts, request(batch(parts, b"a", b"b"), acks=acks, topic=topic))
        second = answer(parts, request(batch(parts, b"c"), acks=acks, topic=topic))
        assert (first.error_code, first.base_offset, first.log_append_time_ms) == (0, 0, -1)
        assert (second.error_code, second.base_offset, second.log_start_offset) == (0, 2, 0)
        log = parts.partition().log
        assert log.log_end_offset == log.high_watermark == 3
        assert log.leader_epochs.latest == (3, 0)

    parts.run(scenario)


def test_produce_without_acks_appends_and_answers_nothing(parts: Any) -> None:
    async def scenario() -> None:
        wanted = request(batch(parts, b"a"), acks=0)
        assert produce.handle(parts.context(0, 9), wanted) is None
        assert parts.partition().log.log_end_offset == 1

    parts.run(scenario)


def test_produce_without_acks_hangs_up_on_an_error(parts: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(HangUpError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            produce.handle(parts.context(0, 9), request(batch(parts, b"a"), acks=0, partition=9))

    parts.run(scenario)


def test_produce_with_append_time_answers_it(parts: Any) -> None:
    async def scenario() -> None:
        parts.replica_manager.update_config(
            "t", TopicConfig(message_timestamp_type="LogAppendTime")
        )
        assert answer(parts, request(batch(parts, b"a"))).log_append_time_ms == parts.clock.now_ms()

    parts.run(scenario)


def corrupt(records: bytearray, position: int, data: bytes) -> bytearray:
    records[position : position + len(data)] = data
    return records


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda records: corrupt(records, 65, b"\xff"), ErrorCode.corrupt_message),  # payload
        (lambda records: corrupt(records, 17, b"\0\0\0\0"), ErrorCode.corrupt_message),  # CRC
        (lambda records: corrupt(records, 8, struct.pack(">i", 9)), ErrorCode.corrupt_message),
        (lambda records: corrupt(records, 8, b"\x7f\xff\xff\xff"), ErrorCode.invalid_record),
        (lambda records: records[:-1], ErrorCode.invalid_record),
        (lambda records: records[:30], ErrorCode.invalid_record),
        (lambda records: corrupt(records, 16, b"\x01"), ErrorCode.invalid_record),
        (lambda records: corrupt(records, 16, b"\x00"), ErrorCode.invalid_record),
        (lambda records: records + records, ErrorCode.invalid_record),
        (lambda records: bytearray(), ErrorCode.invalid_record),
        (lambda records: None, ErrorCode.invalid_record),
    ],
)
def test_produce_of_damaged_batches_is_refused_whole(
    parts: Any, damage: Any, code: ErrorCode
) -> None:
    async def scenario() -> None:
        response = answer(parts, request(damage(batch(parts, b"abcdef"))))
        assert response.error_code == code
        assert response.base_offset == -1
        assert response.error_message
        assert parts.partition().log.log_end_offset == 0

    parts.run(scenario)


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("absent", 0, ErrorCode.unknown_topic_or_partition),
        ("t", 9, ErrorCode.unknown_topic_or_partition),
        ("t", -1, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_produce_to_an_unknown_partition_says_so(
    parts: Any, topic: str, partition: int, code: ErrorCode
) -> None:
    async def scenario() -> None:
        wanted = request(batch(parts, b"a"), topic=topic, partition=partition)
        assert answer(parts, wanted).error_code == code

    parts.run(scenario)


def test_produce_to_an_unknown_topic_id_says_so(parts: Any) -> None:
    async def scenario() -> None:
        records = memoryview(batch(parts, b"a"))
        topics = [ProduceTopic(None, uuid.UUID(int=9), [ProducePartition.of(0, records)])]
        response = answer(parts, ProduceRequest(None, -1, 1000, topics), version=13)
        assert response.error_code == ErrorCode.unknown_topic_id

    parts.run(scenario)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_produce_with_strange_acks_is_refused(parts: Any, acks: int) -> None:
    async def scenario() -> None:
        response = answer(parts, request(batch(parts, b"a"), acks=acks))
        assert response.error_code == ErrorCode.invalid_required_acks
        assert parts.partition().log.log_end_offset == 0

    parts.run(scenario)


def test_produce_of_zstd_needs_version_7(parts: Any) -> None:
    async def scenario() -> None:
        records = batch(parts, b"a", compression=CompressionType.ZSTD)
        refused = answer(parts, request(bytearray(records)), version=6)
        assert refused.error_code == ErrorCode.unsupported_compression_type
        assert answer(parts, request(records), version=7).error_code == 0

    parts.run(scenario)


def test_produce_of_a_transaction_without_a_transactional_id_is_refused(parts: Any) -> None:
    async def scenario() -> None:
        records = batch(
            parts, b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        expected = ErrorCode.transactional_id_authorization_failed
        assert answer(parts, request(records)).error_code == expected
        assert parts.partition().log.last_stable_offset == 0

    parts.run(scenario)


@pytest.mark.parametrize(
    "topic",
    [
        REMOTE_LOG_METADATA_TOPIC,
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
    ],
)
def test_produce_to_a_topic_of_the_broker_is_refused(parts: Any, topic: str) -> None:
    async def scenario() -> None:
        lead_topic(parts.replica_manager, topic, uuid.UUID(int=8), {0: 0}, TopicConfig())
        wanted = request(batch(parts, b"a"), topic=topic)
        assert answer(parts, wanted).error_code == ErrorCode.invalid_topic_exception

    parts.run(scenario)


def test_brokers_append_metadata_only_where_the_log_ends_as_they_say(parts: Any) -> None:
    async def scenario() -> None:
        parts.services.embedded_controller = None  # a member of a cluster
        topic_id = uuid.UUID(int=8)
        lead_topic(
            parts.replica_manager, REMOTE_LOG_METADATA_TOPIC, topic_id, {0: 0}, TopicConfig()
        )

        def append_at(end: int, *values: bytes) -> ProducePartitionResponse:
            records = batch(parts, *values)
            set_condition(records, end)
            return answer(parts, request(records, topic=REMOTE_LOG_METADATA_TOPIC))

        first = append_at(0, b"a", b"b")
        assert (first.error_code, first.base_offset) == (0, 0)
        for end in (0, 1, 3):
            refused = append_at(end, b"late")
            assert refused.error_code == ErrorCode.operation_not_attempted
        second = append_at(2, b"c")
        assert (second.error_code, second.base_offset) == (0, 2)
        without = answer(parts, request(batch(parts, b"d"), topic=REMOTE_LOG_METADATA_TOPIC))
        assert (without.error_code, without.base_offset) == (0, 3)

    parts.run(scenario)


def test_other_topics_know_no_conditions(parts: Any) -> None:
    async def scenario() -> None:
        records = batch(parts, b"a")
        set_condition(records, 0)
        assert answer(parts, request(records)).error_code == ErrorCode.corrupt_message

    parts.run(scenario)


def test_one_replica_is_enough_if_the_topic_has_no_more(parts: Any) -> None:
    """min.insync.replicas is at most the number of replicas (Kafka: effectiveMinIsr)."""

    async def scenario() -> None:
        parts.replica_manager.update_config("t", TopicConfig(min_insync_replicas=2))
        assert answer(parts, request(batch(parts, b"a"), acks=-1)).error_code == 0

    parts.run(scenario)


def test_idempotent_produce_is_deduplicated_and_checked(parts: Any) -> None:
    async def scenario() -> None:
        def send(sequence: int, epoch: int = 0) -> ProducePartitionResponse:
            records = batch(
                parts, b"a", producer_id=5, producer_epoch=epoch, base_sequence=sequence
            )
            return answer(parts, request(records))

        assert [send(sequence).base_offset for sequence in (0, 1)] == [0, 1]
        again = send(1)
        assert (again.error_code, again.base_offset) == (0, 1)
        assert send(7).error_code == ErrorCode.out_of_order_sequence_number
        assert send(0, epoch=1).error_code == 0
        assert send(2, epoch=0).error_code == ErrorCode.invalid_producer_epoch
        assert parts.partition().log.log_end_offset == 3

    parts.run(scenario)


def test_produce_error_in_one_partition_leaves_the_other(parts: Any) -> None:
    async def scenario() -> None:
        partitions = [
            ProducePartition.of(index, memoryview(batch(parts, b"a"))) for index in (0, 9, 1)
        ]
        wanted = ProduceRequest(None, -1, 1000, [ProduceTopic("t", None, partitions)])
        response = produce.handle(parts.context(0, 9), wanted)
        assert response is not None
        assert [partition.error_code for partition in response.topics[0].partitions] == [0, 3, 0]

    parts.run(scenario)


# Flushing


def flushed_every(parts: Any, count: int) -> None:
    for index in (0, 1):
        parts.partition(index).log.update_config(TopicConfig(flush_messages=count))


def syncs(parts: Any, partition: int = 0) -> int:
    (segment,) = parts.partition(partition).log.segments()
    return int(parts.fs.sync_counts[segment.log_path])


def test_produce_is_answered_once_flush_messages_are_on_disk(parts: Any) -> None:
    async def scenario() -> None:
        flushed_every(parts, 3)
        assert answer(parts, request(batch(parts, b"a", b"b"))).error_code == 0
        assert syncs(parts) == 0
        response = await produce.handle(parts.context(0, 9), request(batch(parts, b"c")))
        assert response.topics[0].partitions[0].base_offset == 2
        assert syncs(parts) == 1
        assert parts.partition().log.recovery_point == 3
        assert answer(parts, request(batch(parts, b"d"))).error_code == 0
        assert syncs(parts) == 1

    parts.run(scenario)


def test_flush_blocks_no_other_request(parts: Any) -> None:
    async def scenario() -> None:
        flushed_every(parts, 2)
        disk_is_slow = threading.Event()
        parts.control.submit(disk_is_slow.wait)
        waiting = asyncio.ensure_future(
            produce.handle(parts.context(0, 9), request(batch(parts, b"a", b"b")))
        )
        await asyncio.sleep(0)
        assert answer(parts, request(batch(parts, b"c"), partition=1)).error_code == 0
        assert not waiting.done()
        disk_is_slow.set()
        assert (await waiting).topics[0].partitions[0].error_code == 0

    parts.run(scenario)


@pytest.mark.parametrize("acks", [0, -1])
def test_flush_that_fails_is_reported(parts: Any, acks: int) -> None:
    async def scenario() -> None:
        flushed_every(parts, 1)
        waiting = produce.handle(parts.context(0, 9), request(batch(parts, b"a"), acks=acks))
        parts.fs.fail(parts.partition().log.directory)
        if acks == 0:
            with pytest.raises(HangUpError, match="KAFKA_STORAGE_ERROR"):
                await waiting
        else:
            partition = (await waiting).topics[0].partitions[0]
            assert partition.error_code == ErrorCode.kafka_storage_error
        parts.fs.heal()

    parts.run(scenario)


def test_record_of_a_coordinator_is_on_disk_on_return(parts: Any) -> None:
    async def scenario() -> None:
        flushed_every(parts, 1)
        parts.partition().append(
            batch(parts, b"a"), required_acks=1, now_ms=0, origin=AppendOrigin.COORDINATOR
        )
        assert syncs(parts) == 1

    parts.run(scenario)


# Waiting for the compiled kernels


MANY = [b"v"] * (FEW_RECORDS_MAX + 1)


def test_many_records_before_the_kernels_are_loaded_wait_for_them(parts: Any) -> None:
    async def scenario() -> None:
        loaded = threading.Event()
        parts.services.kernels = KernelWarmUp(loaded.wait)
        waiting = asyncio.ensure_future(
            produce.handle(parts.context(0, 9), request(batch(parts, *MANY)))
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        assert parts.partition().log.log_end_offset == 0
        loaded.set()
        assert (await waiting).topics[0].partitions[0].error_code == 0
        assert parts.partition().log.log_end_offset == len(MANY)

    parts.run(scenario)


def test_few_records_before_the_kernels_are_loaded_do_not_wait_but_have_them_loaded(
    parts: Any,
) -> None:
    async def scenario() -> None:
        begun, loaded = threading.Event(), threading.Event()

        def load() -> None:
            begun.set()
            loaded.wait()

        parts.services.kernels = kernels = KernelWarmUp(load)
        parts.partition().log.update_config(TopicConfig(cleanup_policy=("compact",)))
        for number in range(3):
            assert answer(parts, request(batch(parts, b"a"))).base_offset == number
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        assert answer(parts, request(batch(parts, b"a"))).base_offset == 3
        assert not kernels.is_ready
        loaded.set()
        await kernels.wait()
        assert answer(parts, request(batch(parts, b"a"))).base_offset == 4

    parts.run(scenario)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda records: records + b"x", ErrorCode.corrupt_message),
        (lambda records: records[:-1] + b"x", ErrorCode.corrupt_message),
        (lambda records: b"", ErrorCode.invalid_record),
    ],
    ids=["longer", "crc", "none"],
)
def test_wrong_records_before_the_kernels_are_loaded_are_refused_as_after(
    parts: Any, change: Any, error: ErrorCode
) -> None:
    async def scenario() -> None:
        records = bytearray(change(batch(parts, b"a")))
        parts.services.kernels = KernelWarmUp(lambda: None)
        before = produce.handle(parts.context(0, 9), request(records))
        before = await before if isinstance(before, Awaitable) else before
        await parts.services.kernels.wait()
        assert before.topics[0].partitions == [answer(parts, request(records))]
        assert before.topics[0].partitions[0].error_code == error

    parts.run(scenario)


def test_partition_that_is_not_there_is_refused_before_the_kernels_are_loaded(parts: Any) -> None:
    async def scenario() -> None:
        parts.services.kernels = KernelWarmUp(lambda: None)
        wanted = request(batch(parts, b"a"), topic="nowhere")
        response = await produce.handle(parts.context(0, 9), wanted)
        code = response.topics[0].partitions[0].error_code
        assert code == ErrorCode.unknown_topic_or_partition

    parts.run(scenario)


@pytest.mark.parametrize("failure", [None, ImportError("no kernels")])
def test_kernels_are_ready_when_the_wait_for_them_ends(failure: Exception | None) -> None:
    """A request made right after the wait does not wait again."""
    found: list[bool] = []

    async def scenario() -> None:
        def load() -> None:
            # The loading thread calls this as soon as it has a result.
            kernels._begin().add_done_callback(lambda _: found.append(kernels.is_ready))
            if failure is not None:
                raise failure

        kernels = KernelWarmUp(load)
        with contextlib.suppress(ImportError):
            await kernels.wait()

    asyncio.run(scenario())
    assert found == [True]


def test_kernels_are_loaded_once_and_not_before_somebody_waits(parts: Any) -> None:
    loads = []

    async def scenario() -> None:
        kernels = KernelWarmUp(lambda: loads.append(threading.current_thread()))
        assert not kernels.is_ready
        assert loads == []
        await asyncio.gather(kernels.wait(), kernels.wait())
        assert kernels.is_ready
        await kernels.wait()
        assert len(loads) == 1
        assert loads[0] is not threading.current_thread()

    parts.run(scenario)


def test_failed_load_of_kernels_reaches_all_waiters(parts: Any) -> None:
    def fail() -> None:
        raise ImportError("no such kernels")

    async def scenario() -> None:
        with pytest.raises(ImportError, match="no such kernels"):
            await KernelWarmUp(fail).wait()

    parts.run(scenario)


# Meters


def test_meters_count_what_was_written(parts: Any) -> None:
    async def scenario() -> None:
        records = batch(parts, b"a", b"b", b"c")
        answer(parts, request(records))
        answer(parts, request(batch(parts, b"d"), partition=1))
        traffic = parts.services.traffic.topics["t"]
        assert traffic.messages_in == 4
        assert traffic.bytes_in == len(records) + len(batch(parts, b"d"))
        assert traffic.total_produce_requests == 2
        assert (traffic.failed_produce_requests, traffic.bytes_rejected) == (0, 0)

    parts.run(scenario)


def test_meters_count_what_was_refused(parts: Any) -> None:
    async def scenario() -> None:
        parts.partition().log.update_config(TopicConfig(max_message_bytes=100))
        large = batch(parts, bytes(200))
        assert answer(parts, request(large)).error_code == ErrorCode.message_too_large
        traffic = parts.services.traffic.topics["t"]
        assert (traffic.bytes_rejected, traffic.failed_produce_requests) == (len(large), 0)
        not_first = batch(parts, b"a", base_offset=5)
        assert answer(parts, request(not_first)).error_code == ErrorCode.invalid_record
        assert traffic.failed_produce_requests == 1
        assert (traffic.total_produce_requests, traffic.messages_in, traffic.bytes_in) == (2, 0, 0)

    parts.run(scenario)


# ---- batches whose checks would hold up the event loop


async def later_answer(parts: Any, wanted: ProduceRequest) -> ProducePartitionResponse:
    found = produce.handle(parts.context(0, 9), wanted)
    assert isinstance(found, Awaitable), "it is checked on the event loop"
    response = await found
    assert response is not None
    ((partition,),) = [topic.partitions for topic in response.topics]
    return partition


@pytest.mark.parametrize("codec", [each for each in CompressionType if each])
def test_large_batch_is_checked_in_another_thread_and_stored_as_it_is(
    parts: Any, monkeypatch: pytest.MonkeyPatch, codec: CompressionType
) -> None:
    threads: list[str] = []
    check = validation.check_batch

    def noted(*args: Any, **settings: Any) -> validation.CheckedBatch:
        threads.append(threading.current_thread().name)
        return check(*args, **settings)

    monkeypatch.setattr(batch_checks, "check_batch", noted)

    async def scenario() -> None:
        records = batch(parts, bytes(3 << 20), b"b", compression=codec)
        sent = bytes(records)
        first = await later_answer(parts, request(records))
        assert (first.error_code, first.base_offset) == (0, 0)
        small = answer(parts, request(batch(parts, b"c", compression=codec)))
        assert (small.error_code, small.base_offset) == (0, 2)
        log = parts.partition().log
        stored = log.read(0, 1 << 24).records
        # But for offset and leader epoch, which the leader sets.
        assert bytes(stored)[16 : len(sent)] == sent[16:]
        assert threads
        assert threading.current_thread().name not in threads

    parts.run(scenario)


def test_large_batch_is_refused_for_the_same_reasons(parts: Any) -> None:
    async def scenario() -> None:
        damaged = batch(parts, bytes(3 << 20), compression=CompressionType.ZSTD)
        damaged[-1] ^= 1
        refused = await later_answer(parts, request(damaged))
        assert refused.error_code == ErrorCode.corrupt_message
        late = build_batch([(1 << 60, b"k", bytes(3 << 20), ())], compression=CompressionType.GZIP)
        refused = await later_answer(parts, request(late))
        assert refused.error_code == ErrorCode.invalid_timestamp
        assert [error.batch_index for error in refused.record_errors] == [0]
        assert parts.partition().log.log_end_offset == 0

    parts.run(scenario)


def test_batch_that_is_too_large_when_decompressed_is_refused(parts: Any) -> None:
    async def scenario() -> None:
        size = 8 << 20
        parts.services.config = dataclasses.replace(
            parts.config, message_decompressed_max_bytes=size
        )
        fits = batch(parts, bytes(size - 100), compression=CompressionType.LZ4)
        assert (await later_answer(parts, request(fits))).error_code == 0
        bomb = batch(parts, bytes(size), compression=CompressionType.LZ4)
        refused = await later_answer(parts, request(bomb))
        assert refused.error_code == ErrorCode.message_too_large
        assert "decompressed size limit" in (refused.error_message or "")
        assert parts.partition().log.log_end_offset == 1

    parts.run(scenario)


@pytest.mark.parametrize("codec", [each for each in CompressionType if each])
def test_bound_of_decompressed_batches_may_be_small(parts: Any, codec: CompressionType) -> None:
    async def scenario() -> None:
        parts.services.config = dataclasses.replace(
            parts.config, message_decompressed_max_bytes=2000
        )
        for size, error in (
            (1900, ErrorCode.none),
            (2000, ErrorCode.message_too_large),
            (200_000, ErrorCode.message_too_large),
            (1900, ErrorCode.none),
        ):
            wanted = request(batch(parts, bytes(size), compression=codec))
            response = produce.handle(parts.context(0, 9), wanted)
            response = await response if isinstance(response, Awaitable) else response
            assert response is not None
            ((partition,),) = [topic.partitions for topic in response.topics]
            assert partition.error_code == error, size
        assert parts.partition().log.log_end_offset == 2

    parts.run(scenario)


class _Buffer(bytearray):
    """Memory of a request that a weak reference can watch."""


def test_refused_large_batch_is_released_without_a_garbage_collection(parts: Any) -> None:
    async def refuse() -> weakref.ref[_Buffer]:
        damaged = _Buffer(batch(parts, bytes(3 << 20), compression=CompressionType.ZSTD))
        damaged[-1] ^= 1
        refused = await later_answer(parts, request(damaged))
        assert refused.error_code == ErrorCode.corrupt_message
        return weakref.ref(damaged)

    async def scenario() -> None:
        gc.disable()
        try:
            assert (await refuse())() is None
        finally:
            gc.enable()

    parts.run(scenario)


def test_many_small_batches_count_together(parts: Any) -> None:
    """Each of a partition's batches may be checked on the event loop, and all of them may not."""

    async def scenario() -> None:
        def wanted(count: int) -> ProduceRequest:
            partitions = [
                ProducePartition.of(
                    index,
                    memoryview(batch(parts, bytes(400_000), compression=CompressionType.LZ4)),
                )
                for index in range(count)
            ]
            return ProduceRequest(None, 1, 1000, [ProduceTopic("t", None, partitions)])

        assert not isinstance(produce.handle(parts.context(0, 9), wanted(1)), Awaitable)
        found = produce.handle(parts.context(0, 9), wanted(3))
        assert isinstance(found, Awaitable)
        response = await found
        codes = [partition.error_code for partition in response.topics[0].partitions]
        assert codes == [0, 0, ErrorCode.unknown_topic_or_partition]

    parts.run(scenario)


def test_checks_under_another_configuration_are_made_again(parts: Any) -> None:
    async def scenario() -> None:
        wanted = request(batch(parts, bytes(3 << 20), compression=CompressionType.ZSTD))
        found = produce.handle(parts.context(0, 9), wanted)
        assert isinstance(found, Awaitable)
        task = asyncio.ensure_future(found)
        await asyncio.sleep(0)
        # It takes no batch of this size any more.
        parts.partition().log.update_config(TopicConfig(max_message_bytes=100))
        response = await task
        assert response.topics[0].partitions[0].error_code == ErrorCode.message_too_large

    parts.run(scenario)


def test_repeated_partition_is_refused(parts: Any) -> None:
    async def scenario() -> None:
        one = ProducePartition.of(0, memoryview(batch(parts, b"a")))
        other = ProducePartition.of(1, memoryview(batch(parts, b"a")))
        for topics in (
            [ProduceTopic("t", None, [one, one])],
            [ProduceTopic("t", None, [one]), ProduceTopic("t", None, [other, one])],
        ):
            with pytest.raises(InvalidRequestError, match="twice"):
                produce.handle(parts.context(0, 9), ProduceRequest(None, 1, 1000, topics))
        assert parts.partition().log.log_end_offset == 0

    parts.run(scenario)
