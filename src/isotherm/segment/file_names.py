"""Kafka's names of a log's files and directories.

A segment's files are named by its base offset, as 20 decimal digits, plus a suffix. A second suffix
marks files that are being created or deleted. Source: Kafka LogFileUtils.java, UnifiedLog.java.
"""

from __future__ import annotations

import enum
import functools
import re
import uuid
from typing import NamedTuple

from isotherm.types import Offset, TopicPartition

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"

LEADER_EPOCH_CHECKPOINT_NAME = "leader-epoch-checkpoint"
PARTITION_METADATA_NAME = "partition.metadata"
TRANSACTION_INDEX_CHECKPOINT_NAME = "transaction-index-checkpoint"
RECOVERY_POINT_CHECKPOINT_NAME = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT_NAME = "log-start-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT_NAME = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT_NAME = "cleaner-offset-checkpoint"
META_PROPERTIES_NAME = "meta.properties"
CLEAN_SHUTDOWN_NAME = ".kafka_cleanshutdown"
LOCK_NAME = ".lock"

DIRECTORY_NAME_LENGTH_MAX = 255
_PARSED_NAMES_MAX = 1024

_SEGMENT_FILE = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.cleaned|\.swap|\.deleted)?"
)
# A topic may end in a dash and digits: the last number is the partition, because `.+` is greedy.
_PARTITION_DIRECTORY = re.compile(
    r"(?P<topic>.+)-(?P<partition>\d+)(?:\.(?P<id>[0-9a-f]{32})-(?P<state>delete|stray|future))?"
)


class SegmentFileName(NamedTuple):
    base_offset: Offset
    suffix: str
    temporary_suffix: str
    """Empty for a file in use, else one of CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX."""


class PartitionDirectoryState(enum.Enum):
    LIVE = ""
    DELETED = "delete"
    STRAY = "stray"
    FUTURE = "future"


class ParsedDirectoryName(NamedTuple):
    topic_partition: TopicPartition
    state: PartitionDirectoryState


def segment_file_name(base_offset: Offset, suffix: str, temporary_suffix: str = "") -> str:
    return f"{base_offset:020d}{suffix}{temporary_suffix}"


# A start parses each name five times, and partitions with few segments have the same names.
@functools.lru_cache(_PARSED_NAMES_MAX)
def parse_segment_file_name(name: str) -> SegmentFileName | None:
    """Parse the name of a segment's file; None for another file (a checkpoint, for instance)."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return SegmentFileName(int(match[1]), match[2], match[3] or "")


def partition_directory_name(topic_partition: TopicPartition) -> str:
    return str(topic_partition)


def retired_partition_directory_name(
    topic_partition: TopicPartition, unique_id: uuid.UUID, state: PartitionDirectoryState
) -> str:
    """`<topic>-<partition>.<32 hex>-delete` (or -stray, -future), at most 255 characters.

    The topic is shortened to fit, so only the state of a parsed retired name is reliable.
    """
    suffix = f"-{topic_partition.partition}.{unique_id.hex}-{state.value}"
    return f"{topic_partition.topic[: DIRECTORY_NAME_LENGTH_MAX - len(suffix)]}{suffix}"


def future_directory_name_fits(topic_partition: TopicPartition) -> bool:
    """Whether the name of a copy's directory has room for the whole topic, which a start reads
    from it."""
    name = f"{partition_directory_name(topic_partition)}.{'0' * 32}-"
    return len(name) + len(PartitionDirectoryState.FUTURE.value) <= DIRECTORY_NAME_LENGTH_MAX


def parse_partition_directory(name: str) -> ParsedDirectoryName | None:
    """Parse the name of a partition's directory; None for another directory."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    topic_partition = TopicPartition(match["topic"], int(match["partition"]))
    return ParsedDirectoryName(topic_partition, PartitionDirectoryState(match["state"] or ""))


def live_partition(directory_name: str, topic: str) -> int | None:
    """The partition of `topic` whose log is in the directory; None for any other directory."""
    parsed = parse_partition_directory(directory_name)
    if parsed is None or parsed.state is not PartitionDirectoryState.LIVE:
        return None
    return parsed.topic_partition.partition if parsed.topic_partition.topic == topic else None
