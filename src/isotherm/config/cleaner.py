"""Configuration of the log cleaner (CleanerConfig in Kafka)."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from isotherm.config.definition import BOOLEAN, DOUBLE, INT, LONG, at_least, key
from isotherm.errors import ConfigError

_BUFFER_SIZE_PER_THREAD_MIN = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Broker-level keys of compaction. Those of a topic are in TopicConfig."""

    log_cleaner_enable: bool = key(
        BOOLEAN, True, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_threads: int = key(
        INT,
        1,
        "Threads that compact logs.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        DOUBLE,
        sys.float_info.max,
        "Bytes that all cleaner threads together may read and write in a second.",
        check=at_least(1),
        dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = key(
        LONG,
        128 * 1024 * 1024,
        "Memory of the maps from key to offset, over all cleaner threads: 24 bytes per slot.",
        dynamic=True,
    )
    log_cleaner_io_buffer_size: int = key(
        INT,
        4 * 1024 * 1024,
        "Memory of the read and write buffers, over all cleaner threads. (Kafka's default is"
        " 524288.)",
        check=at_least(0),
        dynamic=True,
    )
    log_cleaner_io_buffer_load_factor: float = key(
        DOUBLE,
        0.9,
        "How full a map from key to offset may become; the rest is cleaned in the next round.",
        check=at_least(0),
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = key(
        LONG,
        15_000,
        "The wait of a cleaner thread that finds no log to clean.",
        check=at_least(0),
        dynamic=True,
    )

    def __post_init__(self) -> None:
        # As in Kafka, exactly 1 MiB per thread is refused.
        if self.dedupe_buffer_size_per_thread <= _BUFFER_SIZE_PER_THREAD_MIN:
            raise ConfigError(
                "the dedupe buffer must be above 1 MiB per cleaner thread"
                f" log.cleaner.dedupe.buffer.size={self.log_cleaner_dedupe_buffer_size}"
                f" log.cleaner.threads={self.log_cleaner_threads}"
            )

    @property
    def dedupe_buffer_size_per_thread(self) -> int:
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads
