"""ListOffsets in both tiers: special offsets, timestamps, waits and errors."""

from __future__ import annotations

import asyncio
import datetime
import inspect
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v1 import request as v1
from kio.schema.list_offsets.v11 import request as v11

from isotherm.broker.apis import list_offsets
from isotherm.broker.partitions.offset_lookup import FoundOffset
from isotherm.record.batch import build_batch
from isotherm.remote.remote_tier_metrics import LOOKUPS_EXPIRED
from tests.support.led_topic import led

NONE = (-1, -1, -1)


async def look_up(
    parts: Any,
    timestamp: int,
    *,
    isolation: int = 0,
    timeout_ms: int = 0,
    epoch: int = -1,
    replica_id: int = -1,
) -> Any:
    """Returns (timestamp, offset, leader epoch), or the error code."""
    asked = v11.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = v11.ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=(v11.ListOffsetsTopic(name="t", partitions=(asked,)),),
        timeout=datetime.timedelta(milliseconds=timeout_ms),
    )
    response = list_offsets.handle(parts.context(2, 11), request)
    if inspect.isawaitable(response):
        response = await response
    (found,) = response.topics[0].partitions
    if found.error_code:
        return found.error_code
    return (found.timestamp, found.offset, found.leader_epoch)


def test_special_offsets_of_an_empty_log(parts: Any) -> None:
    async def scenario() -> None:
        found = [await look_up(parts, special) for special in (-1, -2, -3, -4, -5, -6)]
        assert found[0][1] == found[1][1] == found[3][1] == 0
        assert found[2] == found[4] == found[5] == NONE

    parts.run(scenario)


def test_special_offsets_of_a_local_log(parts: Any) -> None:
    async def scenario() -> None:
        now_ms = parts.clock.now_ms()
        for timestamp_ms in (now_ms, now_ms + 5, now_ms + 2):
            parts.append(b"a", timestamp_ms=timestamp_ms)
        assert await look_up(parts, -1) == (-1, 3, 3)
        assert await look_up(parts, -2) == (-1, 0, 3)
        assert await look_up(parts, -3) == (now_ms + 5, 1, 3)
        assert await look_up(parts, -4) == (-1, 0, 3)
        assert await look_up(parts, -5) == NONE
        assert await look_up(parts, -6) == NONE

    parts.run(scenario)


def test_special_offsets_of_a_tiered_log(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        parts.append(b"c")
        assert await look_up(parts, -1) == (-1, 3, 3)
        assert await look_up(parts, -2) == (-1, 0, 3)
        assert await look_up(parts, -4) == (-1, 2, 3)
        assert await look_up(parts, -5) == (-1, 1, 3)
        assert await look_up(parts, -6) == (-1, 2, 3)

    parts.run(scenario)


@pytest.mark.parametrize(("replica_id", "pending"), [(-1, NONE), (7, (-1, 2, 3))])
def test_nothing_is_pending_where_all_is_tiered(
    parts: Any, replica_id: int, pending: tuple[int, int, int]
) -> None:
    """As in Kafka: the log end is no record that a client could fetch.

    A follower may begin there.
    """

    async def scenario() -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        assert await look_up(parts, -5, replica_id=replica_id) == (-1, 1, 3)
        assert await look_up(parts, -6, replica_id=replica_id) == pending
        # Other special offsets are at the log end as well, and are no records either.
        assert await look_up(parts, -4, replica_id=replica_id) == (-1, 2, 3)
        assert await look_up(parts, -1, replica_id=replica_id) == (-1, 2, 3)

    parts.run(scenario)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize(
    ("stable", "latest_tiered", "pending"),
    [(3, (-1, 1, 3), (-1, 2, 3)), (2, (-1, 1, 3), NONE), (1, NONE, NONE)],
)
def test_tiered_offsets_lie_below_what_the_reader_may_fetch(
    parts: Any,
    monkeypatch: pytest.MonkeyPatch,
    isolation: int,
    stable: int,
    latest_tiered: tuple[int, int, int],
    pending: tuple[int, int, int],
) -> None:
    """Source: Kafka ReplicaManager.fetchOffset, `lastFetchableOffset`."""

    async def scenario() -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        parts.append(b"c")
        end = "last_stable_offset" if isolation else "high_watermark"
        monkeypatch.setattr(type(parts.partition().log), end, stable)
        assert await look_up(parts, -5, isolation=isolation) == latest_tiered
        assert await look_up(parts, -6, isolation=isolation) == pending

    parts.run(scenario)


def test_latest_offset_has_the_leaders_own_epoch(parts: Any) -> None:
    """The epoch is the leader's, also where the record at the last stable offset has an older
    one."""

    async def scenario() -> None:
        now_ms = parts.clock.now_ms()
        batch = build_batch(
            [(now_ms, None, b"a", ())],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        partition = parts.partition()
        partition.append(batch, required_acks=1, now_ms=now_ms)
        partition.make_leader(led(0, 4))
        assert await look_up(parts, -1, isolation=1) == (-1, 0, 4)

    parts.run(scenario)


def test_timestamp_finds_the_first_record_as_young(parts: Any) -> None:
    async def scenario() -> None:
        now_ms = parts.clock.now_ms()
        for step in range(3):
            parts.append(b"a", timestamp_ms=now_ms + 10 * step)
        assert await look_up(parts, 0) == (now_ms, 0, 3)
        assert await look_up(parts, now_ms + 1) == (now_ms + 10, 1, 3)
        assert await look_up(parts, now_ms + 20) == (now_ms + 20, 2, 3)
        assert await look_up(parts, now_ms + 21) == NONE

    parts.run(scenario)


def test_timestamp_with_a_remote_part_asks_the_remote_tier(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        waiting = asyncio.ensure_future(look_up(parts, 123))
        for _ in range(3):
            await asyncio.sleep(0)
        ((timestamp_ms, future),) = parts.remote.lookups
        assert timestamp_ms == 123
        future.set_result((124, 0, 3))
        assert await waiting == (124, 0, 3)

    parts.run(scenario)


@pytest.mark.parametrize(("timeout_ms", "expected_s"), [(0, 2.345), (700, 0.7)])
def test_look_up_waits_as_long_as_the_request_says_else_as_the_configuration_does(
    parts: Any, monkeypatch: pytest.MonkeyPatch, timeout_ms: int, expected_s: float
) -> None:
    asked: list[float] = []

    def find(*arguments: Any) -> FoundOffset:
        asked.append(arguments[-1])
        return FoundOffset(1, 2, 3)

    async def scenario() -> None:
        remote = replace(parts.config.remote, remote_list_offsets_request_timeout_ms=2345)
        parts.services.config = replace(parts.config, remote=remote)
        monkeypatch.setattr(list_offsets, "find_offset", find)
        assert await look_up(parts, 123, timeout_ms=timeout_ms) == (1, 2, 3)

    parts.run(scenario)
    assert asked == [expected_s]


def test_timestamp_that_the_remote_tier_answers_late_times_out(parts: Any) -> None:
    async def scenario() -> None:
        parts.append(b"a")
        parts.tier_everything()
        assert await look_up(parts, 123, timeout_ms=1) == ErrorCode.request_timed_out
        expired = LOOKUPS_EXPIRED + "_total"
        assert parts.remote.metrics.value(expired, topic="t", partition="0") == 1
        assert parts.remote.metrics.value(expired, topic="", partition="") == 1

    parts.run(scenario)


def test_unknown_special_timestamp_is_an_unsupported_version(parts: Any) -> None:
    async def scenario() -> None:
        assert await look_up(parts, -7) == ErrorCode.unsupported_version

    parts.run(scenario)


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11)]
)
def test_special_timestamp_needs_its_version(
    parts: Any, timestamp: int, first_version: int
) -> None:
    async def scenario() -> None:
        for version in range(1, 12):
            asked = v1.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = _Request(version, asked)
            response = list_offsets.handle(parts.context(2, version), request)
            if inspect.isawaitable(response):
                response = await response
            (found,) = response.topics[0].partitions
            refused = found.error_code == ErrorCode.unsupported_version
            assert refused == (version < first_version)

    parts.run(scenario)


class _Partition:
    def __init__(self, asked: Any) -> None:
        self.partition_index = asked.partition_index
        self.timestamp = asked.timestamp
        self.current_leader_epoch = -1


class _Request:
    """A request of any version, with the fields that all versions have."""

    def __init__(self, version: int, asked: Any) -> None:
        self.replica_id = -1
        self.isolation_level = 0
        self.timeout = datetime.timedelta()
        self.topics = (v1.ListOffsetsTopic(name="t", partitions=(_Partition(asked),)),)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)],
)
def test_look_up_with_another_leader_epoch_is_fenced(
    parts: Any, epoch: int, code: ErrorCode
) -> None:
    async def scenario() -> None:
        assert await look_up(parts, -1, epoch=epoch) == code

    parts.run(scenario)


def test_unknown_partition_says_so_in_every_version(parts: Any) -> None:
    async def scenario() -> None:
        for version in range(1, 12):
            request = _Request(version, v1.ListOffsetsPartition(partition_index=9, timestamp=-1))
            response = list_offsets.handle(parts.context(2, version), request)
            if inspect.isawaitable(response):
                response = await response
            (found,) = response.topics[0].partitions
            assert found.error_code == ErrorCode.unknown_topic_or_partition
            assert found.offset == -1

    parts.run(scenario)
