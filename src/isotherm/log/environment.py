"""What every log of a process is given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from isotherm.clock import Clock
from isotherm.log.file_cache import FileCache
from isotherm.log.log_dir import LogDir
from isotherm.types import Offset


class StartedLog(Protocol):
    """A log as the checkpoint of its start reads it."""

    log_dir: LogDir

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def durable_log_start_offset(self) -> Offset: ...
    def log_start_is_durable(self, offset: Offset) -> None: ...


CheckpointLogStart: TypeAlias = Callable[[StartedLog], None]
"""Write the log's start where the next process finds it, durably, and tell the log so. Called while
no lock of the log is held. Raises OSError."""


def keep_no_checkpoint(log: StartedLog) -> None:
    """Of a log that stands alone: its start is told by its opener, as it was."""
    log.log_start_is_durable(log.log_start_offset)


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """producer_id_expiration_ms is producer.id.expiration.ms, remote_storage_system_enable
    remote.log.storage.system.enable."""

    cache: FileCache
    clock: Clock
    rng: random.Random
    remote_storage_system_enable: bool = False
    producer_id_expiration_ms: int = 86_400_000
    checkpoint_log_start: CheckpointLogStart = keep_no_checkpoint
