"""The operations that a client may perform, as a bit field by AclOperation.

Without an authorizer, all.
"""

from __future__ import annotations

from isotherm.broker.metadata.access.acls import (
    CLUSTER_NAME,
    OPERATIONS_ON,
    Operation,
    ResourceType,
)
from isotherm.broker.server.requests.context import RequestContext

NOT_ASKED_FOR = -(2**31)

_ALL = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in OPERATIONS_ON.items()
}


def topic_operations(context: RequestContext, name: str) -> int:
    return _operations(context, ResourceType.TOPIC, name)


def group_operations(context: RequestContext, group_id: str) -> int:
    return _operations(context, ResourceType.GROUP, group_id)


def cluster_operations(context: RequestContext) -> int:
    """The client's operations on the cluster; 0 without DESCRIBE on it."""
    authorizer = context.services.authorizer
    if authorizer is not None and not authorizer.allows_cluster(context, Operation.DESCRIBE):
        return 0
    return _operations(context, ResourceType.CLUSTER, CLUSTER_NAME)


def _operations(context: RequestContext, resource_type: ResourceType, name: str) -> int:
    authorizer = context.services.authorizer
    if authorizer is None:
        return _ALL[resource_type]
    return authorizer.operations(context, resource_type, name)
