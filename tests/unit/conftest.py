"""A controller over a real metadata log in a temporary folder."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from isotherm.broker.metadata.cluster_metadata_topic import (
    METADATA_LOG_CONFIG,
    METADATA_TOPIC_ID,
    METADATA_TOPIC_PARTITION,
)
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.config.broker import BrokerConfig
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.log.partition_log import PartitionLog
from isotherm.testing.sim_clock import SimClock

ENDPOINTS = [Endpoint("PLAINTEXT", "localhost", 9092)]


class ClusterMetadata:
    """Starts controllers over one folder, one after the other, as restarts of a broker do."""

    def __init__(self, folder: Path, fs: FileSystem) -> None:
        self.folder = folder
        self.clock = SimClock()
        self.log: PartitionLog | None = None
        self._fs = fs
        self._ids = random.Random(7)

    def open_log(self) -> PartitionLog:
        directory = self.folder / str(METADATA_TOPIC_PARTITION)
        directory.mkdir(parents=True, exist_ok=True)
        cache = FileCache(self._fs)
        environment = LogEnvironment(cache, self.clock, random.Random(0))
        self.log = load_log(
            environment,
            PartitionDirectory(LogDir(self.folder), directory, METADATA_TOPIC_PARTITION),
            METADATA_LOG_CONFIG,
            topic_id=METADATA_TOPIC_ID,
        )
        return self.log

    def replayed(self, config: BrokerConfig = BrokerConfig()) -> Controller:  # noqa: B008
        """A controller that has replayed the log. An earlier controller's log is left as a crash
        leaves it."""
        return Controller(self.open_log(), config=config, clock=self.clock, rng=self._ids)

    def start(self, config: BrokerConfig = BrokerConfig()) -> Controller:  # noqa: B008
        """A controller whose broker has registered."""
        controller = self.replayed(config)
        controller.register_broker(ENDPOINTS)
        return controller


@pytest.fixture
def cluster_metadata(tmp_path: Path) -> ClusterMetadata:
    return ClusterMetadata(tmp_path, OsFileSystem())
