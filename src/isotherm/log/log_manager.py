"""All logs of a broker: loads, creates, moves and deletes them, and does their background work.

    locked_dirs.py          the log directories: their locks and checkpoints
    retired_directories.py  directories of logs that are deleted or moved

If a log directory fails, it goes offline with its logs; the others continue. The methods for
background work are ticks, which the owner of the threads calls: each does what is due and returns.
Source: Kafka LogManager.java.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

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
    NO_BROKER_EPOCH,
    load_partition_metadata,
    save_partition_metadata,
)
from isotherm.log.cleaner.log_cleaner_manager import LogCleanerManager
from isotherm.log.due_logs import AT_ONCE, DueLogs, LogWork
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import FileSystem
from isotherm.log.locked_dirs import LockedDirs
from isotherm.log.log_copy import LogCopy
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import LogCheckpoints, load_log
from isotherm.log.offline_logs import OfflineLog
from isotherm.log.partition_directories import (
    CLUSTER_METADATA_PARTITION,
    PartitionCatalog,
    plan_start,
)
from isotherm.log.partition_log import PartitionLog
from isotherm.log.retention import DeletedSegment
from isotherm.log.retired_directories import RetiredDirectories
from isotherm.segment.file_names import (
    PartitionDirectoryState,
    partition_directory_name,
    retired_partition_directory_name,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.types import UNKNOWN_OFFSET, Offset, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


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
        has the partitions that still exist: after a crash, or while a directory is missing, the log
        of a deleted partition may still be there."""
        self._config = config
        self._topic_config_for = topic_config_for
        self._catalog = catalog
        self._clock = clock
        self._fs = fs
        self._rng = rng
        self._log_dirs = [LogDir(path, on_log_dir_failure) for path in log_dirs]
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, OfflineLog] = {}
        self._lock = threading.RLock()
        self._retired = RetiredDirectories(fs, clock, rng)
        self._work = LogWork()
        self._locked = LockedDirs(fs, self._log_dirs, self._lock, self.logs, self.offline_logs)
        self._environment = LogEnvironment(
            FileCache(fs, config.log_dir_open_files_max),
            clock,
            rng,
            config.remote.remote_log_storage_system_enable,
            config.producer_id_expiration_ms,
            config.producer_ids_per_partition_max,
            self._locked.checkpoint_log_start,
            self._work,
        )
        self.broker_epoch = NO_BROKER_EPOCH
        """This broker's epoch in its cluster, for the marker of a clean shutdown."""
        self.interrupted_moves: dict[TopicPartition, LogDir] = {}
        """Logs that were on their way to another directory when the last process ended."""
        self.cleaner_manager = LogCleanerManager(self.logs, clock=clock, fs=fs)

    # ---- start and stop

    def open_metadata_log(self, config: TopicConfig, topic_id: uuid.UUID) -> PartitionLog:
        """Open the log of `__cluster_metadata-0`, in metadata.log.dir. Call it before `startup`.

        It is loaded first because it has the topics' configurations.
        """
        self._locked.lock()
        log_dir = self.metadata_log_dir
        log_dir.check_online()
        with self._lock:
            directory = _directory_in(log_dir, CLUSTER_METADATA_PARTITION)
            if not self._fs.exists(directory.path):
                return self._create_in(log_dir, CLUSTER_METADATA_PARTITION, topic_id, config)
            try:
                log = self._load(directory, config, topic_id)
            except CorruptDataError as error:
                raise CorruptMetadataError(
                    "the cluster's metadata log is damaged, and nothing is started without it"
                    f" dir={directory.path} reason='{error}' hint='restore it from a copy'"
                ) from error
            self._add(log)
            return log

    def startup(self) -> None:
        """Lock the directories and load every log in them, with recovery after an unclean stop.

        Raises LogDirFailedError, with nothing left locked, if another process writes to one of them
        or none is usable. A single failing directory is logged and goes offline, and so does a
        single damaged log. Raises CorruptMetadataError if the cluster's metadata lacks a partition
        that has a log.
        """
        try:
            self._locked.lock()
            self._load_directories()
        except IsothermError:
            self.shutdown()
            raise

    def _load_directories(self) -> None:
        plan = plan_start(self._fs, tuple(self._locked), self._catalog)
        for offline in plan.offline:
            self._offline[offline.topic_partition] = offline
        delay_ms = self._config.topic_defaults.file_delete_delay_ms
        for log_dir in self.live_log_dirs():
            own = plan.of(log_dir)
            for directory in own.marked:
                self._retired.delete_later(directory, delay_ms)
            with suppress(LogDirFailedError):
                for directory in own.retired:
                    self._retired.retire(directory, delay_ms)
                for directory in own.stray:
                    self._retired.set_aside(directory)
                self._load_directory(log_dir, own.loaded)
        self._note_interrupted_moves(plan.copies)
        for topic_partition in self._logs.keys() & self._offline.keys():
            del self._offline[topic_partition]  # its log is in another directory
        for damaged in self.offline_logs():
            damaged.report()
        if not self.live_log_dirs():
            raise LogDirFailedError(
                f"no log directory is usable dirs={[str(d.path) for d in self._log_dirs]}"
            )

    def _note_interrupted_moves(self, copies: Iterable[PartitionDirectory]) -> None:
        """Note the moves that the last process left unfinished, and retire their copies. A copy
        without its log is left alone: the log may be in a directory that is offline."""
        for copy in copies:
            log = self._logs.get(copy.topic_partition)
            if log is None or log.log_dir is copy.log_dir:
                logger.warning("copy of a log is ignored path=%s", copy.path)
                continue
            self.interrupted_moves[copy.topic_partition] = copy.log_dir
            with suppress(LogDirFailedError):
                self._retired.retire(copy, delay_ms=0)

    def _load_directory(
        self,
        log_dir: LogDir,
        directories: Iterable[tuple[PartitionDirectory, uuid.UUID | None]],
    ) -> None:
        workers = self._config.num_recovery_threads_per_data_dir
        logs = _in_threads(
            "log-recovery", workers, directories, lambda item: self._load_configured(*item)
        )
        with self._lock:
            for log in logs:
                if log is not None:
                    self._add(log)
        self._locked.note_loaded(log_dir)

    def _load_configured(
        self, directory: PartitionDirectory, topic_id: uuid.UUID | None
    ) -> PartitionLog | None:
        """Load a log with its topic's configuration; None if it is offline, or is in another
        directory as well."""
        topic_partition = directory.topic_partition
        if topic_partition in self._logs:
            logger.error("directory is ignored: the log is in another one path=%s", directory.path)
            return None
        config = self._topic_config_for(topic_partition.topic)
        try:
            return self._load(directory, config, topic_id)
        except CorruptDataError as error:
            # An unreadable log is neither served in part nor overwritten. The others are loaded.
            with self._lock:
                self._offline[topic_partition] = OfflineLog(directory, error)
            return None

    def _load(
        self, directory: PartitionDirectory, config: TopicConfig, topic_id: uuid.UUID | None
    ) -> PartitionLog:
        return load_log(
            self._environment,
            directory,
            config,
            topic_id=topic_id,
            checkpoints=self._locked.checkpoints(directory.log_dir, directory.topic_partition),
        )

    def load_again(self, topic_partition: TopicPartition) -> PartitionLog:
        """Load the log of an offline partition whose files were repaired.

        Raises CorruptDataError if they are still damaged, and LogDirFailedError.
        """
        with self._lock:
            offline = self._offline[topic_partition]
            topic_id = load_partition_metadata(self._fs, offline.directory)
            config = self._topic_config_for(topic_partition.topic)
            log = self._load(offline.place, config, topic_id)
            del self._offline[topic_partition]
            self._logs[topic_partition] = log
            return log

    def set_aside(self, topic_partition: TopicPartition) -> LogDir:
        """Rename the directory of an offline log to `-stray`, so that a new log can be created.
        Returns the log directory that has it. Raises LogDirFailedError."""
        with self._lock:
            offline = self._offline.pop(topic_partition)
            # Drop the log from the checkpoints before the rename: a start reports a log that a
            # checkpoint names and that has no directory.
            self.checkpoint()
            stray = self._retired.set_aside(offline.place)
        logger.warning("damaged log is set aside partition=%s path=%s", topic_partition, stray)
        return offline.log_dir

    def shutdown(self) -> None:
        """Close every log, write the clean shutdown marker, unlock. Idempotent."""
        with self._lock:
            # Logs first, so that the checkpoints have their final offsets.
            self._close_logs()
            self.checkpoint()
            self._locked.release(self.broker_epoch)
            self._logs = {}
            self._offline = {}

    def _close_logs(self) -> None:
        """Close the logs of each directory in num.recovery.threads.per.data.dir threads, as Kafka
        does: they wait for the disk. A failing log takes its directory offline."""
        workers = self._config.num_recovery_threads_per_data_dir * len(self._log_dirs)
        _in_threads("log-closing", workers, self._logs.values(), _close)

    def previous_broker_epoch(self) -> int:
        """See `LockedDirs.previous_broker_epoch`. Call it with the directories locked."""
        return self._locked.previous_broker_epoch()

    # ---- logs

    def log(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def logs(self) -> tuple[PartitionLog, ...]:
        """A snapshot, including logs in offline directories."""
        with self._lock:
            return tuple(self._logs.values())

    def offline_logs(self) -> tuple[OfflineLog, ...]:
        """Logs with damaged files.

        Logs of an offline directory are offline too, and not among them.
        """
        with self._lock:
            return tuple(self._offline.values())

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._offline

    @property
    def metadata_log_dir(self) -> LogDir:
        """The directory of the metadata log: without it the broker cannot run."""
        if self._config.quorum.metadata_log_dir is None:
            return self._log_dirs[0]
        metadata_dir = self._config.metadata_log_dir
        return next(log_dir for log_dir in self._log_dirs if log_dir.path == metadata_dir)

    def log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(self._log_dirs)

    def live_log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(log_dir for log_dir in self._log_dirs if log_dir.is_online)

    def offline_log_dirs(self) -> tuple[LogDir, ...]:
        return tuple(log_dir for log_dir in self._log_dirs if not log_dir.is_online)

    def create_log(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
        *,
        log_dir: LogDir | None = None,
    ) -> PartitionLog:
        """The partition's log. A missing log is created in `log_dir`, or if that is None in the
        live directory with the fewest logs.

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
            target = log_dir or min(live, key=self._log_count)
            return self._create_in(target, topic_partition, topic_id, config)

    def _log_count(self, log_dir: LogDir) -> int:
        return sum(1 for log in self._logs.values() if log.log_dir is log_dir)

    def _create_in(
        self,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: TopicConfig,
    ) -> PartitionLog:
        directory = _directory_in(log_dir, topic_partition)
        if self._locked.names(topic_partition):
            # Offsets of an earlier topic of this name must not be applied to the new log.
            self.checkpoint()
        with log_dir.errors_fail_it(f"create {topic_partition}"):
            self._fs.make_directory(directory.path)
            save_partition_metadata(self._fs, directory.path, topic_id)
            self._fs.sync_directory(log_dir.path)
        log = load_log(self._environment, directory, config, topic_id=topic_id)
        self._add(log)
        return log

    def _add(self, log: PartitionLog) -> None:
        """Under the lock: the background tasks look at each new log once."""
        self._logs[log.topic_partition] = log
        self._work.changed(log.topic_partition)

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Remove a log. Its files are removed after file.delete.delay.ms. No error without a log,
        or if its directory fails."""
        # A round must not write segments into a directory that gets another name.
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
                with suppress(LogDirFailedError):
                    self._retired.retire(damaged.place, delay_ms)
            log = self._logs.pop(topic_partition, None)
            if log is None:
                return
            self._work.checkpoint.note(topic_partition)
            # Closed first: a thread that still has the log must not write into the renamed
            # directory.
            log.abandon()
            # In an offline directory its files stay, also if that fails only now. The next start
            # with this directory finds that the topic was deleted (docs/decisions/0019).
            with suppress(LogDirFailedError):
                self._retired.retire(log.place, log.config.file_delete_delay_ms)

    # ---- moves to another directory

    def begin_copy(self, log: PartitionLog, log_dir: LogDir) -> LogCopy:
        """Begin to copy a log to another directory. Raises LogDirFailedError."""
        name = retired_partition_directory_name(
            log.topic_partition,
            uuid.UUID(int=self._rng.getrandbits(128)),
            PartitionDirectoryState.FUTURE,
        )
        return LogCopy(self._fs, log, log_dir, log_dir.path / name)

    def discard_copy(self, copy: LogCopy) -> None:
        """Delete the copy of a move that is given up. No error if its directory has failed."""
        with suppress(LogDirFailedError):
            self._retired.retire(
                PartitionDirectory(copy.log_dir, copy.directory, copy.log.topic_partition),
                delay_ms=0,
            )

    def move_log(self, copy: LogCopy) -> PartitionLog:
        """Close a log, complete its copy, and open that instead; the old directory is deleted
        later.

        Call it with the cleaning of the log paused. If the copy cannot be completed, the log that
        is returned is in the old directory again. Raises LogDirFailedError, with the log closed, if
        that one has failed, or the new one after it has become the log's.
        """
        source = copy.log
        topic_partition = source.topic_partition
        with self._lock:
            # Closed for good: what is appended after the last bytes are copied would be lost.
            source.close()
            at_close = LogCheckpoints(
                source.log_end_offset,
                source.log_start_offset,
                source.high_watermark,
                clean_shutdown=True,
                # The start of this process has reported what was missing.
                cleaned_to=source.log_end_offset,
            )
            directory = _directory_in(copy.log_dir, topic_partition)
            try:
                copy.complete()
                with copy.log_dir.errors_fail_it(f"move {topic_partition}"):
                    # A crash after the rename must find the offsets of the log.
                    self._locked.checkpoint_with(source, copy.log_dir)
                copy.rename_to(directory.path)
            except LogDirFailedError:
                source.log_dir.check_online()
                logger.exception("log is not moved log=%r", source)
                directory = source.place
            with directory.log_dir.errors_fail_it(f"move {topic_partition}"):
                self._fs.sync_directory(directory.log_dir.path)
            log = load_log(
                self._environment,
                directory,
                self._topic_config_for(topic_partition.topic),
                topic_id=source.topic_id,
                checkpoints=at_close,
            )
            self._add(log)
            source.abandon()
        if log.log_dir is copy.log_dir:
            self._leave_behind(copy, log)
        return log

    def _leave_behind(self, copy: LogCopy, log: PartitionLog) -> None:
        """Retire the old directory, and write the checkpoints without the log there."""
        self.cleaner_manager.move_checkpoint(copy.log, log)
        with suppress(LogDirFailedError):
            self._retired.retire(copy.log.place, log.config.file_delete_delay_ms)
            # Not if the old directory's disk has failed: a start may find it there again.
            copy.unmark(log.directory)
        self.checkpoint()

    # ---- truncation and configuration

    def truncate_log(self, log: PartitionLog, offset: Offset) -> None:
        """Drop the records at `offset` and above, and lower the cleaner's checkpoint."""
        if offset >= log.log_end_offset:
            # No record is dropped, so a crash finds nothing that the checkpoints contradict.
            log.truncate_to(offset)
            return
        with self._truncating(log, offset):
            log.truncate_to(offset)

    def truncate_log_fully_and_start_at(
        self,
        log: PartitionLog,
        offset: Offset,
        *,
        log_start_offset: Offset | None = None,
        leader_epochs: Sequence[EpochEntry] = (),
        producers: Sequence[ProducerSnapshotEntry] | None = None,
    ) -> None:
        """See `PartitionLog.truncate_fully_and_start_at`. Lowers the cleaner's checkpoint as
        well."""
        start_offset = offset if log_start_offset is None else log_start_offset
        with self._truncating(log, UNKNOWN_OFFSET, start_offset):
            log.truncate_fully_and_start_at(
                offset,
                log_start_offset=log_start_offset,
                leader_epochs=leader_epochs,
                producers=producers,
            )

    @contextmanager
    def _truncating(
        self, log: PartitionLog, offset: Offset, log_start_offset: Offset | None = None
    ) -> Iterator[None]:
        with self.cleaner_manager.paused(log.topic_partition):
            with log.about_to_truncate(offset, log_start_offset):
                self.checkpoint()
                yield
            # The log start may have changed. A start that finds an older one may empty the log.
            self.checkpoint()
            # The first dirty offset is at most the base of the active segment, as in Kafka's
            # LogManager.truncateTo.
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
                self._work.retention.note(log.topic_partition)

    # ---- background work

    def delete_expired_segments(self) -> dict[TopicPartition, list[DeletedSegment]]:
        """Apply retention to every log and drop expired producers; returns the deleted segments.

        The cleaner deletes segments of compacted logs, between its rounds.
        """
        deleted: dict[TopicPartition, list[DeletedSegment]] = {}
        now_ms = self._clock.now_ms()
        logs = self._take(self._work.retention, now_ms)
        with self.cleaner_manager.logs_for_retention(logs) as retained:
            places = {log.topic_partition for log in retained}

            def expire(log: PartitionLog) -> TimestampMs | None:
                log.remove_expired_producers(now_ms)
                if log.topic_partition in places:
                    segments = log.delete_old_segments(self._clock.now_ms())
                    if segments:
                        deleted[log.topic_partition] = segments
                elif not log.config.compacts:
                    return AT_ONCE  # the round of its last policy ends first
                return log.retention_due_ms()

            self._look("retention", self._work.retention, logs, expire)
        return deleted

    def delete_marked_files(self) -> None:
        """Remove segments and directories that were marked file.delete.delay.ms ago."""
        now_ms, due = self._clock.now_ms(), self._work.file_deletion
        logs = self._take(due, now_ms)
        self._look("file deletion", due, logs, lambda log: log.delete_marked_files(now_ms))
        self._retired.delete_due(now_ms)

    def flush_dirty_logs(self) -> None:
        """Flush closed segments, and the logs whose flush.ms has passed."""
        now_ms, due = self._clock.now_ms(), self._work.flush

        def flush(log: PartitionLog) -> TimestampMs | None:
            log.maybe_flush(now_ms)
            return log.flush_due_ms

        self._look("flush", due, self._take(due, now_ms), flush)

    def flush_closed_segments(self) -> None:
        """Flush closed segments, so that a recovery reads the active segments only."""
        now_ms, due = self._clock.now_ms(), self._work.flush

        def flush(log: PartitionLog) -> TimestampMs | None:
            log.flush(closed_segments_only=True)
            return log.flush_due_ms

        self._look("flush", due, self._take(due, now_ms), flush)

    def checkpoint(self) -> None:
        """See `LockedDirs.checkpoint`."""
        self._locked.checkpoint()

    def checkpoint_changes(self) -> None:
        """`checkpoint`, if a log has changed since the last call."""
        if self._has_changes(self._work.checkpoint):
            self.checkpoint()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of every live directory where one has moved.

        A follower begins with its stored high watermark. A leader without followers needs none.
        """
        if self._has_changes(self._work.high_watermark_checkpoint):
            self._locked.checkpoint_high_watermarks()

    def _take(self, due: DueLogs, now_ms: TimestampMs) -> list[PartitionLog]:
        """The logs that are due. Their next changes are noted from now on."""
        with self._lock:
            return self._watched(due.take(now_ms))

    def _has_changes(self, due: DueLogs) -> bool:
        """Whether a log has changed or was deleted. The next changes are noted from now on."""
        with self._lock:
            places = due.take(self._clock.now_ms())
            self._watched(places)
        return bool(places)

    def _watched(self, places: Iterable[TopicPartition]) -> list[PartitionLog]:
        logs = [log for place in places if (log := self._logs.get(place)) is not None]
        for log in logs:
            log.watch()
        return logs

    def _look(
        self,
        action: str,
        due: DueLogs,
        logs: Iterable[PartitionLog],
        look: Callable[[PartitionLog], TimestampMs | None],
    ) -> None:
        """Call `look` for each log, and note when it is due again; at once after an error. A
        failing log takes its directory offline, the others continue."""
        for log in logs:
            if not log.log_dir.is_online:
                continue
            due_ms: TimestampMs | None = AT_ONCE
            try:
                due_ms = look(log)
            except LogDirFailedError:
                logger.exception("log is skipped action=%s log=%r", action, log)
            except NotLeaderOrFollowerError:
                logger.debug("log was closed meanwhile action=%s log=%r", action, log)
            finally:
                if due_ms is not None:
                    due.note(log.topic_partition, due_ms)


def _in_threads(
    name: str, thread_count: int, items: Iterable[Item], do: Callable[[Item], Result]
) -> list[Result]:
    """The results of `do`, in any order. After an error no further item is begun, and the error is
    raised when all threads have ended.

    Each thread takes the next item by itself: a future for each of ten thousand logs costs as much
    as closing one.
    """
    remaining = iter(list(items))  # the next item of a list is taken atomically

    def work() -> list[Result]:
        try:
            return [do(item) for item in remaining]
        except BaseException:
            for _ in remaining:
                pass
            raise

    with ThreadPoolExecutor(thread_count, thread_name_prefix=name) as pool:
        futures = [pool.submit(work) for _ in range(thread_count)]
    return [result for future in futures for result in future.result()]


def _close(log: PartitionLog) -> None:
    try:
        if log.log_dir.is_online:
            log.close()
    except LogDirFailedError:
        logger.exception("log is not closed log=%r", log)


def _directory_in(log_dir: LogDir, topic_partition: TopicPartition) -> PartitionDirectory:
    path = log_dir.path / partition_directory_name(topic_partition)
    return PartitionDirectory(log_dir, path, topic_partition)
