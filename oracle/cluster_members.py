"""Brokers of both kinds in a cluster with one controller, for the demo and for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.kafka import CLUSTER_ID, STOP_TIMEOUT_S
from oracle.kafka_cluster import (
    CLUSTER_SETTINGS,
    LEAN_HEAP,
    LEAN_OPTIONS,
    BrokerOracle,
    ControllerOracle,
)

TIER_SETTINGS: Mapping[str, str] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.min.isr": "2",
    "log.initial.task.delay.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}


class IsothermMember:
    """`isotherm serve` with the configuration of a broker in a KRaft cluster."""

    kind = "Isotherm"
    stop_timeout_s: float = STOP_TIMEOUT_S

    def __init__(
        self,
        directory: Path,
        controller: ControllerOracle,
        node_id: int,
        bucket: Path,
        settings: Mapping[str, str] = TIER_SETTINGS,
    ) -> None:
        """Writes the configuration, and formats the data directory as `isotherm storage` does."""
        directory.mkdir(parents=True)
        self.node_id = node_id
        (port,) = free_ports(1)
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        """The output of all its lives so far; each is added when it ends."""
        self.config_path = directory / "server.properties"
        properties = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": controller.address,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self.data_dir),
            "rsm.config.url": bucket.as_uri(),
            "rsm.config.layout": "local-tiered-storage",
            **CLUSTER_SETTINGS,
            **settings,
        }
        first_listener, *_ = properties["listeners"].split(",")
        self.bootstrap_server = first_listener.partition("://")[2]
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        self.config_path.write_text(text)
        self._process: BrokerProcess | None = None
        self.format()

    def format(self) -> None:
        """Prepare an empty data directory."""
        self._isotherm("storage", "format", "--cluster-id", CLUSTER_ID, "-c", str(self.config_path))

    @property
    def log_text(self) -> str:
        return self._process.log_text if self._process is not None else ""

    @property
    def whole_log(self) -> str:
        """The output of all its lives, the present one included."""
        earlier = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return earlier + self.log_text

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is started"
        return self._process.process.pid

    @property
    def has_ended(self) -> bool:
        """Whether a broker that was started has ended by itself."""
        return self._process is not None and self._process.has_ended

    def start(self) -> None:
        self._process = BrokerProcess(self.data_dir, {}, config=self.config_path, presets={})

    def reload(self) -> None:
        """Make it read its configuration again."""
        assert self._process is not None, "the broker is started"
        self._process.reload()

    def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            self._keep_log(process)

    def stop(self) -> None:
        """AssertionError if it does not end with status 0, TimeoutExpired if not in time."""
        if self._process is not None:
            status = self._process.stop(self.stop_timeout_s)
            process, self._process = self._process, None
            self._keep_log(process)
            assert status == 0, f"broker stopped badly status={status} log={self.log_path}"

    def _keep_log(self, process: BrokerProcess) -> None:
        with self.log_path.open("ab") as log:
            log.writelines([*process.log_lines, b"-- the process has ended --\n"])

    def _isotherm(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "isotherm.cli.main", *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
        )


class KafkaMember(BrokerOracle):
    """A broker of Apache Kafka on the same remote tier, through LocalTieredStorage."""

    kind = "Apache Kafka"

    def __init__(
        self,
        directory: Path,
        controller: ControllerOracle,
        node_id: int,
        bucket: Path,
        settings: Mapping[str, str] = TIER_SETTINGS,
        *,
        heap: str = LEAN_HEAP,
        java_options: Iterable[str] = LEAN_OPTIONS,
    ) -> None:
        super().__init__(
            directory,
            controller,
            node_id=node_id,
            remote_dir=bucket,
            overrides=settings,
            heap=heap,
            java_options=java_options,
        )

    @property
    def data_dir(self) -> Path:
        return self.log_dir

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def has_ended(self) -> bool:
        """Whether a broker that was started has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")


Member: TypeAlias = IsothermMember | KafkaMember
