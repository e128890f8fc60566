"""The shared dependencies of all logs of a process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from isotherm.clock import Clock
from isotherm.log.due_logs import LogWork
from isotherm.log.file_cache import FileCache
from isotherm.log.log_dir import LogDir
from isotherm.types import Offset


class StartedLog(Protocol):
    """The part of a log that the checkpoint of log starts needs."""

    log_dir: LogDir

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def durable_log_start_offset(self) -> Offset: ...
    def log_start_is_durable(self, offset: Offset) -> None: ...


CheckpointLogStart: TypeAlias = Callable[[StartedLog], None]
"""Write the log start offset durably for the next process, and confirm it to the log. Called
without a lock of the log. Raises OSError."""


def keep_no_checkpoint(log: StartedLog) -> None:
    """A `CheckpointLogStart` for a log outside of a managed directory: its opener passes the log
    start again."""
    log.log_start_is_durable(log.log_start_offset)


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """producer_id_expiration_ms is producer.id.expiration.ms, producer_ids_max is
    producer.ids.per.partition.max. remote_storage_system_enable is
    remote.log.storage.system.enable."""

    cache: FileCache
    clock: Clock
    rng: random.Random
    remote_storage_system_enable: bool = False
    producer_id_expiration_ms: int = 86_400_000
    producer_ids_max: int = 1_000_000
    checkpoint_log_start: CheckpointLogStart = keep_no_checkpoint
    work: LogWork = field(default_factory=LogWork)
