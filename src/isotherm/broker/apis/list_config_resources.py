"""ListConfigResources (key 74).

Versions  0-1. 0 only client metrics subscriptions (ListClientMetricsResources) · 1 any types.
Behaviour Returns the names of resources that can have a configuration, by type; no type means all
          types. Groups and client metrics subscriptions are listed if they have settings. As in
          Kafka, a type that cannot be listed gets UNSUPPORTED_VERSION.
Not done  -
KIPs      714 · 1000 · 1142
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.configs.config_resources import ResourceType
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_TYPES_VERSION = 1


def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    names = {
        ResourceType.TOPIC: sorted(services.metadata.image.topics_by_name),
        ResourceType.BROKER: [str(services.config.node_id)],
        ResourceType.BROKER_LOGGER: [str(services.config.node_id)],
        ResourceType.CLIENT_METRICS: _configured(context, ResourceType.CLIENT_METRICS),
        ResourceType.GROUP: _configured(context, ResourceType.GROUP),
    }
    if context.header.api_version < FIRST_TYPES_VERSION:
        resource_types = {int(ResourceType.CLIENT_METRICS)}
    else:
        resource_types = set(request.resource_types) or {int(kind) for kind in names}
    if not resource_types <= set(names):
        return API.refuse(context, request, ErrorCode.unsupported_version)
    resources: list[dict[str, Any]] = [
        {"resource_name": name, "resource_type": int(kind)}
        for kind in names
        if kind in resource_types
        for name in names[kind]
    ]
    return context.response({"error_code": ErrorCode.none, "config_resources": resources})


def _configured(context: RequestContext, kind: ResourceType) -> list[str]:
    configs = context.services.metadata.image.configs
    return sorted(config.name for config in configs if config.resource_type == kind)


API = Api(
    ApiKey.LIST_CONFIG_RESOURCES,
    VersionRange(0, 1),
    handle,
    access=Access(
        [on_cluster(Operation.DESCRIBE_CONFIGS, shows=["config_resources/resource_name"])]
    ),
)
