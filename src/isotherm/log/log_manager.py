"""All logs of a broker: loads, creates and deletes them, and does their background work.

One process at a time writes to a log directory (`.lock`). If a directory fails, it goes offline with
its logs; the others continue. The methods for background work are ticks, which the owner of the
threads calls: each does what is due and returns. Source: Kafka LogManager.java.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    CorruptDataError,
    CorruptMetadataError,
    IsothermError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
)
from isotherm.log.checkpoints import (
    load_partition_metadata,
    save_clean_shutdown,
    save_partition_metadata,
)
from isotherm.log.cleaner.log_cleaner_manager import LogCleanerManager
from isotherm.log.environment import LogEnvironment, StartedLog
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import FileSystem
from isotherm.log.locked_dir import LockedDir, lock_directory
from isotherm.log.log_dir import LogDir
from isotherm.log.log_loader import load_log
from isotherm.log.offline_logs import OfflineLog, partitions_of
from isotherm.log.partition_directories import (
    CLUSTER_METADATA_PARTITION,
    FoundDirectories,
    PartitionCatalog,
    PartitionDirectory,
    find_directories,
    identify,
    missing_directories,
)
from isotherm.log.partition_log import PartitionLog
from isotherm.log.retention import DeletedSegment
from isotherm.segment.file_names import (
    PartitionDirectoryState,
    partition_directory_name,
    retired_partition_directory_name,
)
from isotherm.types import Offset, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)


class LogManager:
    """Thread-safe. Call `startup` first and `shutdown` last."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        *,
        config: BrokerConfig,
        topic_config_for: Callable[[str], TopicConfig],
        clock: Clock,
        fs: FileSystem,
        rng: random.Random,
        on_log_dir_failure: Callable[[LogDir], None] = lambda log_dir: None,
        catalog: PartitionCatalog | None = None,
    ) -> None:
        """`topic_config_for` returns a topic's whole configuration; called while loading. `catalog`
        tells whether the partition of a log still exists: a crash, or a missing directory, may have
        kept the log from being deleted."""
        self._config = config
        self._topic_config_for = topic_config_for
        self._catalog = catalog
        self._clock = clock
        self._fs = fs
        self._rng = rng
        self._log_dirs = [LogDir(path, on_log_dir_failure) for path in log_dirs]
        self._environment = LogEnvironment(
            FileCache(fs, config.log_dir_open_files_max),
            clock,
            rng,
            config.remote.remote_log_storage_system_enable,
            config.producer_id_expiration_ms,
            self._checkpoint_log_start,
        )
        self._locked: dict[Path, LockedDir] = {}
        # Directories whose logs are all in `_logs`. The checkpoints of others would be incomplete.
        self._loaded: set[Path] = set()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, OfflineLog] = {}
        self._deleted_directories: list[tuple[TimestampMs, LogDir, Path]] = []
        self._lock = threading.RLock()
        self.cleaner_manager = LogCleanerManager(self.logs, clock=clock, fs=fs)

    # ---- start and stop

    def open_metadata_log(self, config: TopicConfig, topic_id: uuid.UUID) -> PartitionLog:
        """Open the log of `__cluster_metadata-0`, in the first directory. Call it before `startup`.

        It is loaded first because it has the topics' configurations.
        """
        self._lock_directories()
        log_dir = self._log_dirs[0]
        log_dir.check_online()
        with self._lock:
            directory = log_dir.path / partition_directory_name(CLUSTER_METADATA_PARTITION)
            if not self._fs.exists(directory):
                return self._create_in(log_dir, CLUSTER_METADATA_PARTITION, topic_id, config)
            try:
                log = self._load(log_dir, directory, CLUSTER_METADATA_PARTITION, config, topic_id)
            except CorruptDataError as error:
                raise CorruptMetadataError(
                    "the cluster's metadata log is damaged, and nothing is started without it"
                    f" dir={directory} reason='{error}' hint='restore it from a copy'"
                ) from error
            self._logs[CLUSTER_METADATA_PARTITION] = log
            return log

    def startup(self) -> None:
        """Lock the directories and load every log in them, with recovery after an unclean stop.

        Raises LogDirFailedError, with nothing left locked, if another process writes to one of them
        or none is usable. A single failing directory is logged and goes offline, and so does a
        single damaged log. Raises CorruptMetadataError if the cluster's metadata lacks a partition
        that has a log.
        """
        try:
            self._lock_directories()
            self._load_directories()
        except IsothermError:
            self.shutdown()
            raise

    def _load_directories(self) -> None:
        found: dict[Path, FoundDirectories] = {}
        for log_dir in self.live_log_dirs():
            with suppress(LogDirFailedError):  # the directory is offline, which was logged
                found[log_dir.path] = find_directories(self._fs, log_dir)
        partitions = [each for listed in found.values() for each in listed.partitions]
        identified = identify(self._fs, partitions, self._catalog)
        offline = missing_directories(
            self._locked.values(), {each.topic_partition for each in partitions}, self._catalog
        )
        for each in (*offline, *identified.offline):
            self._offline[each.topic_partition] = each
        delay_ms = self._config.topic_defaults.file_delete_delay_ms
        for log_dir in self.live_log_dirs():
            for path in found[log_dir.path].deleted:
                self._delete_later(log_dir, path, delay_ms)
            with suppress(LogDirFailedError):
                for directory in identified.deleted:
                    if directory.log_dir is log_dir:
                        self._retire(log_dir, directory.path, directory.topic_partition, delay_ms)
                mine = [each for each in identified.loaded if each[0].log_dir is log_dir]
                self._load_directory(log_dir, mine)
        for topic_partition in self._logs.keys() & self._offline.keys():
            del self._offline[topic_partition]  # its log is in another directory
        for damaged in self.offline_logs():
            damaged.report()
        if not self.live_log_dirs():
            raise LogDirFailedError(
                f"no log directory is usable dirs={[str(d.path) for d in self._log_dirs]}"
            )

    def _load_directory(
        self,
        log_dir: LogDir,
        directories: Iterable[tuple[PartitionDirectory, uuid.UUID | None]],
    ) -> None:
        workers = self._config.num_recovery_threads_per_data_dir
        with ThreadPoolExecutor(workers, thread_name_prefix="log-recovery") as pool:
            logs = pool.map(lambda item: self._load_configured(*item), directories)
            for log in logs:
                if log is not None:
                    with self._lock:
                        self._logs[log.topic_partition] = log
        self._loaded.add(log_dir.path)

    def _load_configured(
        self, directory: PartitionDirectory, topic_id: uuid.UUID | None
    ) -> PartitionLog | None:
        """None if the log is offline, or is in another directory as well."""
        log_dir, path, topic_partition = directory
        if topic_partition in self._logs:
            logger.error("directory is left alone, the log is in another one path=%s", path)
            return None
        config = self._topic_config_for(topic_partition.topic)
        try:
            return self._load(log_dir, path, topic_partition, config, topic_id)
        except CorruptDataError as error:
            # An unreadable log is neither served in part nor overwritten. The others are loaded.
            with self._lock:
                self._offline[topic_partition] = OfflineLog(topic_partition, log_dir, path, error)
            return None

    def _load(
        self,
        log_dir: LogDir,
        path: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
        topic_id: uuid.UUID | None,
    ) -> PartitionLog:
        return load_log(
            self._environment,
            log_dir,
            path,
            topic_partition,
            config,
            topic_id=topic_id,
            checkpoints=self._locked[log_dir.path].checkpoints(topic_partition),
        )

    def load_again(self, topic_partition: TopicPartition) -> PartitionLog:
        """Load the log of an offline partition whose files were repaired.

        Raises CorruptDataError if they are still damaged, and LogDirFailedError.
        """
        with self._lock:
            offline = self._offline[topic_partition]
            topic_id = load_partition_metadata(self._fs, offline.directory)
            config = self._topic_config_for(topic_partition.topic)
            log = self._load(offline.log_dir, offline.directory, topic_partition, config, topic_id)
            del self._offline[topic_partition]
            self._logs[topic_partition] = log
            return log

    def shutdown(self) -> None:
        """Close every log, write the clean shutdown marker, unlock. Idempotent."""
        with self._lock:
            # Logs first, so that the checkpoints have their final offsets.
            self._for_each_log("close", PartitionLog.close)
            self.checkpoint()
            for path, locked in self._locked.items():
                # A directory that was never loaded keeps its state. One with an offline log gets
                # no marker, as that log may have to be recovered later.
                is_whole = not partitions_of(self.offline_logs(), locked.log_dir)
                if locked.log_dir.is_online and (
                    is_whole if path in self._loaded else locked.was_clean
                ):
                    self._for_dir(
                        locked.log_dir, "shut down", partial(save_clean_shutdown, self._fs, path)
                    )
                locked.lock.release()
            self._locked = {}
            self._loaded = set()
            self._logs = {}
            self._offline = {}

    def _lock_directories(self) -> None:
        with self._lock:
            for log_dir in self._log_dirs:
                if log_dir.is_online and log_dir.path not in self._locked:
                    try:
                        self._locked[log_dir.path] = lock_directory(self._fs, log_dir)
                    except OSError as error:
                        log_dir.fail(error, "open")

    # ---- logs

    def log(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def logs(self) -> tuple[PartitionLog, ...]:
        """A snapshot, including logs in offline directories."""
        with self._lock:
            return tuple(self._logs.values())

    def offline_logs(self) -> tuple[OfflineLog, ...]:
        """Logs with damaged files. All logs of an offline directory are offline besides."""
        with self._lock:
            return tuple(self._offline.values())

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._offline

    def log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(self._log_dirs)

    def live_log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(log_dir for log_dir in self._log_dirs if log_dir.is_online)

    def offline_log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(log_dir for log_dir in self._log_dirs if not log_dir.is_online)

    def create_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, config: TopicConfig
    ) -> PartitionLog:
        """The partition's log. A missing log is created in the live directory with the fewest logs.

        An existing log with another topic id belongs to an earlier topic: delete it first.
        """
        with self._lock:
            log = self._logs.get(topic_partition)
            if log is not None:
                if log.topic_id is None:  # a crash came between the directory and its id
                    log.topic_id = topic_id
                    with log.log_dir.errors_fail_it(f"name {topic_partition}"):
                        save_partition_metadata(self._fs, log.directory, topic_id)
                assert log.topic_id == topic_id, (log, topic_id)
                return log
            if topic_partition in self._offline:
                raise LogDirFailedError(f"the partition is offline partition={topic_partition}")
            live = self.live_log_dirs()
            if not live:
                raise LogDirFailedError(f"no log directory is online partition={topic_partition}")
            log_dir = min(live, key=self._log_count)
            return self._create_in(log_dir, topic_partition, topic_id, config)

    def _log_count(self, log_dir: LogDir) -> int:
        return sum(1 for log in self._logs.values() if log.log_dir is log_dir)

    def _create_in(
        self,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
    ) -> PartitionLog:
        directory = log_dir.path / partition_directory_name(topic_partition)
        if any(topic_partition in locked.named for locked in self._locked.values()):
            # Offsets of an earlier topic of this name must not be applied to the new log.
            self.checkpoint()
        with log_dir.errors_fail_it(f"create {topic_partition}"):
            self._fs.make_directory(directory)
            save_partition_metadata(self._fs, directory, topic_id)
            self._fs.sync_directory(log_dir.path)
        log = load_log(
            self._environment, log_dir, directory, topic_partition, config, topic_id=topic_id
        )
        self._logs[topic_partition] = log
        return log

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Remove a log. Its files are removed after file.delete.delay.ms. No error without a log."""
        with self.cleaner_manager.paused(topic_partition):
            log = self._logs.get(topic_partition)
            if log is not None and log.log_dir.is_online:
                self.cleaner_manager.forget(log)
            self._delete_log(topic_partition)

    def _delete_log(self, topic_partition: TopicPartition) -> None:
        with self._lock:
            damaged = self._offline.pop(topic_partition, None)
            if damaged is not None and self._fs.exists(damaged.directory):
                delay_ms = self._config.topic_defaults.file_delete_delay_ms
                self._retire(damaged.log_dir, damaged.directory, topic_partition, delay_ms)
            log = self._logs.pop(topic_partition, None)
            if log is None:
                return
            log.abandon()
            if not log.log_dir.is_online:
                return
            delay_ms = log.config.file_delete_delay_ms
            self._retire(log.log_dir, log.directory, topic_partition, delay_ms)

    def _retire(
        self, log_dir: LogDir, directory: Path, topic_partition: TopicPartition, delay_ms: int
    ) -> None:
        retired = directory.with_name(
            retired_partition_directory_name(
                topic_partition,
                uuid.UUID(int=self._rng.getrandbits(128)),
                PartitionDirectoryState.DELETED,
            )
        )
        with log_dir.errors_fail_it(f"delete {topic_partition}"):
            # Renamed at once: the topic can be created again, and a start completes the deletion.
            self._fs.rename(directory, retired)
            self._fs.sync_directory(log_dir.path)
        self._delete_later(log_dir, retired, delay_ms)

    def _delete_later(self, log_dir: LogDir, path: Path, delay_ms: int) -> None:
        with self._lock:
            self._deleted_directories.append((self._clock.now_ms() + delay_ms, log_dir, path))

    def truncate_log(self, log: PartitionLog, offset: Offset) -> None:
        """Drop the records at `offset` and above, and lower the cleaner's checkpoint."""
        with self.cleaner_manager.paused(log.topic_partition):
            log.truncate_to(offset)
            self.checkpoint()  # the recovery point must not be above the new end
            active = log.segments()[-1]
            self.cleaner_manager.truncate_checkpoint(log, active.base_offset)

    def update_log_config(self, log: PartitionLog, config: TopicConfig) -> None:
        """Apply a topic's new configuration. A log that is no longer compacted is not cleaned."""
        was_compacted = log.config.compacts
        log.update_config(config)
        if was_compacted and not config.compacts:
            self.cleaner_manager.abort(log.topic_partition)

    def update_config(self, config: BrokerConfig) -> None:
        """Apply the dynamic keys: producer.id.expiration.ms."""
        expiration_ms = config.producer_id_expiration_ms
        with self._lock:
            self._environment = dataclasses.replace(
                self._environment, producer_id_expiration_ms=expiration_ms
            )
            for log in self._logs.values():
                log.producers.expiration_ms = expiration_ms

    # ---- background work

    def delete_expired_segments(self) -> dict[TopicPartition, list[DeletedSegment]]:
        """Apply retention to every log and drop expired producers; returns the deleted segments.

        The cleaner deletes segments of compacted logs, between its rounds.
        """
        deleted: dict[TopicPartition, list[DeletedSegment]] = {}

        def delete_expired(log: PartitionLog) -> None:
            segments = log.delete_old_segments(self._clock.now_ms())
            if segments:
                deleted[log.topic_partition] = segments

        now_ms = self._clock.now_ms()
        self._for_each_log("forget producers", lambda log: log.remove_expired_producers(now_ms))
        with self.cleaner_manager.logs_for_retention() as logs:
            self._for_each_log("retention", delete_expired, logs)
        return deleted

    def delete_marked_files(self) -> None:
        """Remove segments and directories that were marked file.delete.delay.ms ago."""
        now_ms = self._clock.now_ms()
        self._for_each_log("file deletion", lambda log: log.delete_marked_files(now_ms))
        with self._lock:
            due = [item for item in self._deleted_directories if item[0] <= now_ms]
            self._deleted_directories = [
                item for item in self._deleted_directories if item[0] > now_ms
            ]
        for _, log_dir, path in due:
            self._for_dir(log_dir, "delete a directory", partial(self._fs.remove_directory, path))

    def flush_dirty_logs(self) -> None:
        """Flush closed segments, and the logs whose flush.ms has passed."""
        now_ms = self._clock.now_ms()
        self._for_each_log("flush", lambda log: log.maybe_flush(now_ms))

    def flush_closed_segments(self) -> None:
        """Flush closed segments, so that a recovery reads the active segments only."""
        self._for_each_log("flush", lambda log: log.flush(closed_segments_only=True))

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks of every live directory.

        One thread at a time: the latest offsets are written last, and a topic that is deleted
        meanwhile is not written again.
        """
        with self._lock:
            for log_dir in self.live_log_dirs():
                if log_dir.path in self._loaded:
                    logs = [log for log in self.logs() if log.log_dir is log_dir]
                    offline = partitions_of(self.offline_logs(), log_dir)
                    save = partial(self._locked[log_dir.path].save, self._fs, logs, offline)
                    self._for_dir(log_dir, "checkpoint", save)

    def _checkpoint_log_start(self, log: StartedLog) -> None:
        """Writes all logs of the directory: calls that wait for the lock find theirs written."""
        with self._lock:
            if log.durable_log_start_offset < log.log_start_offset:
                locked = self._locked.get(log.log_dir.path)
                if locked is not None and log.log_dir.path in self._loaded:
                    logs = [each for each in self.logs() if each.log_dir is log.log_dir]
                    offline = partitions_of(self.offline_logs(), log.log_dir)
                    # At first all files are written together: a missing one counts as lost.
                    save = locked.save_log_starts if locked.named else locked.save
                    save(self._fs, logs, offline)

    def _for_each_log(
        self,
        action: str,
        do: Callable[[PartitionLog], None],
        logs: Iterable[PartitionLog] | None = None,
    ) -> None:
        """Call `do` for each log. A failing log takes its directory offline, the others go on."""
        for log in self.logs() if logs is None else logs:
            if not log.log_dir.is_online:
                continue
            try:
                do(log)
            except LogDirFailedError:
                logger.exception("log is skipped action=%s log=%r", action, log)
            except NotLeaderOrFollowerError:
                logger.debug("log was closed meanwhile action=%s log=%r", action, log)

    def _for_dir(self, log_dir: LogDir, action: str, do: Callable[[], None]) -> None:
        try:
            with log_dir.errors_fail_it(action):
                do()
        except LogDirFailedError:
            logger.exception("log directory is skipped action=%s dir=%s", action, log_dir.path)
