"""What a read replica is told beside the configuration of a broker."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isotherm.broker.cluster.replica_peers import Peer
from isotherm.config.broker import BrokerConfig
from isotherm.errors import ConfigError
from isotherm.types import BrokerId

ACLS_OF_UPSTREAM = "upstream"
LIST_INTERVAL_S = 60.0


class Tail(enum.StrEnum):
    """How a client gets what lies behind the remote tier (docs/decisions/0274)."""

    PROXY = enum.auto()
    """From the replica, which fetches it from the leader. The replica is the only broker that
    clients see."""
    LEADER = enum.auto()
    """From the leader, as its preferred read replica (KIP-392). Clients see all brokers, and may
    ask each of them where to read."""
    NONE = enum.auto()
    """Not at all: the log ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """`upstream` are the client properties of the cluster in front of which the replica stands,
    with `bootstrap.servers`; None without a cluster. `acls` is a file of ACLs, or
    ACLS_OF_UPSTREAM; None if access is not checked. `peers` are the replicas that share the
    partitions, this one among them or not. Without a cluster, `list_interval_s` lies between two
    listings of the bucket, and with `allows_empty` a bucket that has no segment yet is served."""

    upstream: Mapping[str, Any] | None = None
    tail: Tail = Tail.PROXY
    acls: str | None = None
    peers: Mapping[BrokerId, Peer] = field(default_factory=dict)
    list_interval_s: float = LIST_INTERVAL_S
    allows_empty: bool = False

    @property
    def acl_file(self) -> Path | None:
        return None if self.acls in (None, ACLS_OF_UPSTREAM) else Path(str(self.acls))

    def check(self, config: BrokerConfig) -> None:
        """Raise ConfigError if the replica would show history to anyone, or could not check the
        logins that it offers."""
        if self.acls == ACLS_OF_UPSTREAM and self.upstream is None:
            raise ConfigError("there is no cluster to take ACLs from hint='--upstream, or a file'")
        if self.peers and (self.upstream is None or self.tail is Tail.LEADER):
            raise ConfigError(
                "replicas share partitions in front of a cluster alone, as the only brokers that"
                " clients see option=--peers hint='--upstream, and --tail proxy or none'"
            )
        for listener in config.listener_layout.brokers:
            if self.acls is None and not _is_loopback(listener.host):
                raise ConfigError(
                    f"other machines could read all history listener={listener}"
                    " hint='--acls upstream, --acls FILE, or a listener on localhost'"
                )
            if listener.protocol.name.startswith("SASL"):
                mechanisms = config.security_of(listener.name).sasl_enabled_mechanisms
                for mechanism in mechanisms:
                    if mechanism.startswith("SCRAM"):
                        raise ConfigError(
                            "a read replica has no SCRAM credentials: only the cluster's brokers do"
                            f" listener={listener} mechanism={mechanism}"
                            " hint='PLAIN, OAUTHBEARER, GSSAPI or certificates'"
                        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or nothing, which is all addresses
        return False
