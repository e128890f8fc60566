"""What every log of a process is given."""

from __future__ import annotations

import random
from dataclasses import dataclass

from isotherm.clock import Clock
from isotherm.log.file_cache import FileCache


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """producer_id_expiration_ms is producer.id.expiration.ms, remote_storage_system_enable
    remote.log.storage.system.enable."""

    cache: FileCache
    clock: Clock
    rng: random.Random
    remote_storage_system_enable: bool = False
    producer_id_expiration_ms: int = 86_400_000
