"""The roles of the tiered partitions on this broker, and the tasks that each role has.

    leader     copy task, expiration task    the only broker that changes the remote tier
    follower   follow task                   learns what the leader has copied

A partition has one role, or none. A role ends with a stop: the tasks are cancelled at once, a
running one ends, and then all remote segments are deleted if the stop asks for it. What meets a
stop waits for it:

- A role begins when the stop is done, so that the stop's deletion deletes no segment that is copied
  after it. The role of the last call counts.
- A second stop begins when the first one is done.

Source: Kafka RemoteLogManager.onLeadershipChange and stopPartitions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from isotherm.errors import RemoteStorageNotReadyError
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.futures import all_done
from isotherm.remote.remote_tier_metrics import Expirations
from isotherm.remote.task_schedule import ScheduledTask, Task, TaskSchedule
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.follow import FollowTask
from isotherm.remote.tasks.local_deletion import RemoteCopiesOfLog
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import TopicIdPartition

_STOP_POLL_S = 0.05
"""Interval of checks of a stopped partition while its last task still runs."""


class _Task(Task, Protocol):
    def cancel(self) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Leader:
    log: PartitionLog
    copy: _Task
    expiration: _Task
    scheduled: tuple[ScheduledTask, ...]

    @property
    def tasks(self) -> tuple[_Task, ...]:
        return (self.copy, self.expiration)

    def log_changed(self) -> None:
        for task in self.scheduled:
            task.wake()


@dataclass(frozen=True, slots=True)
class _Follower:
    log: PartitionLog
    follow: _Task
    scheduled: tuple[ScheduledTask, ...]

    @property
    def tasks(self) -> tuple[_Task, ...]:
        return (self.follow,)

    def log_changed(self) -> None:
        for task in self.scheduled:
            task.wake()


class PartitionRoles:
    """Thread-safe.

    `expirations` forgets a partition whose role has ended.
    """

    def __init__(
        self,
        tier: RemoteTierAccess,
        schedule: TaskSchedule,
        pending_deletions: PendingDeletions,
        expirations: Expirations,
    ) -> None:
        self._tier = tier
        self._metadata = tier.metadata
        self._schedule = schedule
        self._pending_deletions = pending_deletions
        self._expirations = expirations
        self._lock = threading.Lock()
        self._roles: dict[TopicIdPartition, _Leader | _Follower] = {}
        # Partitions that start once a stop is done, with a token of the last call that requested
        # it.
        self._restarts: dict[TopicIdPartition, object] = {}
        # The last stop of each partition that is being stopped, and all stops that are not done.
        self._stopping: dict[TopicIdPartition, Future[None]] = {}
        self._open_stops: set[Future[None]] = set()
        self._closed = False

    def leads(self, partition: TopicIdPartition) -> bool:
        """Whether the tasks of the partition's leader run here."""
        return isinstance(self._roles.get(partition), _Leader)

    def log_of(self, partition: TopicIdPartition) -> PartitionLog | None:
        """The log of a partition whose tasks run here, in either role."""
        role = self._roles.get(partition)
        return None if role is None else role.log

    # ---- a role begins

    def on_leadership_change(
        self, leaders: Iterable[PartitionLog], followers: Iterable[PartitionLog]
    ) -> None:
        """Start the tasks of these logs, which this broker leads or follows now.

        Logs that are not tiered are ignored, and running tasks of the same role stay as they are.
        Tasks of the other role are stopped first. Logs that are being stopped start when the stop
        is done.
        """
        led, followed = _tiered(leaders), _tiered(followers)
        with self._lock:
            if self._closed:
                return
            turned = [
                *(place for place in led if isinstance(self._roles.get(place), _Follower)),
                *(place for place in followed if isinstance(self._roles.get(place), _Leader)),
            ]
        for partition in turned:
            self._stop(partition, delete_remote=False)
        with self._lock:
            stopping = {
                place: self._stopping[place]
                for place in (*led, *followed)
                if place in self._stopping
            }
            for place in (*led, *followed):  # the role of an earlier call no longer counts
                self._restarts.pop(place, None)
            tokens = {place: object() for place in stopping}
            self._restarts.update(tokens)
        for partition, done in stopping.items():
            is_led = partition in led
            log = (led if is_led else followed).pop(partition)
            done.add_done_callback(
                partial(self._start_again, partition, log, tokens[partition], is_led)
            )
        # Before the tasks, as in Kafka: they look at metadata that must be followed by then.
        self._metadata.on_partition_leadership_changes(led, followed)
        for partition, log in led.items():
            self._lead(partition, log)
        for partition, log in followed.items():
            self._follow(partition, log)

    def _lead(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        with self._lock:
            # It has this role. The other one was stopped before, and a stop that goes on has taken
            # the partition out of the call.
            if partition in self._roles or self._closed:
                return
            self._tier.metrics.follow(partition.topic, partition.partition)
            self._tier.retention_shares.follow(partition.topic, partition.partition)
            copy = CopyTask(log, partition, self._tier)
            expiration = ExpirationTask(log, partition, self._tier)
            scheduled = (
                self._schedule.copy(partition, log, copy),
                self._schedule.expiration(partition, log, expiration),
            )
            role = self._roles[partition] = _Leader(log, copy, expiration, scheduled)
        self._begin(partition, role)

    def _follow(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        with self._lock:
            if partition in self._roles or self._closed:
                return
            follow = FollowTask(log, partition, self._tier)
            scheduled = (self._schedule.follow(partition, log, follow),)
            role = self._roles[partition] = _Follower(log, follow, scheduled)
        self._begin(partition, role)

    def _begin(self, partition: TopicIdPartition, role: _Leader | _Follower) -> None:
        role.log.remote_copies = RemoteCopiesOfLog(role.log, partition, self._tier)
        role.log.tier_tasks = role
        for task in role.scheduled:
            task.schedule()

    def metadata_changed(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Wake the tasks of partitions whose metadata has changed. Does not wait."""
        for partition in partitions:
            role = self._roles.get(partition)
            if role is not None:
                role.log_changed()

    def _start_again(
        self,
        partition: TopicIdPartition,
        log: PartitionLog,
        token: object,
        is_led: bool,
        _: Future[None],
    ) -> None:
        with self._lock:
            if self._restarts.get(partition) is not token:
                return  # it has another role by now, or was stopped for good
            del self._restarts[partition]
        if is_led:
            self.on_leadership_change([log], ())
        else:
            self.on_leadership_change((), [log])

    # ---- a role ends

    def stop_partitions(
        self, partitions: Iterable[TopicIdPartition], *, delete_remote: bool
    ) -> Future[None]:
        """Stop the tasks of these partitions at once; a running task ends first.

        With `delete_remote` all remote segments of the partitions are deleted too. The deletion is
        retried until it succeeds, if necessary by the next process. The future is done when all of
        this is done, or has RemoteStorageNotReadyError if the broker is closed before.
        """
        stopped = set(partitions)
        with self._lock:
            for place in stopped:
                self._restarts.pop(place, None)
        # On disk before anything is stopped or deleted: after a crash the next start resumes it.
        if delete_remote:
            self._pending_deletions.add(stopped)
        return all_done(
            [self._stop(partition, delete_remote=delete_remote) for partition in stopped]
        )

    def resume_deletions(self, removed: Iterable[TopicIdPartition]) -> Future[None]:
        """Continue the deletions of `stop_partitions` that an earlier process left unfinished, and
        delete `removed`, which that process may not have begun. Call it before the first
        `on_leadership_change`."""
        return self.stop_partitions(
            [*self._pending_deletions.partitions(), *removed], delete_remote=True
        )

    def _stop(self, partition: TopicIdPartition, *, delete_remote: bool) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                done.set_exception(_closed_error())
                return done
            role = self._roles.pop(partition, None)
            earlier = self._stopping.get(partition)
            self._stopping[partition] = done
            self._open_stops.add(done)
        done.add_done_callback(self._forget_stop)
        running = [earlier] if earlier is not None else []
        if role is not None:
            for task in role.tasks:
                task.cancel()
            running += self._schedule.cancel(partition)
        # The deletion reads the metadata, which no role may have followed (after a restart).
        if delete_remote:
            self._metadata.on_partition_leadership_changes([partition], ())
        retried = self._schedule.retried(
            "partition-deletion" if delete_remote else "stop", partition
        )
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not delete_remote or self._delete_remote(partition):
                self._ended(partition, role, done)
                is_over = True

        def stop() -> float | None:
            # Polled, not awaited: an earlier stop needs a thread of this tick's pool.
            if not all(future.done() for future in running):
                return _STOP_POLL_S
            # The whole end is repeated: an error while the deletion is taken off the list must not
            # lose the stop.
            wait_s = retried.run(end)
            if not is_over:
                return _STOP_POLL_S if wait_s is None else wait_s
            # Last: its callbacks start the partition again, which must not be stopping any more.
            with suppress(InvalidStateError):  # see `abandon_stops`
                done.set_result(None)
            return None

        self._schedule.expirations.schedule(("stop", partition, id(done)), stop)
        return done

    def _forget_stop(self, done: Future[None]) -> None:
        with self._lock:
            self._open_stops.discard(done)

    def _delete_remote(self, partition: TopicIdPartition) -> bool:
        """Returns False, with nothing done, while the partition's metadata is being read."""
        if not self._metadata.is_ready(partition):
            return False
        delete_remote_partition(self._tier, partition)
        self._pending_deletions.remove(partition)
        return True

    def _ended(
        self,
        partition: TopicIdPartition,
        role: _Leader | _Follower | None,
        stopped: Future[None],
    ) -> None:
        for task in () if role is None else role.tasks:
            task.release()
        self._tier.metrics.forget(partition.topic, partition.partition)
        self._tier.retention_shares.forget(partition.topic, partition.partition)
        self._expirations.forget(partition.topic, partition.partition)
        with self._lock:
            is_last = self._stopping.get(partition) is stopped
        if not is_last:
            return
        self._metadata.on_stop_partitions([partition])
        with self._lock:
            is_last = self._stopping.get(partition) is stopped
            if is_last:
                del self._stopping[partition]
        if not is_last:
            # Another stop has begun meanwhile. Its deletion reads the metadata.
            self._metadata.on_partition_leadership_changes([partition], ())

    # ---- all partitions

    def run_tasks(self) -> None:
        """Run every task of every partition once, in the caller's thread; for tests."""
        with self._lock:
            roles = dict(self._roles)
        for partition, role in roles.items():
            if isinstance(role, _Leader):
                self._schedule.copy(partition, role.log, role.copy).tick()
                self._schedule.expiration(partition, role.log, role.expiration).tick()
            else:
                self._schedule.follow(partition, role.log, role.follow).tick()

    def close(self) -> None:
        """Begin no role and no stop from now on, and cancel the tasks: a segment that is being
        copied or deleted is finished, no other is begun. Idempotent."""
        with self._lock:
            self._closed = True
            roles = list(self._roles.values())
        for role in roles:
            for task in role.tasks:
                task.cancel()

    def abandon_stops(self) -> None:
        """End the stops that are not done with RemoteStorageNotReadyError. Call it after `close`,
        when the schedule has ended: the next process carries them out."""
        with self._lock:
            open_stops = list(self._open_stops)
        for future in open_stops:
            with suppress(InvalidStateError):  # done meanwhile, by work that `close` left behind
                future.set_exception(_closed_error())


def _closed_error() -> RemoteStorageNotReadyError:
    return RemoteStorageNotReadyError("the remote log manager is closed")


def _tiered(logs: Iterable[PartitionLog]) -> dict[TopicIdPartition, PartitionLog]:
    return {
        TopicIdPartition(log.topic_id, *log.topic_partition): log
        for log in logs
        if log.remote_log_enabled and log.topic_id is not None
    }
