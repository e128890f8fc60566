"""DescribeCluster (key 60).

Versions  0-2. 1 kind of endpoint · 2 fenced brokers.
Behaviour This broker, at the advertised address of the listener that was asked, is the cluster and
          its controller. Authorized operations, if asked for, are all. Asking for the controllers'
          endpoints gets MISMATCHED_ENDPOINT_TYPE, as from any broker of Kafka.
Not done  -
KIPs      700 · 919 endpoint types · 1073 fenced brokers
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_ENDPOINT_TYPE_VERSION = 1
BROKERS, CONTROLLERS = 1, 2


def handle(context: RequestContext, request: Any) -> Any:
    if context.header.api_version >= FIRST_ENDPOINT_TYPE_VERSION:
        asked = request.endpoint_type
        if asked == CONTROLLERS:
            message = f"this is an endpoint of brokers endpoint_type={asked}"
            return _refusal(context, ErrorCode.mismatched_endpoint_type, message)
        if asked != BROKERS:
            message = f"no such type of endpoint endpoint_type={asked}"
            return _refusal(context, ErrorCode.unsupported_endpoint_type, message)
    services = context.services
    endpoint = services.endpoint(context.listener_name)
    config = services.config
    operations = request.include_cluster_authorized_operations
    return _response(
        context,
        {
            "error_code": ErrorCode.none,
            "cluster_id": services.cluster_id,
            "controller_id": config.node_id,
            "brokers": [
                {
                    "broker_id": config.node_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": config.broker_rack,
                    "is_fenced": False,
                }
            ]
            if endpoint
            else (),
            "cluster_authorized_operations": CLUSTER_OPERATIONS if operations else NOT_ASKED_FOR,
        },
    )


def _response(context: RequestContext, fields: dict[str, Any]) -> Any:
    return context.response(fields)


def _refusal(context: RequestContext, error_code: ErrorCode, message: str | None) -> Any:
    fields = {"error_code": error_code, "error_message": message, "cluster_id": "", "brokers": ()}
    return _response(context, fields)


API = Api(ApiKey.DESCRIBE_CLUSTER, VersionRange(0, 2), handle)
