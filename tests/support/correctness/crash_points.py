"""Chooses the points at which a broker process kills itself: before or after a durable write of a
kind. Pure.

The name of a kind has the action and its object: `put .log`, `metadata COPY_SEGMENT_FINISHED`,
`sync topic .log`, `checkpoint recovery-point-offset-checkpoint`. `crashing_broker` prints on its
standard error the kinds that it has met, and the one at which it kills itself. `CrashSchedule`
chooses the points that were tried least, and counts.
"""

from __future__ import annotations

import enum
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_COPY = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED")
_DELETION = ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
_REMOVAL = (
    "DELETE_PARTITION_MARKED",
    "DELETE_PARTITION_STARTED",
    "DELETE_PARTITION_FINISHED",
)
_OBJECTS = (".log", ".indexes", ".rsm-manifest")
AUDIT, METADATA = "audit", "metadata"
TOMBSTONE = "tombstone"

# The share of tries of kinds of write outside a segment's life.
_OTHER_SHARE = 0.4
_RARE_COUNTS, _COMMON_COUNT_MAX = (1, 1, 1, 2, 3), 40

_SEEN = re.compile(r"^durable write seen: (.+)$")
_KILLS = re.compile(r"^durable write kills: (.+) (before|after)$")


class Side(enum.Enum):
    BEFORE = "before"
    AFTER = "after"


class CrashPoint(NamedTuple):
    write: str
    side: Side


class CrashPlan(NamedTuple):
    """A process dies at the `nth` write of a kind after its start."""

    point: CrashPoint
    nth: int


def seen_line(write: str) -> str:
    return f"durable write seen: {write}"


def kills_line(point: CrashPoint) -> str:
    return f"durable write kills: {point.write} {point.side.value}"


def segment_life(level: int) -> tuple[str, ...]:
    """The durable writes, in order, of a segment that is copied, deleted locally and deleted in the
    tier, and of a partition that is deleted."""

    def events(*states: str) -> tuple[str, ...]:
        topics = (AUDIT, METADATA) if level else (METADATA,)
        return tuple(f"{topic} {state}" for state in states for topic in topics)

    started, finished = _COPY
    delete_started, delete_finished = _DELETION
    return (
        *events(started),
        *(f"put {suffix}" for suffix in _OBJECTS),
        *events(finished),
        "rename topic .log.deleted",
        "remove topic .log.deleted",
        *events(delete_started),
        *(f"delete {suffix}" for suffix in _OBJECTS),
        *events(delete_finished),
        *events(*_REMOVAL),
    )


class CrashSchedule:
    """Chooses crash points, those with the fewest tries first, and counts the deaths at each. Not
    thread-safe."""

    def __init__(self, level: int, rng: random.Random, only: Sequence[str] = ()) -> None:
        """Choose among writes of every kind, or only among the kinds in `only`."""
        self.life = tuple(only) or segment_life(level)
        self._takes_others = not only
        self.hits: Counter[CrashPoint] = Counter()
        self._tries: Counter[CrashPoint] = Counter()
        self._seen: set[str] = set()
        self._rng = rng

    def choose(self) -> CrashPlan:
        others = sorted(self._seen - set(self.life)) if self._takes_others else []
        of_life = not others or self._rng.random() > _OTHER_SHARE
        points = [
            CrashPoint(write, side) for write in (self.life if of_life else others) for side in Side
        ]
        fewest = min(self._tries[point] for point in points)
        point = self._rng.choice([each for each in points if self._tries[each] == fewest])
        self._tries[point] += 1
        if of_life:
            return CrashPlan(point, self._rng.choice(_RARE_COUNTS))
        return CrashPlan(point, self._rng.randint(1, _COMMON_COUNT_MAX))

    def learn(self, log_lines: Iterable[bytes]) -> CrashPoint | None:
        """Learn from the log of an ended process.

        Returns the crash point at which it died, or None.
        """
        hit = None
        for line in log_lines:
            text = line.decode(errors="replace").rstrip()
            if found := _SEEN.match(text):
                self._seen.add(found[1])
            elif found := _KILLS.match(text):
                hit = CrashPoint(found[1], Side(found[2]))
        if hit is not None:
            self.hits[hit] += 1
        return hit


def table(hits: Counter[CrashPoint], life: Iterable[str]) -> list[str]:
    """One line for each kind of write, with the numbers of deaths before and after it."""
    writes = [*life]
    writes += sorted({point.write for point in hits} - set(writes))
    return [
        f"  {write:<56} {hits[CrashPoint(write, Side.BEFORE)]:>6}"
        f" {hits[CrashPoint(write, Side.AFTER)]:>6}"
        for write in writes
    ]
