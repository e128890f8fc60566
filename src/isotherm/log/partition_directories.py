"""Identifies the partition directories that a start finds, and decides what happens to each.

The topic id in `partition.metadata` identifies the topic. The cluster's metadata knows every topic,
past and present. A log is deleted only if its topic was. A log of a partition that was moved to
other brokers while this one was down is set aside as `-stray`, which only an operator deletes. A
directory of a topic that the cluster never had means that the metadata has lost records: the broker
does not start then.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from isotherm.errors import (
    CorruptCheckpointError,
    CorruptLogError,
    CorruptMetadataError,
    LogDirFailedError,
)
from isotherm.log.checkpoints import load_partition_metadata, save_partition_metadata
from isotherm.log.fs import FileSystem
from isotherm.log.locked_dir import LockedDir
from isotherm.log.log_copy import log_dirs_left_behind
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.offline_logs import GIVE_UP_HINT, OfflineLog
from isotherm.segment.file_names import (
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PartitionDirectoryState,
    parse_partition_directory,
    partition_directory_name,
)
from isotherm.types import CLUSTER_METADATA_TOPIC, TopicPartition, uuid_to_text

logger = logging.getLogger(__name__)

CLUSTER_METADATA_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


class PartitionCatalog(Protocol):
    """The topics in the cluster's metadata."""

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """The topic id of an existing partition; None if it does not exist."""

    def was_removed(self, topic_id: uuid.UUID) -> bool:
        """Whether a topic of this id was deleted. Its logs may still exist."""

    def is_elsewhere(self, topic_partition: TopicPartition) -> bool:
        """Whether an existing partition has its replicas on other brokers only."""


class FoundDirectories(NamedTuple):
    partitions: list[PartitionDirectory]
    marked: list[PartitionDirectory]
    """Directories that were marked for deletion before."""
    copies: list[PartitionDirectory]
    """Directories of logs that were on their way to another log directory."""


class IdentifiedDirectories(NamedTuple):
    loaded: list[tuple[PartitionDirectory, uuid.UUID | None]]
    """Directories to load, with their topic ids."""
    deleted: list[PartitionDirectory]
    """Directories to delete, because their topics were deleted."""
    stray: list[PartitionDirectory]
    """Directories of partitions that have no replica here any more."""
    offline: list[OfflineLog]


class StartPlan(NamedTuple):
    """What a start does with the partition directories that it finds."""

    loaded: list[tuple[PartitionDirectory, uuid.UUID | None]]
    """Directories to load, with their topic ids."""
    retired: list[PartitionDirectory]
    """Directories to rename and delete: their topics were deleted, or a move has replaced them."""
    stray: list[PartitionDirectory]
    """Directories to rename and keep."""
    marked: list[PartitionDirectory]
    """Directories whose deletion was begun before."""
    copies: list[PartitionDirectory]
    """Copies of moves that were interrupted. What happens to one depends on its loaded log."""
    offline: list[OfflineLog]

    def of(self, log_dir: LogDir) -> StartPlan:
        """The part of one log directory."""

        def own(directories: Iterable[PartitionDirectory]) -> list[PartitionDirectory]:
            return [directory for directory in directories if directory.log_dir is log_dir]

        return StartPlan(
            [directory for directory in self.loaded if directory[0].log_dir is log_dir],
            own(self.retired),
            own(self.stray),
            own(self.marked),
            own(self.copies),
            [log for log in self.offline if log.log_dir is log_dir],
        )


def plan_start(
    fs: FileSystem, locked: Sequence[LockedDir], catalog: PartitionCatalog | None
) -> StartPlan:
    """Find the directories of all partitions and decide what happens to each. Log directories that
    fail meanwhile go offline and are left out. Raises what `identify` raises."""
    listings: list[FoundDirectories] = []
    for held in locked:
        if held.log_dir.is_online:
            with suppress(LogDirFailedError):  # the directory is offline, which was logged
                listings.append(find_directories(fs, held.log_dir))
    partitions = [directory for listing in listings for directory in listing.partitions]
    replaced = replaced_by_moves(fs, partitions)
    partitions = [partition for partition in partitions if partition not in replaced]
    identified = identify(fs, partitions, catalog)
    # Looked for in all log directories: a checkpoint may still name a log that was moved.
    missing = missing_directories(
        locked, {partition.topic_partition for partition in partitions}, catalog
    )
    return StartPlan(
        identified.loaded,
        [*identified.deleted, *replaced],
        identified.stray,
        [directory for listing in listings for directory in listing.marked],
        [directory for listing in listings for directory in listing.copies],
        [*missing, *identified.offline],
    )


def find_directories(fs: FileSystem, log_dir: LogDir) -> FoundDirectories:
    """Find the partition directories of a log directory. Raises LogDirFailedError if they cannot be
    listed: the log directory goes offline."""
    directories = FoundDirectories([], [], [])
    with log_dir.errors_fail_it("list"):
        names = fs.list_names(log_dir.path)
    for name in names:
        parsed = parse_partition_directory(name)
        # The metadata log is loaded before all others, since it has their configurations.
        if parsed is None or parsed.topic_partition == CLUSTER_METADATA_PARTITION:
            continue
        directory = PartitionDirectory(log_dir, log_dir.path / name, parsed.topic_partition)
        if parsed.state is PartitionDirectoryState.LIVE:
            directories.partitions.append(directory)
        elif parsed.state is PartitionDirectoryState.DELETED:
            directories.marked.append(directory)
        elif parsed.state is PartitionDirectoryState.FUTURE:
            directories.copies.append(directory)
        else:
            logger.warning("directory is ignored path=%s", directory.path)
    return directories


def replaced_by_moves(
    fs: FileSystem, directories: Sequence[PartitionDirectory]
) -> list[PartitionDirectory]:
    """For each partition with several directories, those that a move has replaced: a crash came
    before their deletion, or their disk failed at that moment and has returned. None in a log
    directory that fails meanwhile."""
    counted = Counter(directory.topic_partition for directory in directories)
    # By topic id as well: a mark may be older than a topic that was created again meanwhile.
    by_log: dict[tuple[TopicPartition, uuid.UUID | None], list[PartitionDirectory]] = {}
    marks: dict[PartitionDirectory, frozenset[Path]] = {}
    for directory in directories:
        if counted[directory.topic_partition] == 1:
            continue
        with (
            suppress(LogDirFailedError, CorruptCheckpointError),
            directory.log_dir.errors_fail_it(f"identify {directory.topic_partition}"),
        ):
            topic_id = load_partition_metadata(fs, directory.path)
            marks[directory] = log_dirs_left_behind(fs, directory.path)
            by_log.setdefault((directory.topic_partition, topic_id), []).append(directory)
    replaced: list[PartitionDirectory] = []
    for (_, topic_id), copies in by_log.items():
        named = frozenset[Path]().union(*(marks[copy] for copy in copies))
        of_log = [copy for copy in copies if copy.log_dir.path in named]
        if topic_id is not None and len(of_log) < len(copies):  # one of them is the log
            replaced += of_log
    return replaced


def identify(
    fs: FileSystem, directories: Iterable[PartitionDirectory], catalog: PartitionCatalog | None
) -> IdentifiedDirectories:
    """Decide what happens to each directory. A lost `partition.metadata` is written again.

    Without a catalog every log is loaded. Raises CorruptMetadataError, with nothing changed, if
    the cluster's metadata lacks a partition that it should have. Directories that fail are
    offline.
    """
    identified = IdentifiedDirectories([], [], [], [])
    counted = Counter(directory.topic_partition for directory in directories)
    twice = {name for name, count in counted.items() if count > 1}
    for directory in directories:
        try:
            with directory.log_dir.errors_fail_it(f"identify {directory.topic_partition}"):
                _identify(fs, directory, catalog, twice, identified)
        except CorruptLogError as error:
            identified.offline.append(OfflineLog(directory, error))
        except LogDirFailedError:
            continue  # the directory is offline, which was logged
    return identified


def _identify(
    fs: FileSystem,
    directory: PartitionDirectory,
    catalog: PartitionCatalog | None,
    found_twice: Container[TopicPartition],
    identified: IdentifiedDirectories,
) -> None:
    path, partition = directory.path, directory.topic_partition
    fault = None
    try:
        topic_id = load_partition_metadata(fs, path)
    except CorruptCheckpointError as error:
        topic_id, fault = None, str(error)
    current = catalog.topic_id(partition) if catalog is not None else None
    if catalog is None or (topic_id is not None and topic_id == current):
        if catalog is not None and catalog.is_elsewhere(partition):
            logger.warning("log of a partition that is on other brokers is set aside dir=%s", path)
            identified.stray.append(directory)
        else:
            identified.loaded.append((directory, topic_id))
    elif topic_id is None and current is not None:
        _name_again(fs, directory, current, fault, found_twice)
        identified.loaded.append((directory, current))
    elif topic_id is None:
        # Without an id nothing shows whether its topic was deleted.
        logger.error("directory is ignored: there is no such partition dir=%s", path)
    elif catalog.was_removed(topic_id):
        logger.warning("log of a deleted topic is deleted dir=%s", path)
        identified.deleted.append(directory)
    elif current is not None:
        raise CorruptLogError(
            "topic id is of no topic that this cluster ever had"
            f" file={path / PARTITION_METADATA_NAME}"
            f" topic_id={uuid_to_text(topic_id)} expected={uuid_to_text(current)}",
            "if the log is this topic's, delete the file, else move the directory away;"
            " then start again",
        )
    else:
        raise CorruptMetadataError(
            "the cluster's metadata does not know a partition whose log is here: it has lost"
            f" records, or the log is another cluster's dir={path}"
            f" topic_id={uuid_to_text(topic_id)}"
            f" hint='restore {CLUSTER_METADATA_PARTITION}, or move the directory away'"
        )


def missing_directories(
    locked: Iterable[LockedDir],
    present: Container[TopicPartition],
    catalog: PartitionCatalog | None,
) -> list[OfflineLog]:
    """Partitions that had records on disk and whose directories are missing: they are offline.

    An empty new log would hide the loss.
    """
    return [
        OfflineLog(
            PartitionDirectory(
                directory.log_dir,
                path := directory.log_dir.path / partition_directory_name(partition),
                partition,
            ),
            CorruptLogError(f"the directory of a partition is missing dir={path}", GIVE_UP_HINT),
        )
        for directory in locked
        for partition, recovery_point in directory.recovery_points.items()
        if recovery_point > 0
        and partition not in present
        and catalog is not None
        and catalog.topic_id(partition) is not None
        and not catalog.is_elsewhere(partition)
    ]


def _name_again(
    fs: FileSystem,
    directory: PartitionDirectory,
    topic_id: uuid.UUID,
    fault: str | None,
    found_twice: Container[TopicPartition],
) -> None:
    file = directory.path / PARTITION_METADATA_NAME
    if directory.topic_partition in found_twice:
        raise CorruptLogError(
            f"topic id is lost, and another directory is of this partition too file={file}",
            "move away the directory that is not the topic's, and start again",
        )
    # After a crash between creating the directory and writing its id, there is no log yet.
    if fault or any(name.endswith(LOG_SUFFIX) for name in fs.list_names(directory.path)):
        logger.warning(
            "topic id is lost and taken from the cluster's metadata file=%s topic_id=%s"
            " reason='%s'",
            file,
            uuid_to_text(topic_id),
            fault or "it is missing",
        )
    save_partition_metadata(fs, directory.path, topic_id)
