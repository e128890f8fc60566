"""Makes the log of a partition begin behind a history that a job has written into the bucket.

    before   the log ends at the history's start, and has no local record
    after    local log start = log end = high watermark = the history's end; leader epochs and
             producers are those of the history, the log start stays

The history is in the bucket, so it is committed, whatever followers have: they begin behind it as
soon as they fetch (OFFSET_MOVED_TO_TIERED_STORAGE).
"""

from __future__ import annotations

import logging

from isotherm.broker.partitions.partition import Partition
from isotherm.errors import PolicyViolationError, RemoteStorageNotReadyError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.rewriting.adoption import HISTORY_EPOCH, HISTORY_EPOCHS
from isotherm.types import Offset

logger = logging.getLogger(__name__)


def begin_behind(
    partition: Partition, log_manager: LogManager, start_offset: Offset, end_offset: Offset
) -> None:
    """Begin the log at `end_offset`; no effect if it does. See `AdoptsHistories` for errors."""
    with partition.led_log() as log:
        if log.local_log_start_offset >= end_offset:
            return
        check_has_no_record(log, start_offset)
        log_manager.truncate_log_fully_and_start_at(
            log,
            end_offset,
            log_start_offset=log.log_start_offset,
            leader_epochs=HISTORY_EPOCHS,
            producers=(),
        )
        log.begin_epoch(partition.leader_epoch)
        log.update_highest_offset_in_remote_storage(end_offset - 1)
    logger.info(
        "log starts after the loaded history partition=%s start_offset=%d end_offset=%d",
        partition.topic_id_partition,
        start_offset,
        end_offset,
    )


def check_has_no_record(log: PartitionLog, start_offset: Offset) -> None:
    """Raise PolicyViolationError for a log that has or had records of producers, and
    RemoteStorageNotReadyError for one that does not end at `start_offset`."""
    place = f"partition={log.topic_partition} log_end_offset={log.log_end_offset}"
    # Refused only for what no later leader can lack: a committed record, or one below the history.
    if log.high_watermark > start_offset:
        raise PolicyViolationError(
            f"the partition has got records since the job has planned {place}"
            f" planned_end={start_offset}"
        )
    if log.log_end_offset != start_offset:
        raise RemoteStorageNotReadyError(
            f"the log does not end where the history begins {place} start_offset={start_offset}"
        )
    epochs = [
        entry.epoch
        for entry in log.leader_epochs.entries
        if entry.start_offset < log.log_end_offset
    ]
    if log.size_in_bytes or any(epoch != HISTORY_EPOCH for epoch in epochs):
        raise PolicyViolationError(
            f"the partition has records of producers {place} leader_epochs={epochs}"
            f" local_bytes={log.size_in_bytes}"
        )


def is_replicated(partition: Partition, end_offset: Offset) -> bool:
    """Whether each in-sync replica has the log up to `end_offset`."""
    followers = partition.follower_states()
    partition.check_is_leader()
    return all(
        followers[replica].log_end_offset >= end_offset
        for replica in partition.isr
        if replica in followers
    )
