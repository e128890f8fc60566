"""The quota of replication: how fast replicas that are not in sync may be copied (KIP-73).

A partition is throttled if its topic names this broker's replica of it in
{leader,follower}.replication.throttled.replicas. All bytes of throttled partitions count. Only replicas
that are out of sync are held back: one that is in sync would leave the ISR.
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
    """`replicas` is the topic's configuration: `*`, or PARTITION:BROKER for each throttled one."""
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
        """Both callables are asked at each use: the configurations may change."""
        self._clock = clock
        self._is_throttled = is_throttled
        self._bytes_per_second = bytes_per_second
        self._rate = SampledRate(window_ms, window_count)
        self._lock = threading.Lock()

    def holds_back(self, partition: TopicPartition) -> bool:
        """Whether a replica of this partition has to wait, if it is not in sync."""
        return self._is_throttled(partition) and self.is_exceeded

    @property
    def is_exceeded(self) -> bool:
        with self._lock:
            now_ms = self._clock.monotonic_s() * 1000
            return self._rate.measure(now_ms) > self._bytes_per_second()

    def record(self, partition: TopicPartition, size: int) -> None:
        """Bytes that were copied of a partition. They count only if it is throttled."""
        if size and self._is_throttled(partition):
            with self._lock:
                self._rate.record(size, self._clock.monotonic_s() * 1000)
