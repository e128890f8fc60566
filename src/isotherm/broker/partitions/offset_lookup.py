"""Finds the offset of a timestamp or of a special timestamp (ListOffsets).

    -1 latest          end of the records that the caller may fetch: high watermark or last stable
                       offset
    -2 earliest        log start, in either tier
    -3 max timestamp   of the local tier only, as in Kafka
    -4 earliest local  local log start
    -5 latest tiered   last offset that was copied to the remote tier, -1 if there is none
    -6 earliest pending upload, -1 if there is none
    >= 0               first record with that timestamp or a later one, in both tiers

All but the first two and -4 are -1 where they are not below the end of what the caller may fetch.

Source: Kafka UnifiedLog.fetchOffsetByTimestamp, Partition.fetchOffsetForTimestamp.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from isotherm.broker.partitions.partition import Partition
from isotherm.errors import OffsetNotAvailableError, RequestTimedOutError, UnsupportedVersionError
from isotherm.log.log_read import FetchIsolation
from isotherm.log.log_segment import TimestampAndOffset
from isotherm.log.partition_log import PartitionLog
from isotherm.types import NO_LEADER_EPOCH, NO_TIMESTAMP, UNKNOWN_OFFSET, Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.remote.reading.reader_pool import RemoteReaderPool


class SpecialTimestamp(enum.IntEnum):
    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# The first version of ListOffsets with each special timestamp.
FIRST_VERSIONS: Mapping[int, int] = {
    SpecialTimestamp.LATEST: 1,
    SpecialTimestamp.EARLIEST: 1,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}


class LocalSearch(NamedTuple):
    """Where the records of local batches are searched for one request: a batch may be large when
    decompressed.

    `turn` lets one look-up of the request begin after the other, among those of other requests.
    """

    executor: Executor
    turn: asyncio.Semaphore


class FoundOffset(NamedTuple):
    timestamp_ms: TimestampMs = NO_TIMESTAMP
    offset: Offset = UNKNOWN_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH


NOT_FOUND = FoundOffset()


def check_timestamp(timestamp_ms: TimestampMs, api_version: int) -> None:
    """Raise UnsupportedVersionError for a negative timestamp that this version does not have."""
    if timestamp_ms >= 0:
        return
    first_version = FIRST_VERSIONS.get(timestamp_ms)
    if first_version is None or api_version < first_version:
        raise UnsupportedVersionError(
            f"timestamp is invalid timestamp={timestamp_ms} api_version={api_version}"
        )


def fetchable_end(log: PartitionLog, isolation: FetchIsolation) -> Offset:
    """The end offset, exclusive, of the records that a reader with this isolation may read."""
    if isolation is FetchIsolation.TXN_COMMITTED:
        return log.last_stable_offset
    if isolation is FetchIsolation.HIGH_WATERMARK:
        return log.high_watermark
    return log.log_end_offset


def _find_special_offset(
    partition: Partition, special: SpecialTimestamp, isolation: FetchIsolation
) -> FoundOffset:
    log = partition.log
    if special is SpecialTimestamp.LATEST:
        _check_is_known(partition, isolation)
        # Always the leader's epoch, as in Kafka, even if the last stable offset has an older one.
        return FoundOffset(NO_TIMESTAMP, fetchable_end(log, isolation), partition.leader_epoch)
    is_first = special is SpecialTimestamp.EARLIEST
    if is_first or (special is SpecialTimestamp.EARLIEST_LOCAL and not log.remote_log_enabled):
        return _at(partition, log.log_start_offset)
    if special is SpecialTimestamp.EARLIEST_LOCAL:
        return _at(partition, log.local_log_start_offset)
    if not log.remote_log_enabled:
        return NOT_FOUND
    if special is SpecialTimestamp.LATEST_TIERED:
        tiered = _at(partition, log.highest_offset_in_remote_storage)
        return _visible(tiered, partition, isolation)
    pending = _earliest_pending_upload(partition)
    # A follower that begins behind the uploads (KIP-1023) begins at the log end if all is uploaded.
    # Kafka answers -1 here too, and such a follower waits for the next record.
    return (
        pending if isolation is FetchIsolation.LOG_END else _visible(pending, partition, isolation)
    )


def _earliest_pending_upload(partition: Partition) -> FoundOffset:
    log = partition.log
    highest = log.highest_offset_in_remote_storage
    if highest != UNKNOWN_OFFSET:
        # DeleteRecords may have raised the log start above what is uploaded.
        return _at(partition, max(highest + 1, log.log_start_offset))
    if log.local_log_start_offset == log.log_start_offset:
        return _at(partition, log.log_start_offset)
    return NOT_FOUND  # Segments are tiered, but the highest offset is not known yet.


def _at(partition: Partition, offset: Offset) -> FoundOffset:
    if offset == UNKNOWN_OFFSET:
        return NOT_FOUND
    epoch = partition.log.leader_epochs.epoch_for_offset(offset)
    return FoundOffset(NO_TIMESTAMP, offset, NO_LEADER_EPOCH if epoch is None else epoch)


def _visible(
    record: tuple[TimestampMs, Offset, int] | None, partition: Partition, isolation: FetchIsolation
) -> FoundOffset:
    # An offset that the caller may not fetch yet must not be returned.
    if record is None or record[1] >= fetchable_end(partition.log, isolation):
        _check_is_known(partition, isolation)
        return NOT_FOUND
    return FoundOffset(*record)


def _check_is_known(partition: Partition, isolation: FetchIsolation) -> None:
    """Raise OffsetNotAvailableError while the high watermark of a new leader is below its epoch's
    start.

    It may then be lower than that of the leader before it, and a consumer would see the end of the
    log move back (KIP-207).
    """
    if isolation is FetchIsolation.LOG_END:
        return
    high_watermark, start = partition.log.high_watermark, partition.epoch_start_offset
    if start > high_watermark:
        raise OffsetNotAvailableError(
            f"high watermark is behind the leader epoch partition={partition.topic_partition}"
            f" high_watermark={high_watermark} epoch_start_offset={start}"
        )


def find_offset(
    partition: Partition,
    timestamp_ms: TimestampMs,
    isolation: FetchIsolation,
    readers: RemoteReaderPool | None,
    search: LocalSearch,
    timeout_s: float,
) -> FoundOffset | Awaitable[FoundOffset]:
    """Find the first visible record with `timestamp_ms` or a later timestamp, or a special offset.

    Returns an awaitable if records must be searched, in the remote tier if it has offsets that the
    local log lacks. The awaitable raises RequestTimedOutError after `timeout_s`, and the errors of
    the tiers.
    """
    log = partition.log
    if timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP:
        return _find_locally(log.max_timestamp_offset, partition, isolation, search, timeout_s)
    if timestamp_ms < 0:
        return _find_special_offset(partition, SpecialTimestamp(timestamp_ms), isolation)
    has_remote_only = log.log_start_offset < log.local_log_start_offset
    if readers is not None and log.remote_log_enabled and has_remote_only:
        return _find_in_both_tiers(partition, timestamp_ms, isolation, readers, timeout_s)
    look_up = partial(log.offset_for_timestamp, timestamp_ms)
    return _find_locally(look_up, partition, isolation, search, timeout_s)


async def _find_locally(
    look_up: Callable[[], TimestampAndOffset | None],
    partition: Partition,
    isolation: FetchIsolation,
    search: LocalSearch,
    timeout_s: float,
) -> FoundOffset:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s), search.turn:
            record = await loop.run_in_executor(search.executor, look_up)
    except TimeoutError as error:
        raise _too_slow(partition) from error
    return _visible(record, partition, isolation)


def _too_slow(partition: Partition) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"lookup by timestamp took too long partition={partition.topic_partition}"
    )


async def _find_in_both_tiers(
    partition: Partition,
    timestamp_ms: TimestampMs,
    isolation: FetchIsolation,
    readers: RemoteReaderPool,
    timeout_s: float,
) -> FoundOffset:
    log = partition.log
    future = readers.offset_for_timestamp(
        log, partition.topic_id_partition, timestamp_ms, log.log_start_offset
    )
    try:
        record = await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
    except TimeoutError as error:
        readers.expirations.count_lookup(*partition.topic_partition)
        raise _too_slow(partition) from error
    return _visible(record, partition, isolation)
