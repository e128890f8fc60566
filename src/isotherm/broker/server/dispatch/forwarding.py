"""Forwards requests that change the cluster's metadata to the active controller (KIP-590).

A member of a KRaft quorum decides nothing about topics, configurations, quotas, ACLs, features and
reassignments. It sends the client's request in an Envelope, with the client's principal and
address, and returns the controller's response. The controller authorizes, validates and charges
quotas.

    request data   the client's request header (its correlation id and client id) and body
    principal      int16 version 0, then DefaultPrincipalData 0: type, name, token authenticated
    response data  response header and body

Source: Kafka ForwardingManagerImpl, EnvelopeUtils, KafkaApis.forwardToController.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.schema.envelope.v0 import EnvelopeRequest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.metadata.quorum.controller_channel import ControllerChannel
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.errors import PeerTimeoutError, RequestTimedOutError
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import read_response_frame, write_request_header

# The timeout of Kafka's NodeToControllerChannelManager for forwarded requests.
FORWARDING_TIMEOUT_S = 60.0

_PRINCIPAL_VERSION = b"\0\0"


Forward = Callable[[RequestContext, Any], Awaitable[Any]]


class Forwarder:
    """Event loop thread only."""

    def __init__(self, controllers: ControllerChannel) -> None:
        self._controllers = controllers

    async def forward(self, context: RequestContext, request: Any) -> Any:
        """The controller's response to a client's request, as an entity of the same version.

        Raises RequestTimedOutError if no controller answers in time, and HangUpError if the
        controller does not know the version. The client then reconnects and requests the versions
        again.
        """
        envelope = EnvelopeRequest(
            request_data=_request_data(context, request),
            request_principal=_principal_data(context.principal),
            client_host_address=ipaddress.ip_address(context.client_address).packed,
        )
        try:
            answer = await asyncio.wrap_future(
                self._controllers.send(envelope, timeout_s=FORWARDING_TIMEOUT_S)
            )
        except PeerTimeoutError as error:
            raise RequestTimedOutError("no controller has answered in time") from error
        if answer.error_code is ErrorCode.unsupported_version:
            raise HangUpError(
                f"the controller does not know the request api_key={context.header.api_key}"
                f" api_version={context.header.api_version}"
            )
        if answer.error_code is not ErrorCode.none or answer.response_data is None:
            raise UnexpectedEnvelopeError(
                f"the controller has refused an envelope error={code_name(answer.error_code)}"
                f" api_key={context.header.api_key}"
            )
        return _response_of(context, memoryview(answer.response_data))


class UnexpectedEnvelopeError(Exception):
    """The controller refused the envelope: a bug, or a missing permission. Answered with
    UNKNOWN_SERVER_ERROR, as in Kafka."""


def forwarding_apis(
    apis: Mapping[int, Api], forward: Forward, partly_local: Mapping[int, Forward]
) -> Mapping[int, Api]:
    """The APIs of a member.

    Forwardable APIs call `forward`, or their own entry in `partly_local`.
    """
    return {
        key: dataclasses.replace(api, handle=partly_local.get(key, forward))
        if api.is_forwardable
        else api
        for key, api in apis.items()
    }


def _principal_data(principal: Principal) -> bytes:
    """The principal as Kafka's DefaultKafkaPrincipalBuilder serializes it."""
    recorded = DefaultPrincipalData(
        type_=principal.type, name=principal.name, token_authenticated=False
    )
    data = bytearray(_PRINCIPAL_VERSION)
    encoder(DefaultPrincipalData)(recorded, data)
    return bytes(data)


def _request_data(context: RequestContext, request: Any) -> bytes:
    request_type = type(request)
    data = write_request_header(context.header, is_flexible=bool(request_type.__flexible__))
    encoder(request_type)(request, data)
    return bytes(data)


def _response_of(context: RequestContext, data: memoryview) -> Any:
    header = context.header
    response_type = response_class(header.api_key, header.api_version)
    has_tags = bool(response_type.__flexible__) and header.api_key != ApiKey.API_VERSIONS
    correlation_id, body = read_response_frame(data, has_tags=has_tags)
    if correlation_id != header.correlation_id:
        raise ProtocolError(
            f"the controller has answered another request asked={header.correlation_id}"
            f" answered={correlation_id}"
        )
    response, _ = decoder(response_type)(body, 0)
    return response
