"""Requests that are forwarded to the controller in an Envelope. kio plays the controller: it reads
the envelope and writes the answer."""

from __future__ import annotations

import asyncio
import datetime
import io
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import pytest
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.server.dispatch.forwarding import (
    Forwarder,
    UnexpectedEnvelopeError,
    forwarding_apis,
)
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.errors import PeerTimeoutError, RequestTimedOutError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import RequestHeader

REQUEST = CreateTopicsRequest(
    topics=(
        CreatableTopic(
            name="t", num_partitions=i32(3), replication_factor=i16(-1), assignments=(), configs=()
        ),
    ),
    timeout=i32Timedelta.parse(datetime.timedelta(seconds=30)),
    validate_only=False,
)
RESPONSE = CreateTopicsResponse(
    throttle_time=i32Timedelta.parse(datetime.timedelta()),
    topics=(
        CreatableTopicResult(
            name="t",
            topic_id=None,
            error_code=ErrorCode.topic_already_exists,
            error_message="Topic 't' already exists.",
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            configs=None,
        ),
    ),
)


@dataclass
class _Request:
    resources: tuple[Any, ...]


@dataclass
class _Response:
    responses: tuple[Any, ...]


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


class Controllers:
    """A controller channel that keeps the envelopes and gives each the same answer."""

    def __init__(self, answer: EnvelopeResponse | Exception) -> None:
        self.envelopes: list[Any] = []
        self._answer = answer

    def send(self, request: Any, *, timeout_s: float) -> Future[Any]:
        self.envelopes.append(request)
        future: Future[Any] = Future()
        if isinstance(self._answer, Exception):
            future.set_exception(self._answer)
        else:
            future.set_result(self._answer)
        return future


def answered(correlation_id: int = 77) -> EnvelopeResponse:
    header = ResponseHeader(correlation_id=i32(correlation_id))
    return EnvelopeResponse(
        response_data=written(header) + written(RESPONSE), error_code=ErrorCode.none
    )


def forward(controllers: Controllers, address: str = "10.1.2.3") -> Any:
    header = RequestHeader(ApiKey.CREATE_TOPICS, 7, 77, "admin-1")
    context = RequestContext(cast("Any", None), header, address, "PLAINTEXT")
    return asyncio.run(_forward(Forwarder(controllers), context))


async def _forward(forwarder: Forwarder, context: RequestContext) -> Any:
    return await forwarder.forward(context, REQUEST)


def test_envelope_has_the_clients_request_principal_and_address():
    controllers = Controllers(answered())
    forward(controllers)
    (envelope,) = controllers.envelopes
    header = KioRequestHeader(
        request_api_key=i16(19),
        request_api_version=i16(7),
        correlation_id=i32(77),
        client_id="admin-1",
    )
    assert envelope.request_data == written(header) + written(REQUEST)
    assert envelope.client_host_address == bytes([10, 1, 2, 3])
    version, principal = envelope.request_principal[:2], envelope.request_principal[2:]
    assert version == b"\0\0"
    assert entity_reader(DefaultPrincipalData)(principal, 0) == (
        DefaultPrincipalData(type_="User", name="ANONYMOUS", token_authenticated=False),
        len(principal),
    )


def test_address_of_ipv6_has_sixteen_bytes():
    controllers = Controllers(answered())
    forward(controllers, "::1")
    assert controllers.envelopes[0].client_host_address == bytes(15) + b"\1"


def test_controllers_answer_is_the_clients():
    assert forward(Controllers(answered())) == RESPONSE


def test_answer_to_another_request_is_no_answer():
    with pytest.raises(ProtocolError, match="another request asked=77 answered=78"):
        forward(Controllers(answered(78)))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (PeerTimeoutError("no answer"), RequestTimedOutError),
        (EnvelopeResponse(error_code=ErrorCode.unsupported_version), HangUpError),
        (
            EnvelopeResponse(error_code=ErrorCode.principal_deserialization_failure),
            UnexpectedEnvelopeError,
        ),
        (EnvelopeResponse(error_code=ErrorCode.none), UnexpectedEnvelopeError),
    ],
)
def test_failed_envelope_is_answered_as_kafka_does(answer, error):
    with pytest.raises(error):
        forward(Controllers(answer))


def test_only_forwardable_apis_are_forwarded():
    async def controller(context: RequestContext, request: Any) -> Any: ...

    async def own(context: RequestContext, request: Any) -> Any: ...

    apis = forwarding_apis(APIS, controller, {ApiKey.ALTER_CONFIGS: own})
    assert apis[ApiKey.CREATE_TOPICS].handle is controller
    assert apis[ApiKey.ALTER_CONFIGS].handle is own
    assert apis[ApiKey.METADATA] is APIS[ApiKey.METADATA]
    # Kafka's ApiKeys.forwardable, without the APIs that this broker does not serve.
    assert {ApiKey(key).name for key, api in APIS.items() if api.is_forwardable} == {
        "CREATE_TOPICS",
        "DELETE_TOPICS",
        "CREATE_ACLS",
        "DELETE_ACLS",
        "ALTER_CONFIGS",
        "CREATE_PARTITIONS",
        "ELECT_LEADERS",
        "INCREMENTAL_ALTER_CONFIGS",
        "ALTER_PARTITION_REASSIGNMENTS",
        "LIST_PARTITION_REASSIGNMENTS",
        "ALTER_CLIENT_QUOTAS",
        "ALTER_USER_SCRAM_CREDENTIALS",
        "DESCRIBE_QUORUM",
        "UPDATE_FEATURES",
        "UNREGISTER_BROKER",
        "ADD_RAFT_VOTER",
        "REMOVE_RAFT_VOTER",
    }
