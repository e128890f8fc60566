"""Appends the records of a leader's answer to a follower's log.

Source: Kafka ReplicaFetcherThread.processPartitionData,
Partition.appendRecordsToFollowerOrFutureReplica.
"""

from __future__ import annotations

import logging

from isotherm.broker.partitions.replication.follower_fetch import may_restart_inside_batch
from isotherm.errors import CorruptRecordError, UnexpectedAppendOffsetError
from isotherm.log.follower_records import FollowerAppendInfo
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.fetch import FetchPartitionResponse
from isotherm.types import LeaderEpoch

logger = logging.getLogger(__name__)


def append_fetched(
    log_manager: LogManager,
    log: PartitionLog,
    answer: FetchPartitionResponse,
    leader_epoch: LeaderEpoch,
) -> FollowerAppendInfo:
    """Append the records, then take over the leader's high watermark and log start.

    `leader_epoch` is that of the request, whose fetch offset was the log end. Raises what
    `PartitionLog.append_as_follower` raises, and CorruptRecordError if there are bytes but no
    complete batch; the caller then fetches again later.
    """
    records = answer.records[0] if answer.records else b""
    info = _append(log_manager, log, memoryview(records), leader_epoch)
    if records and not info.size:
        raise CorruptRecordError(
            f"leader sent no complete batch partition={log.topic_partition}"
            f" size={len(records)} leader_epoch={leader_epoch}"
        )
    # Flushed before the next fetch, which tells the leader that the records are here.
    if info.needs_flush:
        log.flush()
    # After the append, because an update limits the high watermark to the log end.
    if answer.high_watermark >= 0 and answer.high_watermark != log.high_watermark:
        log.update_high_watermark(answer.high_watermark)
    # The leader's log start may be above the high watermark of this log, which lags behind. The log
    # start must not pass it.
    log.maybe_increment_log_start_offset(min(answer.log_start_offset, log.high_watermark))
    return info


def _append(
    log_manager: LogManager, log: PartitionLog, records: memoryview, leader_epoch: LeaderEpoch
) -> FollowerAppendInfo:
    try:
        return log.append_as_follower(records, leader_epoch)
    except UnexpectedAppendOffsetError as error:
        if not may_restart_inside_batch(
            first_offset=error.first_offset,
            last_offset=error.last_offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        ):
            raise
        first_offset = error.first_offset
    logger.info(
        "empty log begins anew at the start of a batch partition=%s offset=%d log_start_offset=%d",
        log.topic_partition,
        first_offset,
        log.log_start_offset,
    )
    # The log start falls to the base of the batch. `append_fetched` raises it to the leader's as
    # soon as the high watermark of this log has passed that.
    log_manager.truncate_log_fully_and_start_at(log, first_offset)
    return log.append_as_follower(records, leader_epoch)
