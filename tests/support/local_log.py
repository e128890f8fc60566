"""A partition's log in a directory, for tests of code that works on logs."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from isotherm.clock import Clock
from isotherm.config.topic import TopicConfig
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import LogCheckpoints, load_log
from isotherm.log.partition_log import PartitionLog
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

LOCAL_LOG_PARTITION = TopicPartition("topic", 0)


def open_local_log(
    directory: Path,
    *,
    config: TopicConfig | None = None,
    topic_partition: TopicPartition = LOCAL_LOG_PARTITION,
    topic_id: uuid.UUID | None = None,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    rng: random.Random | None = None,
    remote_storage_system_enable: bool = True,
    checkpoints: LogCheckpoints | None = None,
) -> PartitionLog:
    """Open or create the log with its segments in `directory` itself.

    Its log directory is the parent, which is created. Without `checkpoints` the whole log is
    recovered.
    """
    fs = fs or OsFileSystem()
    fs.make_directory(directory)
    environment = LogEnvironment(
        FileCache(fs),
        clock or SimClock(),
        rng or random.Random(0),  # decides roll jitter only
        remote_storage_system_enable=remote_storage_system_enable,
    )
    return load_log(
        environment,
        PartitionDirectory(LogDir(directory.parent), directory, topic_partition),
        config or TopicConfig(),
        topic_id=topic_id,
        checkpoints=checkpoints or LogCheckpoints(),
    )
