"""The release of a broker, as far as requests tell it. No response of Kafka names the software: a
broker's highest metadata.version names the release of Apache Kafka that it is like. Source:
MetadataVersion.java, KIP-584 for the features of ApiVersions.
"""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.protocol.api_keys import ApiKey

_API_VERSIONS_VERSION = 4
_FEATURE = "metadata.version"
# The first level of each release.
_RELEASES = {
    7: "3.3", 8: "3.4", 9: "3.5", 12: "3.6", 15: "3.7", 20: "3.8", 21: "3.9",
    22: "4.0", 26: "4.1", 28: "4.2", 30: "4.3",
}  # fmt: skip
_NEWEST_LEVEL = 30


@dataclass(frozen=True, slots=True)
class BrokerRelease:
    """The highest metadata.version that a broker supports, and the one that the cluster has. None
    if the broker does not name them, as before Kafka 3.3."""

    supported_level: int | None
    cluster_level: int | None

    @property
    def kafka_release(self) -> str | None:
        """The release of Apache Kafka with this level. None if this module does not know it."""
        if self.supported_level is None or self.supported_level > _NEWEST_LEVEL:
            return None
        below = [name for level, name in _RELEASES.items() if level <= self.supported_level]
        return below[-1] if below else None


def read_release(client: ClusterClient, address: NodeAddress) -> BrokerRelease:
    """The release of a broker. Raises as `ClusterClient.ask`."""
    answer = client.ask(
        address,
        ApiKey.API_VERSIONS,
        {"client_software_name": "isotherm", "client_software_version": "console"},
        newest=_API_VERSIONS_VERSION,
    )
    supported = {
        feature.name: feature.max_version for feature in getattr(answer, "supported_features", ())
    }
    finalized = {
        feature.name: feature.max_version_level
        for feature in getattr(answer, "finalized_features", ())
    }
    return BrokerRelease(supported.get(_FEATURE), finalized.get(_FEATURE))
