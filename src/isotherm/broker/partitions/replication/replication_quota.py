"""Limits the bytes per second of replication to out-of-sync replicas (KIP-73).

A partition is throttled if {leader,follower}.replication.throttled.replicas of its topic names this
broker's replica of it. All bytes of throttled partitions count. Only out-of-sync replicas are held
back; a replica that is in sync would fall out of the ISR.
Source: Kafka ReplicationQuotaManager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate
from isotherm.types import BrokerId, TopicPartition

ALL_REPLICAS = "*"


def is_throttled_replica(replicas: Sequence[str], partition: int, broker_id: BrokerId) -> bool:
    """`replicas` is the topic's configuration:

    `*`, or PARTITION:BROKER for each throttled replica.
    """
    return ALL_REPLICAS in replicas or f"{partition}:{broker_id}" in replicas


class ReplicationQuota:
    """Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        *,
        is_throttled: Callable[[TopicPartition], bool],
        bytes_per_second: Callable[[], int],
        window_ms: int,
        window_count: int,
    ) -> None:
        """Both callables are called at each use, because the configuration may change."""
        self._clock = clock
        self._is_throttled = is_throttled
        self._bytes_per_second = bytes_per_second
        self._rate = SampledRate(window_ms, window_count)
        self._lock = threading.Lock()

    def holds_back(self, partition: TopicPartition) -> bool:
        """Whether an out-of-sync replica of this partition has to wait."""
        return self._is_throttled(partition) and self.is_exceeded

    @property
    def is_exceeded(self) -> bool:
        with self._lock:
            now_ms = self._clock.monotonic_s() * 1000
            return self._rate.measure(now_ms) > self._bytes_per_second()

    def record(self, partition: TopicPartition, size: int) -> None:
        """Count `size` copied bytes of a partition, if the partition is throttled."""
        # The configuration is looked at before the lock: without throttled replicas, which is the
        # usual case, no fetch takes it.
        if size and self._is_throttled(partition):
            with self._lock:
                self._rate.record(size, self._clock.monotonic_s() * 1000)
