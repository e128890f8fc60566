"""DescribeCluster (key 60).

Versions  0-2. 1 kind of endpoint · 2 fenced brokers.
Behaviour Returns the brokers with their advertised addresses for the listener of the request,
          including fenced brokers on request. As controller it names this broker, which forwards
          requests in a cluster. Authorized operations are included on request: all without an
          authorizer, none without DESCRIBE on the cluster. A request for the endpoints of
          controllers gets MISMATCHED_ENDPOINT_TYPE, as from any Kafka broker.
Not done  -
KIPs      700 · 919 endpoint types · 1073 fenced brokers
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.server.requests.authorized_operations import NOT_ASKED_FOR, cluster_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.listed_brokers import controller_id, listed_brokers
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_ENDPOINT_TYPE_VERSION = 1
FIRST_FENCED_VERSION = 2
BROKERS, CONTROLLERS = 1, 2


def handle(context: RequestContext, request: Any) -> Any:
    if context.header.api_version >= FIRST_ENDPOINT_TYPE_VERSION:
        endpoint_type = request.endpoint_type
        if endpoint_type == CONTROLLERS:
            message = f"this is an endpoint of brokers endpoint_type={endpoint_type}"
            return _refusal(context, ErrorCode.mismatched_endpoint_type, message)
        if endpoint_type != BROKERS:
            message = f"unknown endpoint type endpoint_type={endpoint_type}"
            return _refusal(context, ErrorCode.unsupported_endpoint_type, message)
    services = context.services
    with_fenced = context.header.api_version >= FIRST_FENCED_VERSION and (
        request.include_fenced_brokers
    )
    shows_operations = request.include_cluster_authorized_operations
    return _response(
        context,
        {
            "error_code": ErrorCode.none,
            "cluster_id": services.cluster_id,
            "controller_id": controller_id(context),
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "is_fenced": broker.is_fenced,
                }
                for broker in listed_brokers(context, with_fenced=with_fenced)
            ],
            "cluster_authorized_operations": cluster_operations(context)
            if shows_operations
            else NOT_ASKED_FOR,
        },
    )


def _response(context: RequestContext, fields: dict[str, Any]) -> Any:
    return context.response(fields)


def _refusal(context: RequestContext, error_code: ErrorCode, message: str | None) -> Any:
    fields = {"error_code": error_code, "error_message": message, "cluster_id": "", "brokers": ()}
    return _response(context, fields)


API = Api(
    ApiKey.DESCRIBE_CLUSTER,
    VersionRange(0, 2),
    handle,
    access=Access(
        no_guard="names brokers, as Metadata does for every client",
        unchecked={"brokers/broker_id": "Metadata shows it to every client"},
    ),
)
