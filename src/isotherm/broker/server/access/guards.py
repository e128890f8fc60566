"""The access checks of each API, before and after its handler, as in Kafka's KafkaApis and
ControllerApis.

If an authorizer is configured, a guard replaces an API's handler and calls it for the allowed
items. Without an authorizer there are no guards, so they cost nothing. An API without a guard is
declared with a reason, or the broker does not start. Two APIs check in their handlers: Fetch,
because an incremental request does not name the partitions of its session, and
DescribeTopicPartitions, because its pages are counted by topic. Responses with authorized
operations also need the authorizer in the handler.

A member of a cluster forwards requests to the controller, which checks them. So the guards of
forwarded APIs are not used there. Reasons: docs/decisions/0114.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis import create_acls, delete_acls, describe_acls, refused
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.access import (
    config_guards,
    group_guards,
    offset_guards,
    topic_change_guards,
    topic_guards,
    transaction_guards,
)
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, api_name


def needs_cluster(operation: Operation, or_else: Operation | None = None) -> Guard:
    """A guard that requires `operation` on the cluster, or alternatively `or_else`."""

    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        # With an alternative, a denial of the first operation is not logged: it may not refuse the
        # request.
        allows = authorizer.allows_cluster
        is_allowed = allows(context, operation, is_logged=or_else is None)
        if not is_allowed and or_else is not None:
            is_allowed = allows(context, or_else)
        if is_allowed:
            return api.handle(context, request)
        needed = operation if or_else is None else or_else
        message = f"{needed.name} on the cluster is needed"
        return api.refuse(context, request, ErrorCode.cluster_authorization_failed, message)

    return guard


def _unless_malformed(guard: Guard, is_malformed: Callable[[Any], bool]) -> Guard:
    """A guard that leaves malformed requests to the handler, which closes the connection."""

    def check(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        if is_malformed(request):
            return api.handle(context, request)
        return guard(authorizer, api, context, request)

    return check


_ALTER = needs_cluster(Operation.ALTER)
_DESCRIBE = needs_cluster(Operation.DESCRIBE)
_ALTER_CONFIGS = needs_cluster(Operation.ALTER_CONFIGS)
_DESCRIBE_CONFIGS = needs_cluster(Operation.DESCRIBE_CONFIGS)

GUARDS: Mapping[int, Guard] = {
    ApiKey.ADD_RAFT_VOTER: _ALTER,
    ApiKey.ALTER_CLIENT_QUOTAS: _ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _ALTER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER,
    ApiKey.CREATE_ACLS: _unless_malformed(_ALTER, create_acls.is_malformed),
    ApiKey.DELETE_ACLS: _unless_malformed(_ALTER, delete_acls.is_malformed),
    ApiKey.DESCRIBE_ACLS: _unless_malformed(_DESCRIBE, describe_acls.is_malformed),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS: _DESCRIBE,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBE,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE,
    ApiKey.ELECT_LEADERS: _ALTER,
    ApiKey.LIST_CONFIG_RESOURCES: _DESCRIBE_CONFIGS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE,
    ApiKey.REMOVE_RAFT_VOTER: _ALTER,
    ApiKey.UNREGISTER_BROKER: _ALTER,
    ApiKey.UPDATE_FEATURES: _ALTER,
    ApiKey.WRITE_TXN_MARKERS: needs_cluster(Operation.ALTER, Operation.CLUSTER_ACTION),
    **config_guards.GUARDS,
    **group_guards.GUARDS,
    **offset_guards.GUARDS,
    **topic_change_guards.GUARDS,
    **topic_guards.GUARDS,
    **transaction_guards.GUARDS,
}

# Each API that has no guard, with the reason.
UNGUARDED: Mapping[int, str] = {
    **{api.key: "refused for every client" for api in refused.APIS},
    ApiKey.API_VERSIONS: "clients need it before they log in",
    ApiKey.DESCRIBE_CLUSTER: "names brokers, as Metadata does for every client",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "its handler checks: pages are counted by topic",
    ApiKey.FETCH: "its handler checks: an incremental request names no partitions",
    ApiKey.SASL_AUTHENTICATE: "it is the login",
    ApiKey.SASL_HANDSHAKE: "it is the login",
}


def guarded_apis(apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
    """`apis` with handlers that are called only for what `authorizer` allows; as they are if it is
    None.

    Raises AssertionError for an API that is neither in GUARDS nor in UNGUARDED, with an authorizer
    and without one. So a broker with such an API does not start.
    """
    undeclared = sorted(apis.keys() - GUARDS.keys() - UNGUARDED.keys())
    if undeclared:
        raise AssertionError(
            f"APIs have no guard apis={','.join(map(api_name, undeclared))}"
            " hint='add each to GUARDS, or with a reason to UNGUARDED, in broker/server/access'"
        )
    if authorizer is None:
        return apis
    return {
        key: dataclasses.replace(api, handle=partial(GUARDS[key], authorizer, api))
        if key in GUARDS
        else api
        for key, api in apis.items()
    }
