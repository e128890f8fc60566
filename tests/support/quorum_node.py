"""The cluster membership of a broker, without the rest of it: the steps of its start that
concern the quorum.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.cluster_metadata_topic import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.quorum.member import QuorumMember
from isotherm.broker.metadata.quorum.quorum_metadata import QuorumMetadata
from isotherm.broker.startup.identity import read_identity
from isotherm.broker.surroundings import Surroundings
from isotherm.clock import SystemClock
from isotherm.config.server_properties import parse_broker_config
from isotherm.log.checkpoints import MetaProperties, save_meta_properties
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.testing.local_servers import free_ports
from isotherm.types import random_uuid, uuid_to_text

WAIT_S = 300.0


class QuorumNode:
    """Started in the constructor, or step by step up to `unfence`. `stop` is clean. `crash`
    simulates a killed process: it writes nothing and sends nothing to the controller."""

    def __init__(
        self,
        directory: Path,
        controllers: str,
        cluster_id: str,
        *,
        node_id: int = 5,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        (port,) = free_ports(1)
        self.directory = directory
        self.log_dir = directory / "log"
        self.config = parse_broker_config(
            {
                "process.roles": "broker",
                "node.id": str(node_id),
                "controller.quorum.bootstrap.servers": controllers,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(self.log_dir),
                "broker.heartbeat.interval.ms": "300",
                **(settings or {}),
            }
        )
        directory.mkdir(parents=True, exist_ok=True)
        self.endpoints = [Endpoint("PLAINTEXT", "127.0.0.1", port)]
        self.changes: list[MetadataChange] = []
        self.failures: list[Exception] = []
        rng, fs, clock = random.SystemRandom(), OsFileSystem(), SystemClock()
        for path in self.config.log_dirs:
            if not path.exists():
                path.mkdir(parents=True)
                owner = MetaProperties(cluster_id, node_id, uuid_to_text(random_uuid(rng)))
                save_meta_properties(fs, path, owner)
        self.log_manager = LogManager(
            self.config.log_dirs,
            config=self.config,
            topic_config_for=lambda topic: self.config.topic_defaults,
            clock=clock,
            fs=fs,
            rng=rng,
        )
        log = self.log_manager.open_metadata_log(METADATA_LOG_CONFIG, METADATA_TOPIC_ID)
        self.previous_broker_epoch = self.log_manager.previous_broker_epoch()
        self.identity = read_identity(
            fs,
            self.log_manager.live_log_dirs(),
            node_id,
            rng,
            metadata_log_dir=self.config.metadata_log_dir,
        )
        self.member = QuorumMember(
            self.config,
            log,
            self.identity,
            Surroundings(clock=clock, fs=fs, rng=rng),
            incarnation_id=uuid.UUID(int=rng.getrandbits(128), version=4),
            previous_broker_epoch=self.previous_broker_epoch,
            on_failure=self.failures.append,
        )
        self.executor = ThreadPoolExecutor(1)
        self._is_over = False
        self.metadata: QuorumMetadata

    def follow(self) -> QuorumMetadata:
        """Start up to the published metadata."""
        self.member.start()
        self.metadata = self.member.wait_until_caught_up(WAIT_S)
        self.metadata.add_listener(self.changes.append)
        self.log_manager.startup()
        self.member.publish_on(self.executor)
        return self.metadata

    def join(self) -> None:
        """Do the whole start; the broker is unfenced afterwards."""
        self.follow()
        self.join_followed()

    def join_followed(self) -> None:
        self.log_manager.broker_epoch = self.member.register(self.endpoints)
        self.member.start_heartbeats()
        self.member.wait_until_unfenced(WAIT_S)

    def stop(self) -> bool:
        """Stop cleanly; return whether the controller has agreed to the shutdown."""
        self._is_over = True
        self.member.begin_controlled_shutdown()
        has_let_go = self.member.wait_until_let_go(WAIT_S)
        self._end()
        self.log_manager.shutdown()
        return has_let_go

    def crash(self) -> None:
        """The markers of a clean stop are missing then. No effect after `stop`."""
        if self._is_over:
            return
        self._is_over = True
        self._end()
        self.log_manager.shutdown()
        for path in self.config.log_dirs:
            (path / ".kafka_cleanshutdown").unlink(missing_ok=True)

    def _end(self) -> None:
        self.member.stop_publishing()
        self.member.stop()
        self.executor.shutdown()
