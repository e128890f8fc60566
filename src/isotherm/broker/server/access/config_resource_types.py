"""The types of the resources whose ACLs decide about configurations."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.broker.metadata.access.acls import ResourceType
from isotherm.broker.metadata.configs import config_resources

ACCESS_TYPES: Mapping[int, ResourceType] = {
    config_resources.ResourceType.TOPIC: ResourceType.TOPIC,
    config_resources.ResourceType.GROUP: ResourceType.GROUP,
    config_resources.ResourceType.BROKER: ResourceType.CLUSTER,
    config_resources.ResourceType.BROKER_LOGGER: ResourceType.CLUSTER,
    config_resources.ResourceType.CLIENT_METRICS: ResourceType.CLUSTER,
}
