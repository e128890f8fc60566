"""What a broker takes from outside itself: the time, the disk, chance, and where it is measured."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from isotherm.clock import Clock, SystemClock
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.metrics.registry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Made once for a process and passed on whole. A part that uses one of them takes that one."""

    clock: Clock = field(default_factory=SystemClock)
    fs: FileSystem = field(default_factory=OsFileSystem)
    rng: random.Random = field(default_factory=random.SystemRandom)
    metrics: Metrics = field(default_factory=Metrics)
