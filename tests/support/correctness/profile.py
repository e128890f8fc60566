"""The profile of a round of the correctness run: the tier, its intervals, and the faults."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

# The size, in segments, of the topic that expires: two or three in both tiers together.
EXPIRING_SEGMENTS = 3


class Fault(enum.Enum):
    KILL = "kill"
    """SIGKILL. Acknowledged records are in the page cache, and must exist after the restart."""
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT. Requests wait in the sockets, then all timers fire at once."""
    RESTART = "restart"
    """SIGTERM, an orderly stop."""
    CRASH = "crash"
    """The broker kills itself by SIGKILL before or after a durable write."""


class Store(enum.Enum):
    FOLDER = "folder"
    S3 = "s3"


_EVENLY: Mapping[Fault, float] = MappingProxyType(
    {Fault.KILL: 1.0, Fault.PAUSE: 1.0, Fault.RESTART: 1.0}
)
_MOSTLY_KILLS: Mapping[Fault, float] = MappingProxyType(
    {Fault.KILL: 0.75, Fault.PAUSE: 0.2, Fault.RESTART: 0.05}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Sizes are in bytes, intervals in ms, and the times between faults in seconds.

    A round ends after `faults_max` kills and pauses. With `precise` the broker kills itself at a
    durable write, if it reaches that within `patience_s`. With `deletes` there are topics that
    expire and topics that are deleted, with `erases` a topic whose records are erased in place.
    """

    level: int = 1
    store: Store = Store.FOLDER
    segment_bytes: int = 131072
    local_retention_bytes: int = 1
    task_interval_ms: int = 100
    write_pause_s: float = 0.02
    """The pause of a writing client between two operations."""
    calm_s: tuple[float, float] = (0.5, 3.0)
    away_s_max: float = 1.0
    pause_s_max: float = 3.0
    faults: Mapping[Fault, float] = field(default_factory=lambda: _EVENLY)
    faults_max: int | None = None
    precise: bool = False
    patience_s: float = 8.0
    writes: Sequence[str] = ()
    """The kinds of write that may be crash points. Empty means all."""
    deletes: bool = False
    erases: bool = False
    moves_leaders: bool = False
    """Partitions have several replicas, so their leaders change while clients work."""
    delays: Mapping[str, float] = field(default_factory=dict)
    """Delays in seconds by kind of read or write (`crash_points`)."""

    @property
    def is_watched(self) -> bool:
        """Whether the broker runs under `crashing_broker`."""
        return self.precise or bool(self.delays)

    def broker_settings(self) -> dict[str, str]:
        interval = str(self.task_interval_ms)
        return {
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "100",
            "remote.log.metadata.compaction.initial.level": str(self.level),
            "remote.log.manager.task.interval.ms": interval,
            "log.retention.check.interval.ms": interval,
            "remote.log.manager.task.retry.backoff.max.ms": "1000",
            # With this interval interrupted uploads and deletions continue within seconds.
            "rlmm.config.remote.log.metadata.cleanup.interval.ms": "1000",
            # An erasure that stores nothing for so long is undone, and the machine may be busy.
            "rlmm.config.remote.log.metadata.cleanup.grace.ms": "10000" if self.erases else "2000",
        }

    def topic_config(self) -> dict[str, str]:
        """Settings of topics without retention: small segments, deleted locally after their
        copy."""
        return {
            "remote.storage.enable": "true",
            "local.retention.bytes": str(self.local_retention_bytes),
            "retention.ms": "-1",
            "internal.segment.bytes": str(self.segment_bytes),
            "file.delete.delay.ms": "100",
            "max.message.bytes": "65536",
        }

    @property
    def expiring_bytes(self) -> int:
        """The `retention.bytes` of the topic that expires."""
        return EXPIRING_SEGMENTS * self.segment_bytes


def kill_loop(
    *,
    level: int,
    store: Store,
    faults_max: int,
    precise: bool,
    writes: Sequence[str] = (),
    delays: Mapping[str, float],
) -> Profile:
    """A profile with small segments, short intervals, and a broker that never runs for long."""
    return Profile(
        level=level,
        store=store,
        segment_bytes=100_000,
        task_interval_ms=300,
        # All data is read again at the end, and little data suffices to find lost or duplicate
        # records.
        write_pause_s=0.1,
        calm_s=(1.0, 3.0),
        away_s_max=0.2,
        pause_s_max=2.0,
        faults=_MOSTLY_KILLS,
        faults_max=faults_max,
        precise=precise,
        writes=writes,
        deletes=True,
        delays=delays,
    )
