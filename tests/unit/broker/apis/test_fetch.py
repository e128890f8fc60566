"""Fetch in both tiers: what is returned, how long it waits, and the error of each partition."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import fetch
from isotherm.broker.partitions import fetch_reads
from isotherm.errors import NotEnoughMemoryError, RemoteStorageError
from isotherm.protocol.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from isotherm.remote.remote_tier_metrics import FETCHES_EXPIRED
from tests.support.conditions import until
from tests.support.led_topic import delete_topic, led

TOPIC_ID = uuid.UUID(int=7)

# Longer than any test may take: if no append wakes a fetch, its test fails.
WAIT_MS = 600_000


def request(*partitions: FetchPartition, topic: str = "t", **settings: Any) -> FetchRequest:
    values: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 30,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [FetchTopic(topic, None, list(partitions))],
        "forgotten_topics": [],
        "rack_id": "",
    }
    return FetchRequest(**{**values, **settings})


def asked(offset: int, partition: int = 0, max_bytes: int = 1 << 20, **more: int) -> FetchPartition:
    return FetchPartition(partition, offset, max_bytes, **more)


async def answer(parts: Any, wanted: FetchRequest) -> list[FetchPartitionResponse]:
    response = fetch.handle(parts.context(1, 12), wanted)
    if inspect.isawaitable(response):
        response = await response
    assert isinstance(response, FetchResponse)
    return [partition for topic in response.topics for partition in topic.partitions]


def size_of(response: FetchPartitionResponse) -> int:
    return sum(map(len, response.records))


def test_fetch_gives_records_and_offsets(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        (response,) = await answer(parts, request(asked(0)))
        assert response.error_code == ErrorCode.none
        assert response.high_watermark == response.last_stable_offset == 2
        assert response.log_start_offset == 0
        assert response.aborted_transactions is None
        assert size_of(response) == parts.partition().log.size_in_bytes

    parts.run(scenario)


def test_fetch_read_committed_tells_aborted_transactions(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        (response,) = await answer(parts, request(asked(0), isolation_level=1))
        assert response.aborted_transactions == []

    parts.run(scenario)


def test_fetch_at_once_when_enough_is_there_makes_no_task(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        response = fetch.handle(parts.context(1, 12), request(asked(0), max_wait_ms=1000))
        assert isinstance(response, FetchResponse)

    parts.run(scenario)


def test_fetch_waits_for_an_append(parts: Any) -> None:
    async def scenario() -> None:
        waiting = asyncio.ensure_future(answer(parts, request(asked(0), max_wait_ms=WAIT_MS)))
        await asyncio.sleep(0)
        assert not waiting.done()
        parts.append(b"other", index=1)
        await asyncio.sleep(0)
        assert not waiting.done()
        parts.append(b"a")
        (response,) = await waiting
        assert size_of(response) > 0

    parts.run(scenario)


def test_fetch_waits_until_min_bytes_are_there(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(bytes(100))
        batch_size = parts.partition().log.size_in_bytes
        wanted = request(asked(0), max_wait_ms=WAIT_MS, min_bytes=3 * batch_size)
        waiting = asyncio.ensure_future(answer(parts, wanted))
        await asyncio.sleep(0)
        parts.append(bytes(100))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        parts.append(bytes(100))
        (response,) = await waiting
        assert size_of(response) == 3 * batch_size

    parts.run(scenario)


def test_fetch_wait_counts_bytes_over_all_partitions(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(bytes(100))
        batch_size = parts.partition().log.size_in_bytes
        wanted = request(asked(0), asked(0, 1), max_wait_ms=WAIT_MS, min_bytes=2 * batch_size)
        waiting = asyncio.ensure_future(answer(parts, wanted))
        await asyncio.sleep(0)
        assert not waiting.done()
        parts.append(bytes(100), index=1)
        assert [size_of(response) for response in await waiting] == [batch_size, batch_size]

    parts.run(scenario)


def test_fetch_ends_empty_when_the_wait_is_over(parts: Any) -> None:
    async def scenario() -> None:
        (response,) = await answer(parts, request(asked(0), max_wait_ms=1))
        assert response.error_code == ErrorCode.none
        assert response.records == ()

    parts.run(scenario)


def test_fetch_waiting_for_a_partition_that_goes_offline_gets_an_error(parts: Any) -> None:
    async def scenario() -> None:
        waiting = asyncio.ensure_future(answer(parts, request(asked(0), max_wait_ms=WAIT_MS)))
        await asyncio.sleep(0)
        (log_dir,) = parts.log_manager.log_dirs()
        log_dir.fail(OSError("no such disk"), "test")
        parts.replica_manager.take_offline(log_dir)
        (response,) = await waiting
        assert response.error_code == ErrorCode.kafka_storage_error
        (response,) = await answer(parts, request(asked(0)))
        assert response.error_code == ErrorCode.kafka_storage_error

    parts.run(scenario)


def test_meters_count_what_is_read(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        await answer(parts, request(asked(0), asked(0, 1)))
        await answer(parts, request(asked(1000)))
        traffic = parts.services.traffic.topics["t"]
        assert traffic.bytes_out == parts.partition().log.size_in_bytes
        assert (traffic.total_fetch_requests, traffic.failed_fetch_requests) == (3, 0)

    parts.run(scenario)


def test_fetch_of_damaged_records_is_counted_as_failed(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        (segment,) = parts.partition().log.segments()
        with segment.log_path.open("r+b") as file:
            file.seek(8)
            file.write(b"\xff\xff\xff\xff")
        (response,) = await answer(parts, request(asked(0)))
        assert response.error_code == ErrorCode.corrupt_message
        assert parts.services.traffic.topics["t"].failed_fetch_requests == 1

    parts.run(scenario)


def test_fetch_waiting_for_a_deleted_topic_gets_an_error(parts: Any) -> None:
    async def scenario() -> None:
        waiting = asyncio.ensure_future(answer(parts, request(asked(0), max_wait_ms=WAIT_MS)))
        await asyncio.sleep(0)
        delete_topic(parts.replica_manager, "t")
        (response,) = await waiting
        assert response.error_code == ErrorCode.not_leader_or_follower

    parts.run(scenario)


def test_fetch_max_bytes_bounds_the_answer_after_the_first_batch(parts: Any) -> None:
    async def scenario() -> None:
        for index in (0, 1):
            for _ in range(3):
                parts.append(bytes(1000), index=index)
        batch_size = parts.partition().log.size_in_bytes // 3

        async def sizes(max_bytes: int, partition_max_bytes: int = 1 << 20) -> list[int]:
            wanted = [asked(0, index, partition_max_bytes) for index in (0, 1)]
            responses = await answer(parts, request(*wanted, max_bytes=max_bytes))
            return [size_of(response) for response in responses]

        assert await sizes(0) == [batch_size, 0]
        assert await sizes(batch_size * 4) == [3 * batch_size, batch_size]
        assert await sizes(1 << 20, partition_max_bytes=batch_size * 2) == [2 * batch_size] * 2
        assert await sizes(1 << 20, partition_max_bytes=1) == [batch_size, 0]

    parts.run(scenario)


def test_local_bytes_of_an_answer_are_bounded_over_all_its_partitions(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        for index in (0, 1):
            for _ in range(3):
                parts.append(bytes(1000), index=index)
        batch_size = parts.partition().log.size_in_bytes // 3

        async def sizes(local_max_bytes: int, **settings: int) -> list[int]:
            for module in (fetch, fetch_reads):
                monkeypatch.setattr(module, "LOCAL_READ_SIZE_MAX", local_max_bytes)
            responses = await answer(parts, request(asked(0), asked(0, 1), **settings))
            return [size_of(response) for response in responses]

        assert await sizes(4 * batch_size) == [3 * batch_size, batch_size]
        assert await sizes(2 * batch_size) == [2 * batch_size, 0]
        # The first batch, whatever its size.
        assert await sizes(1) == [batch_size, 0]
        # No wait for more bytes than an answer may have.
        waiting = {"min_bytes": 6 * batch_size, "max_wait_ms": WAIT_MS}
        async with asyncio.timeout(60):
            assert await sizes(4 * batch_size, **waiting) == [3 * batch_size, batch_size]

    parts.run(scenario)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (request(asked(5)), ErrorCode.offset_out_of_range),
        (request(asked(-1)), ErrorCode.offset_out_of_range),
        (request(asked(0, partition=9)), ErrorCode.unknown_topic_or_partition),
        (request(asked(0), topic="absent"), ErrorCode.unknown_topic_or_partition),
        (request(asked(0, current_leader_epoch=2)), ErrorCode.fenced_leader_epoch),
        (request(asked(0, current_leader_epoch=4)), ErrorCode.unknown_leader_epoch),
        (request(asked(0, current_leader_epoch=3)), ErrorCode.none),
        (
            request(topics=[FetchTopic(None, uuid.UUID(int=99), [asked(0)])]),
            ErrorCode.unknown_topic_id,
        ),
        (request(topics=[FetchTopic(None, None, [asked(0)])]), ErrorCode.unknown_topic_id),
        (request(topics=[FetchTopic(None, TOPIC_ID, [asked(0)])]), ErrorCode.none),
    ],
)
def test_fetch_errors_are_kafkas_and_do_not_wait(
    parts: Any, wanted: FetchRequest, code: ErrorCode
) -> None:
    async def scenario() -> None:
        max_wait_ms = WAIT_MS if code else 0
        (response,) = await answer(parts, wanted._replace(max_wait_ms=max_wait_ms))
        assert response.error_code == code

    parts.run(scenario)


def test_fetch_one_partition_in_error_leaves_the_other(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", index=1)
        responses = await answer(parts, request(asked(7), asked(0, 1)))
        assert [response.error_code for response in responses] == [1, 0]
        assert size_of(responses[1]) > 0

    parts.run(scenario)


def test_fetch_of_a_diverged_history_gets_the_diverging_epoch(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        (response,) = await answer(parts, request(asked(5, last_fetched_epoch=3)))
        assert response.diverging_epoch == (3, 2)
        assert response.records == ()

    parts.run(scenario)


def test_fetch_within_a_session_waits_and_tells_what_is_new(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        opening = fetch.handle(
            parts.context(1, 12), request(asked(1), asked(0, 1), session_epoch=0)
        )
        assert isinstance(opening, FetchResponse)
        assert [len(topic.partitions) for topic in opening.topics] == [2]
        within = request(session_id=opening.session_id, session_epoch=1, max_wait_ms=WAIT_MS)
        waiting = asyncio.ensure_future(answer(parts, within._replace(topics=[])))
        await asyncio.sleep(0)
        assert not waiting.done()
        parts.append(b"b", index=1)
        (response,) = await waiting
        assert (response.partition, size_of(response) > 0) == (1, True)

    parts.run(scenario)


def test_fetch_in_an_unknown_session_is_refused(parts: Any) -> None:
    async def scenario() -> None:
        within = fetch.handle(
            parts.context(1, 12), request(asked(0), session_id=5, session_epoch=1)
        )
        assert isinstance(within, FetchResponse)
        assert within.error_code == ErrorCode.fetch_session_id_not_found

    parts.run(scenario)


def test_fetch_waits_for_no_more_than_its_max_bytes(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(bytes(500))
        wanted = request(asked(0), max_wait_ms=WAIT_MS, min_bytes=10_000, max_bytes=100)
        assert isinstance(fetch.handle(parts.context(1, 12), wanted), FetchResponse)

    parts.run(scenario)


def test_fetch_below_the_log_start_with_a_last_epoch_is_out_of_range(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.append(b"b")
        parts.partition().log.maybe_increment_log_start_offset(1)
        (response,) = await answer(parts, request(asked(0, last_fetched_epoch=3)))
        assert response.error_code == ErrorCode.offset_out_of_range

    parts.run(scenario)


def remote_read(records: bytes) -> Any:
    pieces = (memoryview(records[:1]), memoryview(records[1:]))
    return SimpleNamespace(records=pieces, size=len(records), aborted_transactions=None)


def test_fetch_below_the_local_start_reads_the_remote_tier(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        waiting = asyncio.ensure_future(answer(parts, request(asked(1, max_bytes=500))))
        await asyncio.sleep(0)
        ((offset, max_bytes, future),) = parts.remote.reads
        assert (offset, max_bytes) == (1, 500)
        future.set_result(remote_read(b"cold"))
        (response,) = await waiting
        assert b"".join(response.records) == b"cold"
        assert (response.log_start_offset, response.high_watermark) == (0, 2)

    parts.run(scenario)


def test_fetch_is_answered_from_memory_without_another_thread(parts: Any) -> None:
    async def scenario() -> None:
        for index in (0, 1):
            parts.append(b"a", b"b", index=index)
            parts.tier_everything(index)
        parts.remote.in_memory = {1: remote_read(b"warm")}
        waiting = asyncio.ensure_future(answer(parts, request(asked(1, 0), asked(0, 1))))
        await asyncio.sleep(0)
        ((offset, _, future),) = parts.remote.reads
        assert offset == 0
        future.set_result(remote_read(b"cold"))
        responses = await waiting
        assert [b"".join(response.records) for response in responses] == [b"warm", b"cold"]

    parts.run(scenario)


def test_fetch_of_the_remote_tier_does_not_wait_for_min_bytes(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        wanted = request(asked(0, 0, 10), asked(0, 1), min_bytes=1 << 20, max_wait_ms=WAIT_MS)
        waiting = asyncio.ensure_future(answer(parts, wanted))
        await asyncio.sleep(0)
        parts.remote.reads[0][2].set_result(remote_read(b"cold"))
        assert [size_of(response) for response in await waiting] == [4, 0]

    parts.run(scenario)


def test_fetch_reads_remote_partitions_in_parallel_within_the_budget(parts: Any) -> None:
    async def scenario() -> None:
        for index in (0, 1):
            parts.append(b"a", index=index)
            parts.tier_everything(index)
        wanted = request(asked(0, 0, 400), asked(0, 1, 400), max_bytes=600)
        waiting = asyncio.ensure_future(answer(parts, wanted))
        await asyncio.sleep(0)
        assert [max_bytes for _, max_bytes, _ in parts.remote.reads] == [400, 200]
        for _, _, future in reversed(parts.remote.reads):
            future.set_result(remote_read(b"cold"))
        assert [size_of(response) for response in await waiting] == [4, 4]

    parts.run(scenario)


def test_fetch_of_a_slow_remote_tier_is_empty_and_drops_the_read(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        (response,) = await answer(parts, request(asked(0)))
        assert (response.error_code, response.records) == (0, ())
        await asyncio.sleep(0)
        assert parts.remote.reads[0][2].cancelled()
        assert (parts.remote.wait.is_over, parts.remote.wait.has_left) == (True, False)
        assert parts.remote.metrics.value(FETCHES_EXPIRED + "_total") == 1

    parts.run(scenario)


def test_fetch_over_the_remote_quota_is_empty_and_reads_nothing(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        parts.remote.fetch_quota.record(1_000_000)
        (response,) = await answer(parts, request(asked(0)))
        assert (response.error_code, response.records) == (0, ())
        assert parts.remote.reads == []
        assert parts.remote.fetch_quota.throttle_ms_max() == 20  # remote.fetch.max.wait.ms

    parts.run(scenario)


def test_fetch_over_the_remote_quota_hands_out_local_records_at_once(parts: Any) -> None:
    async def scenario() -> None:
        for index in (0, 1):
            parts.append(b"a", index=index)
        parts.tier_everything()
        parts.remote.fetch_quota.record(1_000_000)
        responses = await answer(parts, request(asked(0, 0), asked(0, 1)))
        assert size_of(responses[0]) == 0
        assert size_of(responses[1]) > 0
        assert parts.remote.fetch_quota.throttle_ms_max() == 0

    parts.run(scenario)


def test_fetch_reads_the_remote_tier_once_the_quota_allows_it(parts: Any) -> None:
    # The fetch waits in real time. A long wait keeps it from giving up before this test looks.
    remote = replace(parts.config.remote, remote_fetch_max_wait_ms=WAIT_MS)
    parts.config = replace(parts.config, remote=remote)

    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        parts.remote.fetch_quota.record(1005)
        waiting = asyncio.ensure_future(answer(parts, request(asked(0))))
        await asyncio.sleep(0)
        assert parts.remote.reads == []
        parts.clock.advance(5)
        await until(lambda: parts.remote.reads)  # the fetch waits in real time
        parts.remote.reads[0][2].set_result(remote_read(b"cold"))
        assert [size_of(response) for response in await waiting] == [4]

    parts.run(scenario)


def test_client_that_goes_away_cancels_its_remote_read(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        waiting = asyncio.ensure_future(answer(parts, request(asked(0))))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert parts.remote.reads[0][2].cancelled()
        assert (parts.remote.wait.is_over, parts.remote.wait.has_left) == (True, True)

    parts.run(scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RemoteStorageError("store is down"), ErrorCode.kafka_storage_error),
        (NotEnoughMemoryError("queue is full"), ErrorCode.replica_not_available),
    ],
)
def test_fetch_remote_failure_is_retriable(parts: Any, error: Exception, code: ErrorCode) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        parts.remote.refuse = error
        (response,) = await answer(parts, request(asked(0)))
        assert response.error_code == code
        parts.remote.refuse = None
        waiting = asyncio.ensure_future(answer(parts, request(asked(0))))
        await asyncio.sleep(0)
        parts.remote.reads[0][2].set_exception(error)
        (response,) = await waiting
        assert response.error_code == code
        assert code.retriable

    parts.run(scenario)


def test_follower_below_the_local_start_is_sent_to_the_remote_tier(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        parts.partition().make_leader(led(0, 3, replicas=(1, 2), partition_epoch=4))
        (response,) = await answer(parts, request(asked(0), replica_id=2))
        assert response.error_code == ErrorCode.offset_moved_to_tiered_storage
        # The follower restarts its log from these offsets.
        assert (response.high_watermark, response.log_start_offset) == (1, 0)
        assert response.last_stable_offset == -1
        assert parts.remote.reads == []

    parts.run(scenario)


def test_fetch_error_response_answers_every_partition(parts: Any) -> None:
    async def scenario() -> None:
        response = fetch.API.refuse(
            parts.context(1, 12), request(asked(0), asked(0, 1)), ErrorCode.unknown_server_error
        )
        codes = [partition.error_code for partition in response.topics[0].partitions]
        assert codes == [ErrorCode.unknown_server_error] * 2

    parts.run(scenario)
