"""Moves replicas to another log directory of this broker (AlterReplicaLogDirs, KIP-113).

    requested ──► copied by threads, while the log is in use ───► caught up
                                                                   │ the controller has the new one
                                                                   ▼
                   on the control thread: close the log, complete the copy, open the copy

The control thread also deletes logs, takes directories offline and changes roles, so none of this
can happen during the last step. Source: Kafka ReplicaAlterLogDirsManager,
ReplicaAlterLogDirsThread. Reasons: docs/decisions/0110.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.clock import Clock
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.log.log_copy import CHUNK_SIZE, LogCopy
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.types import Offset, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

# The pause of a thread when no move can advance: it waits for records, the quota or the controller.
IDLE_INTERVAL_S = 0.1

RunControl: TypeAlias = Callable[[Callable[[], None]], "Future[None]"]
OnPartition: TypeAlias = Callable[[Partition], None]


class FutureReplica(NamedTuple):
    """An unfinished copy of a log. It has all records below `end_offset`."""

    topic_partition: TopicPartition
    log_dir: LogDir
    size_in_bytes: int
    end_offset: Offset


class _Move:
    """One move.

    A thread holds `lock` while it copies. `copy` is None before the first bytes and after the end.
    """

    def __init__(self, partition: Partition, log_dir: LogDir) -> None:
        self.partition = partition
        self.log_dir = log_dir
        self.copy: LogCopy | None = None
        self.is_over = False
        self.is_finishing = False
        self.is_reported = False
        self.holds = ExitStack()
        self.lock = threading.Lock()

    @property
    def place(self) -> TopicIdPartition:
        return self.partition.topic_id_partition


class LogDirMoves:
    """Call `move`, `cancel` and `stop` on the control thread; `future_replicas` on any thread."""

    def __init__(
        self,
        log_manager: LogManager,
        cluster: ClusterView,
        run_control: RunControl,
        quota: ReplicationQuota,
        clock: Clock,
        *,
        thread_count: int,
        on_moved: OnPartition,
        on_lost: OnPartition,
    ) -> None:
        """At most `thread_count` threads copy, each one log at a time.

        `on_moved` gets a partition whose log has been replaced, `on_lost` a partition whose log
        cannot be opened any more. Both are called on the control thread.
        """
        self._log_manager = log_manager
        self._cluster = cluster
        self._run_control = run_control
        self._quota = quota
        self._clock = clock
        self._on_moved = on_moved
        self._on_lost = on_lost
        # At most one move per partition of this broker.
        self._moves: dict[TopicPartition, _Move] = {}
        self._stopping = threading.Event()
        self._begun = threading.Condition()
        self._thread_count = thread_count
        self._threads: list[threading.Thread] = []

    # ---- any thread

    def future_replicas(self) -> list[FutureReplica]:
        replicas = []
        for move in tuple(self._moves.values()):
            copy = move.copy
            if copy is not None:
                place = move.place.topic_partition
                replicas.append(
                    FutureReplica(place, move.log_dir, copy.size_in_bytes, copy.end_offset)
                )
        return replicas

    # ---- control thread

    def move(self, partition: Partition, log_dir: LogDir) -> None:
        """Begin to move the log to `log_dir`. An earlier move to another directory is cancelled,
        also if the log already lies in `log_dir`."""
        running = self._moves.get(partition.topic_partition)
        if running is not None and running.log_dir is log_dir:
            return
        self.cancel(partition.topic_partition)
        if partition.log.log_dir is log_dir:
            return
        logger.info(
            "log is moved partition=%s from=%s to=%s",
            partition.topic_partition,
            partition.log.log_dir.path,
            log_dir.path,
        )
        self._moves[partition.topic_partition] = _Move(partition, log_dir)
        if len(self._threads) < min(self._thread_count, len(self._moves)):
            name = f"isotherm-log-dir-moves-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        with self._begun:
            self._begun.notify_all()

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Cancel the move of a partition, if there is one, and discard its copy."""
        move = self._moves.pop(topic_partition, None)
        if move is not None:
            self._end(move)
            if move.is_reported and not move.partition.is_gone:
                self._cluster.note_directory(move.place, move.partition.log.log_dir)

    def stop(self) -> None:
        """End the threads. The next start continues the unfinished moves."""
        self._stopping.set()
        with self._begun:
            self._begun.notify_all()
        for thread in self._threads:
            thread.join()

    def _end(self, move: _Move) -> None:
        # Waits for one chunk, or one flush, of a thread that copies.
        with move.lock:
            move.is_over = True
            copy, move.copy = move.copy, None
            if copy is not None:
                self._log_manager.discard_copy(copy)
            move.holds.close()

    def _give_up(self, move: _Move) -> None:
        if not move.is_over:  # else another move of the partition may have begun
            self.cancel(move.place.topic_partition)

    def _finish(self, move: _Move) -> None:
        copy = move.copy
        if copy is None or self._stopping.is_set():
            return  # cancelled meanwhile, or left to the next start
        del self._moves[move.place.topic_partition]
        with move.lock:
            # A thread may have this move in its list still, and looks at `is_over` with the lock.
            move.is_over, move.copy = True, None
            try:
                moved = move.partition.replace_log(lambda: self._log_manager.move_log(copy))
            except IsothermError:
                logger.exception("log is lost in its move partition=%s", move.place)
                self._on_lost(move.partition)
                return
            finally:
                # After the log is replaced: the cleaner would otherwise begin a round on segments
                # that are about to be closed.
                move.holds.close()
        self._cluster.note_directory(move.place, moved.log_dir)
        if moved.log_dir is move.log_dir:
            logger.info("log is moved partition=%s dir=%s", move.place, moved.directory)
        else:
            self._log_manager.discard_copy(copy)
        self._on_moved(move.partition)

    # ---- the threads that copy

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._begun:
                self._begun.wait_for(lambda: self._moves or self._stopping.is_set())
            # A copy, which CPython makes atomically: the control thread adds and removes moves
            # meanwhile. `sum`, because `any` would stop at the first move that advances.
            if not sum(self._copy_some(move) for move in tuple(self._moves.values())):
                self._clock.wait(self._stopping, IDLE_INTERVAL_S)

    def _copy_some(self, move: _Move) -> int:
        """Copy some bytes and return their number. 0 also if another thread works on this move."""
        if not move.lock.acquire(blocking=False):
            return 0
        try:
            if move.is_over or move.is_finishing or self._quota.is_exceeded:
                return 0
            try:
                size = self._advance(move)
            except NotLeaderOrFollowerError:
                return 0  # the partition is being deleted
            # The boundary of one move: other moves continue.
            except Exception:
                logger.exception("log cannot be moved partition=%s", move.place)
                move.is_finishing = True
                self._submit(lambda: self._give_up(move))
                return 0
        finally:
            move.lock.release()
        self._quota.record(move.place.topic_partition, size)
        return size

    def _advance(self, move: _Move) -> int:
        if move.copy is None:
            # Cleaning is paused, because the cleaner would rewrite segments that are copied
            # already.
            pause = self._log_manager.cleaner_manager.paused(move.place.topic_partition)
            move.holds.enter_context(pause)
            move.copy = self._log_manager.begin_copy(move.partition.log, move.log_dir)
        size = move.copy.copy_some(CHUNK_SIZE)
        # Clients wait while the rest is copied, since that needs the partition's lock: one chunk
        # at most.
        if move.copy.missing_size < CHUNK_SIZE and self._is_recorded(move):
            # Flushed on this thread, so that the control thread has little left to make durable.
            move.partition.log.flush()
            # Set before the act is submitted: no thread may copy once the control thread has
            # begun.
            move.is_finishing = True
            self._submit(lambda: self._finish(move))
        return size

    def _is_recorded(self, move: _Move) -> bool:
        """Whether the controller has recorded the new directory; reports it to the controller if
        not.

        It must be recorded before the log is used there. When a directory fails, the controller
        removes from the ISR only the replicas that are recorded in it.
        """
        if self._cluster.is_recorded(move.place, move.log_dir):
            return True
        if not move.is_reported:
            move.is_reported = True
            self._cluster.note_directory(move.place, move.log_dir)
        return False

    def _submit(self, act: Callable[[], None]) -> None:
        try:
            self._run_control(act).add_done_callback(_log_failure)
        except RuntimeError:
            self._stopping.set()  # the control thread has ended: the broker stops


def _log_failure(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.error("move of a log has failed", exc_info=error)
