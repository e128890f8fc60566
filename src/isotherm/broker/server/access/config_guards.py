"""Guards of configurations. Each resource needs the permission of its own type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import CLUSTER_NAME, Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.configs import config_resources
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey

_CODES = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
}
_KINDS = {
    config_resources.ResourceType.TOPIC: ResourceType.TOPIC,
    config_resources.ResourceType.GROUP: ResourceType.GROUP,
    config_resources.ResourceType.BROKER: ResourceType.CLUSTER,
    config_resources.ResourceType.BROKER_LOGGER: ResourceType.CLUSTER,
    config_resources.ResourceType.CLIENT_METRICS: ResourceType.CLUSTER,
}


def _needs_resource(operation: Operation) -> Guard:
    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        def refusal_of(resource: Any) -> ErrorCode | None:
            kind = _KINDS.get(resource.resource_type)
            if kind is None:
                return None  # The handler refuses it.
            name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
            return None if authorizer.allows(context, operation, kind, name) else _CODES[kind]

        return handle_allowed(api, context, request, refusal_of)

    return guard


GUARDS: Mapping[int, Guard] = {
    ApiKey.ALTER_CONFIGS: _needs_resource(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CONFIGS: _needs_resource(Operation.DESCRIBE_CONFIGS),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _needs_resource(Operation.ALTER_CONFIGS),
}
