"""When the tasks of the remote tier run: in which pool, at which interval, how soon after a
failure.

    copies        one copy task per partition         tasks/copy.py
    expirations   one expiration or follow task per   tasks/expiration.py, tasks/follow.py
                  partition
                  deletion of stopped partitions      tasks/partition_deletion.py
                  expiry of cached indexes

Both pools are bounded by their configuration keys. A task runs every
remote.log.manager.task.interval.ms. After a failure, which is logged and counted, it runs again
after the backoff of remote.log.manager.task.retry.*. Source: Kafka RemoteLogManager, which defines
these keys and does not use them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.metrics.registry import Metrics
from isotherm.remote.periodic_tasks import PeriodicTasks
from isotherm.remote.remote_tier_metrics import publish_copiers
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.remote.tasks.retried_work import RetriedWork
from isotherm.remote.threads import Threads
from isotherm.types import TopicIdPartition


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

    def tick(self, kind: str, place: object, run: Callable[[], object]) -> Callable[[], float]:
        """A tick for one of the pools. It returns the interval, or the backoff after a failure."""
        retried = self.retried(kind, place)

        def tick() -> float:
            wait_s = retried.run(run)
            return self.interval_s if wait_s is None else wait_s

        return tick

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
