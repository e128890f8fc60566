"""Writes partition directories for a stopped broker whose history exists only in the bucket.

    <topic>-<partition>/partition.metadata         the topic's id
    <topic>-<partition>/<log end>.log              empty, or markers that abort open transactions
    <topic>-<partition>/<log end>.snapshot         the producers after the last segment
    <topic>-<partition>/leader-epoch-checkpoint    the epochs of the history
    log-start-offset-checkpoint                    the start of each history

With such a directory, a broker leads a partition whose local log begins where the history ends. It
serves lower offsets from the remote tier, and appends continue after the history. The files are
Kafka's own. Missing indexes are created when the log is opened.

A transaction without a tiered end is aborted: its marker was lost with the local log, and no
coordinator would ever end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import ConfigError
from isotherm.log.checkpoints import (
    encode_offset_checkpoint,
    load_offset_checkpoint,
    save_partition_metadata,
)
from isotherm.log.fs import FileSystem
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.segment.file_names import (
    LEADER_EPOCH_CHECKPOINT_NAME,
    LOG_START_OFFSET_CHECKPOINT_NAME,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    partition_directory_name,
    segment_file_name,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, encode_leader_epoch_checkpoint
from isotherm.segment.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)
from isotherm.types import NO_LEADER_EPOCH, Offset, TimestampMs, TopicIdPartition


@dataclass(frozen=True, slots=True)
class RebuiltPartition:
    """A partition with the history [log_start, log_end) in the bucket.

    `epochs` are in ascending order. There are none if the metadata of every segment names only
    epochs that begin behind it, which is damage.
    """

    owner: TopicIdPartition
    log_start: Offset
    log_end: Offset
    epochs: Sequence[EpochEntry]
    producer_snapshot: bytes | None

    def producers(self) -> list[ProducerSnapshotEntry]:
        return read_producer_snapshot(self.producer_snapshot) if self.producer_snapshot else []


def write_partition_directories(
    fs: FileSystem, folder: Path, partitions: Sequence[RebuiltPartition], now_ms: TimestampMs
) -> None:
    """Write directories that an operator moves into the log directories of a stopped broker.

    Raises ConfigError unless `folder` is new or empty, since it must not be a broker's log
    directory.
    """
    if fs.exists(folder) and fs.list_names(folder):
        raise ConfigError(
            f"the folder for the partition directories is not empty folder={folder}"
            " hint='choose an empty one, and move the directories into log.dirs of the stopped"
            " broker'"
        )
    fs.make_directory(folder)
    for partition in partitions:
        write_partition_directory(fs, folder, partition, now_ms)
    write_log_starts(fs, folder, partitions)


def write_partition_directory(
    fs: FileSystem, log_dir: Path, partition: RebuiltPartition, now_ms: TimestampMs
) -> None:
    directory = log_dir / partition_directory_name(partition.owner.topic_partition)
    fs.make_directory(directory)
    save_partition_metadata(fs, directory, partition.owner.topic_id)
    end = partition.log_end
    files = {
        segment_file_name(end, LOG_SUFFIX): abort_markers(partition, now_ms),
        segment_file_name(end, PRODUCER_SNAPSHOT_SUFFIX): partition.producer_snapshot
        or encode_producer_snapshot([]),
        LEADER_EPOCH_CHECKPOINT_NAME: encode_leader_epoch_checkpoint(partition.epochs),
    }
    for name, content in files.items():
        fs.write_atomically(directory / name, content)
    fs.sync_directory(log_dir)


def write_log_starts(fs: FileSystem, log_dir: Path, partitions: Sequence[RebuiltPartition]) -> None:
    """Add the log start offsets to the checkpoint, and keep those of other partitions."""
    path = log_dir / LOG_START_OFFSET_CHECKPOINT_NAME
    starts = load_offset_checkpoint(fs, path)
    starts |= {partition.owner.topic_partition: partition.log_start for partition in partitions}
    fs.write_atomically(path, encode_offset_checkpoint(starts))


def abort_markers(partition: RebuiltPartition, now_ms: TimestampMs) -> bytes:
    """The records after the history: an abort marker for each producer with an open transaction."""
    undecided = [
        producer
        for producer in partition.producers()
        if producer.current_transaction_first_offset >= 0
    ]
    last_epoch = partition.epochs[-1].epoch if partition.epochs else NO_LEADER_EPOCH
    return b"".join(
        build_end_transaction_marker(
            ControlRecordType.ABORT,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            # A snapshot has -1 for a producer that has had no marker.
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
            timestamp_ms=now_ms,
            base_offset=offset,
            partition_leader_epoch=last_epoch,
        )
        for offset, transaction in enumerate(undecided, partition.log_end)
    )
