"""A read replica in the test's process, as EmbeddedBroker is a broker in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isotherm.broker.cluster.replica_peers import Peer
from isotherm.broker.cluster.replica_settings import LIST_INTERVAL_S, ReplicaSettings, Tail
from isotherm.broker.node import BrokerNode
from isotherm.broker.read_replica import ReplicaNode
from isotherm.cli.replica import NODE_ID, replica_config
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import BrokerId


class EmbeddedReplica(EmbeddedBroker):
    """A replica of the tier at `path`, a folder or a URL, in front of the cluster `upstream` or
    without one. `directory` is its scratch folder."""

    def __init__(
        self,
        directory: Path,
        path: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        upstream: str | None = None,
        tail: Tail = Tail.PROXY,
        acls: str | None = None,
        listener: str = "PLAINTEXT://127.0.0.1:0",
        peers: Mapping[BrokerId, Peer] | None = None,
        list_interval_s: float = LIST_INTERVAL_S,
        allows_empty: bool = False,
    ) -> None:
        self.directory = directory
        self.fs = None
        self._thread = None
        self.tail = tail
        self._settings = ReplicaSettings(
            upstream=None if upstream is None else {"bootstrap.servers": upstream},
            tail=tail,
            acls=acls,
            peers=peers or {},
            list_interval_s=list_interval_s,
            allows_empty=allows_empty,
        )
        self.config = replica_config(
            str(path),
            [listener],
            NODE_ID,
            directory,
            dict(settings or {}),
            checks_access=acls is not None,
        )

    def _make_node(self) -> BrokerNode:
        return ReplicaNode(self.config, self._settings)
