"""A cluster of processes that reach one another through `links`, while clients reach the brokers
directly.

client ──► broker 1 PLAINTEXT      broker 1 ──► proxy ──► broker 2 REPLICATION
                                   broker 1 ──► proxy ──► controller
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from isotherm.testing.local_servers import free_ports
from oracle.cluster_members import TIER_SETTINGS, IsothermMember, KafkaMember, Member
from oracle.kafka_cluster import CONTROLLER_NODE_ID, ControllerOracle
from tests.support.cluster.links import Link, Links

KINDS: Final[Mapping[str, type[Member]]] = {"I": IsothermMember, "K": KafkaMember}

_TIMEOUT_S: Final = 300.0
"""The limit of a start or a stop, also on a busy machine."""

# Sessions and lags end within a pause or a split.
TIMES: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "replica.lag.time.max.ms": "3000",
}
COORDINATORS_PARTITIONS: Final[Mapping[str, int]] = {
    "__consumer_offsets": 2,
    "__transaction_state": 2,
}
SETTINGS: Final[Mapping[str, str]] = {
    **TIER_SETTINGS,
    **TIMES,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": str(COORDINATORS_PARTITIONS["__consumer_offsets"]),
    "transaction.state.log.num.partitions": str(COORDINATORS_PARTITIONS["__transaction_state"]),
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "initial.broker.registration.timeout.ms": "300000",
    "inter.broker.listener.name": "REPLICATION",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
}


class LinkedCluster:
    """A controller and brokers with ids from 1 on, each an Isotherm (I) or Apache Kafka (K)."""

    def __init__(
        self, root: Path, kinds: str, links: Links, more_settings: Mapping[str, str] | None = None
    ) -> None:
        """`kinds` has a letter for each broker, `more_settings` are those of all of them. Starts
        nothing yet."""
        self.bucket = root / "bucket"
        self.bucket.mkdir(parents=True)
        self._links = links
        own_port, proxy_port = free_ports(2)
        own, proxy = f"127.0.0.1:{own_port}", f"127.0.0.1:{proxy_port}"
        self.controller = ControllerOracle(
            root / "controller",
            {
                **TIMES,
                "listeners": f"CONTROLLER://{own}",
                "advertised.listeners": f"CONTROLLER://{proxy}",
                "controller.quorum.bootstrap.servers": own,
                # Held back by ELR alone, as a cluster-wide setting has it.
                "min.insync.replicas": "2",
            },
        )
        self.controller.start_timeout_s = _TIMEOUT_S
        links.proxy(proxy_port, CONTROLLER_NODE_ID, own_port)
        self.controller.address = proxy
        self.members: dict[int, Member] = {}
        for node_id, kind in enumerate(kinds, start=1):
            client_port, own_port, proxy_port = free_ports(3)
            settings = {
                **SETTINGS,
                **(more_settings or {}),
                "listeners": f"PLAINTEXT://127.0.0.1:{client_port},REPLICATION://127.0.0.1:{own_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port},"
                f"REPLICATION://127.0.0.1:{proxy_port}",
            }
            links.proxy(proxy_port, node_id, own_port)
            member = KINDS[kind](
                root / f"broker-{node_id}", self.controller, node_id, self.bucket, settings
            )
            member.stop_timeout_s = _TIMEOUT_S
            if isinstance(member, KafkaMember):
                member.start_timeout_s = _TIMEOUT_S
            self.members[node_id] = member

    @property
    def servers(self) -> str:
        return ",".join(member.bootstrap_server for member in self.members.values())

    @property
    def nodes(self) -> tuple[int, ...]:
        return (*self.members, CONTROLLER_NODE_ID)

    def start(self) -> None:
        self.controller.start()
        self._links.set_pid(CONTROLLER_NODE_ID, self.controller.pid)
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(self.start_member, self.members))

    def start_member(self, node_id: int) -> None:
        self.members[node_id].start()
        # Connections that it has made already have an unknown client; a cut identifies them.
        self._links.set_pid(node_id, self.members[node_id].pid)

    def pause(self, node_id: int) -> None:
        os.kill(self.members[node_id].pid, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        os.kill(self.members[node_id].pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop every process. Idempotent."""
        for member in self.members.values():
            member.kill()
        self.controller.kill()

    def all_links(self) -> list[Link]:
        return [(a, b) for a in self.nodes for b in self.nodes if a != b]
