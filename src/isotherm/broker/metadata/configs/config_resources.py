"""The types of resources that have a configuration, with the protocol's numbers."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from isotherm.broker.metadata.access import acls
from isotherm.errors import InvalidRequestError


def check_this_broker(name: str, node_id: int) -> None:
    """Check that `name` is this broker's id. Raises InvalidRequestError for another broker."""
    if name != str(node_id):
        raise InvalidRequestError(
            f"the request is for another broker requested={name} node.id={node_id}"
        )


class ResourceType(enum.IntEnum):
    """Kafka: ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


# The types of the resources whose ACLs decide about configurations.
ACCESS_TYPES: Mapping[int, acls.ResourceType] = {
    ResourceType.TOPIC: acls.ResourceType.TOPIC,
    ResourceType.GROUP: acls.ResourceType.GROUP,
    ResourceType.BROKER: acls.ResourceType.CLUSTER,
    ResourceType.BROKER_LOGGER: acls.ResourceType.CLUSTER,
    ResourceType.CLIENT_METRICS: acls.ResourceType.CLUSTER,
}
