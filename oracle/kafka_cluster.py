"""Apache Kafka's controller, and brokers of Apache Kafka beside it, as processes of their own.

    controller = ControllerOracle(folder / "controller");  controller.start()
    broker = BrokerOracle(folder / "kafka-1", controller, node_id=1);  broker.start()

A controller alone takes about 140 MB. All objects of the remote tier are in the folder that the
brokers share (`remote_dir`), so that each broker reads what the others have copied.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isotherm.testing.local_servers import free_ports
from isotherm.types import uuid_to_text
from oracle.kafka import CLUSTER_ID, EAGER_SETTINGS, KafkaOracle, run_tool

CONTROLLER_NODE_ID = 100
# A cluster's processes start at once, beside clients that go on working.
START_TIMEOUT_S = 300

# The heap of a broker: several run beside a controller on a small machine.
LEAN_HEAP = "320m"
LEAN_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:-UseG1GC",
    "-XX:+UseSerialGC",
    "-Xss512k",
    "-XX:MaxMetaspaceSize=128m",
    "-XX:ReservedCodeCacheSize=48m",
)

# Failures must be noticed within seconds, also on a busy machine.
CLUSTER_SETTINGS: Mapping[str, str] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
    "remote.log.storage.system.enable": "true",
    "log.retention.check.interval.ms": "500",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "1",
}


class ControllerOracle(KafkaOracle):
    """The active controller of a quorum of one, without a broker."""

    start_timeout_s: float = START_TIMEOUT_S

    def __init__(self, directory: Path, overrides: Mapping[str, str] | None = None) -> None:
        """`overrides` are keys of its server.properties."""
        super().__init__(directory, overrides, heap="128m", java_options=LEAN_OPTIONS)
        self.address = self.bootstrap_server

    def _server_properties(self, broker_port: int, controller_port: int) -> dict[str, str]:
        controller = f"127.0.0.1:{controller_port}"
        return {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_NODE_ID),
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"CONTROLLER://{controller}",
            "advertised.listeners": f"CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            **CLUSTER_SETTINGS,
        }

    def _answers(self) -> bool:
        host, _, port = self.bootstrap_server.partition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                pass
        except OSError:
            return False
        return "Kafka Server started" in self.log_since_start()


class QuorumOracle:
    """Several controllers in a dynamic quorum (KIP-853); one leads. `stop` ends all of them."""

    def __init__(self, directory: Path, size: int = 3) -> None:
        ports = free_ports(size)
        node_ids = range(CONTROLLER_NODE_ID, CONTROLLER_NODE_ID + size)
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        directory_ids = [uuid_to_text(uuid.uuid4()).replace("-", "x") for _ in ports]
        voters = ",".join(
            f"{node_id}@127.0.0.1:{port}:{directory_id}"
            for node_id, port, directory_id in zip(node_ids, ports, directory_ids, strict=True)
        )
        self.controllers = {
            node_id: _QuorumController(
                directory / f"controller-{node_id}", node_id, port, self, voters
            )
            for node_id, port in zip(node_ids, ports, strict=True)
        }

    def start(self) -> None:
        """Start all controllers at once: none answers before a majority is there."""
        with ThreadPoolExecutor(len(self.controllers)) as executor:
            for started in [executor.submit(each.start) for each in self.controllers.values()]:
                started.result()

    def stop(self) -> None:
        for controller in self.controllers.values():
            controller.kill()


class _QuorumController(ControllerOracle):
    def __init__(
        self, directory: Path, node_id: int, port: int, quorum: QuorumOracle, voters: str
    ) -> None:
        self._voters = voters
        super().__init__(
            directory,
            {
                "node.id": str(node_id),
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
                "advertised.listeners": f"CONTROLLER://127.0.0.1:{port}",
                "controller.quorum.bootstrap.servers": quorum.addresses,
                # A busy machine starts JVMs slowly.
                "controller.quorum.election.timeout.ms": "3000",
                "controller.quorum.fetch.timeout.ms": "6000",
            },
        )

    def _format(self, config_path: Path) -> None:
        run_tool(
            "kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER_ID}",
            f"--config={config_path}", f"--initial-controllers={self._voters}",
        )  # fmt: skip


class BrokerOracle(KafkaOracle):
    """A broker of Apache Kafka in the cluster of `controller`."""

    start_timeout_s: float = START_TIMEOUT_S

    def __init__(
        self,
        directory: Path,
        controller: ControllerOracle,
        *,
        node_id: int,
        remote_dir: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        heap: str = LEAN_HEAP,
        java_options: Iterable[str] = LEAN_OPTIONS,
    ) -> None:
        """All brokers of a cluster share `remote_dir`; the default is a folder of this broker
        alone.
        """
        self.node_id = node_id
        self._controller = controller
        self._shared_remote_dir = remote_dir
        super().__init__(directory, overrides, heap=heap, java_options=java_options)

    def _server_properties(self, broker_port: int, controller_port: int) -> dict[str, str]:
        broker = f"127.0.0.1:{broker_port}"
        if self._shared_remote_dir is not None:
            self.remote_dir = self._shared_remote_dir
        alone = super()._server_properties(broker_port, controller_port)
        return {
            **{key: text for key, text in alone.items() if ".replication.factor" not in key},
            "process.roles": "broker",
            "node.id": str(self.node_id),
            "controller.quorum.bootstrap.servers": self._controller.address,
            "listeners": f"PLAINTEXT://{broker}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "replica.lag.time.max.ms": "5000",
            "num.network.threads": "1",
            "num.io.threads": "2",
            "background.threads": "2",
            **EAGER_SETTINGS,
            **CLUSTER_SETTINGS,
        }

    def _format(self, config_path: Path) -> None:
        format_directories(config_path)

    def _answers(self) -> bool:
        return "Kafka Server started" in self.log_since_start()


def format_directories(config_path: Path) -> None:
    """Run Kafka's `kafka-storage.sh format` for a broker of the oracle's cluster."""
    run_tool(
        "kafka.tools.StorageTool", "format",
        f"--cluster-id={CLUSTER_ID}", f"--config={config_path}",
    )  # fmt: skip
