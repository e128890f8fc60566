"""When the tasks of the remote tier run: in which pool, at which interval, how soon after a
failure.

    copies        one copy task per partition         tasks/copy.py
    expirations   one expiration or follow task per   tasks/expiration.py, tasks/follow.py
                  partition
                  deletion of stopped partitions      tasks/partition_deletion.py
                  expiry of cached indexes

Both pools are bounded by their configuration keys. A task runs every
remote.log.manager.task.interval.ms while its partition changes, and sleeps otherwise
(`ScheduledTask`). After a failure, which is logged and counted, it runs again
after the backoff of remote.log.manager.task.retry.*. Source: Kafka RemoteLogManager, which defines
these keys and does not use them.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from typing import Protocol

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.registry import Metrics
from isotherm.remote.periodic_tasks import UNTIL_WOKEN_S, PeriodicTasks
from isotherm.remote.remote_tier_metrics import publish_copiers
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.remote.tasks.retried_work import RetriedWork
from isotherm.remote.threads import Threads
from isotherm.types import TimestampMs, TopicIdPartition

_LONGEST_SLEEP_S = 3600.0
"""Longest sleep until a time. The wall clock may be set meanwhile."""


class Task(Protocol):
    """A task of a partition."""

    @property
    def due_ms(self) -> TimestampMs | None:
        """When the task has work again if neither the log nor its metadata changes. None if only
        such a change gives it work; a time that has passed means at the next interval."""

    def run(self) -> object: ...


class ScheduledTask:
    """A task in one of the pools, with the rule of its next run:

    - after a failure, when the backoff has passed;
    - one interval after a change that `wake` tells of, or earlier if it is running already;
    - else at the task's `due_ms`, or never.

    An idle partition costs nothing while nothing happens to it. `tick` runs in one thread at a
    time, `wake` in any.
    """

    def __init__(
        self,
        pool: PeriodicTasks,
        partition: TopicIdPartition,
        log: PartitionLog,
        task: Task,
        retried: RetriedWork,
        interval_s: float,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._partition = partition
        self._log = log
        self._task = task
        self._retried = retried
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._is_running = self._is_woken = self._is_failing = False

    def schedule(self) -> None:
        """Run the task at once, and from now on when it is due."""
        self._pool.schedule(self._partition, self.tick)

    def wake(self) -> None:
        """Run the task in one interval at the latest. One that has failed keeps its backoff: its
        next run looks at everything anyway."""
        with self._lock:
            if self._is_running:
                self._is_woken = True
                return
            if self._is_failing:
                return
        self._pool.wake(self._partition, self._interval_s)

    def tick(self) -> float:
        with self._lock:
            self._is_running, self._is_woken = True, False
        # First, so that a change during the run is told, and wakes the next one.
        self._log.watch()
        backoff_s = self._retried.run(self._task.run)
        with self._lock:
            self._is_running, self._is_failing = False, backoff_s is not None
            is_woken = self._is_woken
        if backoff_s is not None:
            return backoff_s
        return self._interval_s if is_woken else self._wait_s()

    def _wait_s(self) -> float:
        due_ms = self._task.due_ms
        if due_ms is None:
            return UNTIL_WOKEN_S
        wait_s = (due_ms - self._clock.now_ms()) / 1000
        return max(self._interval_s, min(wait_s, _LONGEST_SLEEP_S))


class TaskSchedule:
    """Thread-safe."""

    def __init__(
        self,
        config: RemoteLogManagerConfig,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        threads: Threads,
    ) -> None:
        self.interval_s = config.remote_log_manager_task_interval_ms / 1000
        self._backoff = RetryBackoff.from_config(config)
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._config = config
        self.copies = PeriodicTasks(
            "remote-log-copy", config.remote_log_manager_copier_thread_pool_size, clock, threads
        )
        self.expirations = PeriodicTasks(
            "remote-log-expiration",
            config.remote_log_manager_expiration_thread_pool_size,
            clock,
            threads,
        )
        publish_copiers(metrics, self.copies)

    def copy(self, partition: TopicIdPartition, log: PartitionLog, task: Task) -> ScheduledTask:
        return self._scheduled(self.copies, "copy", partition, log, task)

    def expiration(
        self, partition: TopicIdPartition, log: PartitionLog, task: Task
    ) -> ScheduledTask:
        return self._scheduled(self.expirations, "expiration", partition, log, task)

    def follow(self, partition: TopicIdPartition, log: PartitionLog, task: Task) -> ScheduledTask:
        return self._scheduled(self.expirations, "follow", partition, log, task)

    def _scheduled(
        self,
        pool: PeriodicTasks,
        kind: str,
        partition: TopicIdPartition,
        log: PartitionLog,
        task: Task,
    ) -> ScheduledTask:
        retried = self.retried(kind, partition)
        return ScheduledTask(pool, partition, log, task, retried, self.interval_s, self._clock)

    def retried(self, kind: str, place: object) -> RetriedWork:
        return RetriedWork(
            kind,
            place,
            backoff=self._backoff,
            rng=self._rng,
            metrics=self._metrics,
            clock=self._clock,
        )

    def cancel(self, partition: TopicIdPartition) -> list[Future[None]]:
        """Run no further tick of the partition's tasks; the futures are done when the last ones
        have ended."""
        return [self.copies.cancel(partition), self.expirations.cancel(partition)]

    def update_config(self, config: RemoteLogManagerConfig) -> None:
        """Apply the sizes of the pools."""
        old, self._config = self._config, config
        copiers = config.remote_log_manager_copier_thread_pool_size
        # A resize retires the pool and its threads, so only for another size.
        if copiers != old.remote_log_manager_copier_thread_pool_size:
            self.copies.resize(copiers)
        expirers = config.remote_log_manager_expiration_thread_pool_size
        if expirers != old.remote_log_manager_expiration_thread_pool_size:
            self.expirations.resize(expirers)

    def close(self) -> None:
        """Start no further tick, and wait for those that run. Idempotent."""
        self.copies.close()
        self.expirations.close()
