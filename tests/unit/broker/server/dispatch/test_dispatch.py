"""The dispatcher: each request gets one answer, whatever its handler does and whenever it is
done."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v0 import response as find_coordinator_v0

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.metadata.access.principal import ANONYMOUS
from isotherm.broker.server.dispatch.dispatch import LOOP_REQUEST_SIZE_MAX, Dispatcher
from isotherm.broker.server.net.connection import Connection, PendingAnswer
from isotherm.broker.server.requests.context import BrokerServices, HangUpError
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.errors import ProtocolError
from isotherm.testing.sim_clock import SimClock

FIND_COORDINATOR = 10
SERVICES = cast("BrokerServices", SimpleNamespace(clock=SimClock()))


class Client:
    client_address = "192.0.2.1"
    principal = ANONYMOUS
    listener_name = "PLAINTEXT"
    repeated_requests = None


def frame(api_key: int, api_version: int, body: bytes = b"", correlation_id: int = 77) -> Any:
    head = struct.pack(">hhih", api_key, api_version, correlation_id, 1) + b"c"
    return memoryview(head + body)


def find_coordinator(answer: Any) -> Dispatcher:
    """A dispatcher that handles FindCoordinator with `answer`, and ApiVersions."""

    def refuse(context: Any, request: Any, code: ErrorCode) -> Any:
        return response(code)

    api = Api(
        ApiKey.FIND_COORDINATOR,
        VersionRange(0, 6),
        answer,
        Access(no_guard="no authorizer"),
        refuse_by=refuse,
    )
    apis = {FIND_COORDINATOR: api, ApiKey.API_VERSIONS: APIS[ApiKey.API_VERSIONS]}
    return Dispatcher(SERVICES, apis)


def response(code: ErrorCode) -> Any:
    return find_coordinator_v0.FindCoordinatorResponse(error_code=code, node_id=1, host="h", port=2)


KEY = struct.pack(">h", 1) + b"g"
ASK = frame(FIND_COORDINATOR, 0, KEY)


def error_of(answer: Any) -> int:
    """The error code of an answer to FindCoordinator 0. Checks its size and correlation id."""
    size, correlation_id, code = struct.unpack_from(">iih", b"".join(answer))
    assert correlation_id == 77
    assert size == len(b"".join(answer)) - 4
    return int(code)


def handle(dispatcher: Dispatcher, payload: Any) -> Any:
    return dispatcher.handle_frame(payload, cast("Connection", Client()))


def test_request_is_answered_at_once_by_a_plain_handler() -> None:
    seen = []

    def answer(context: Any, request: Any) -> Any:
        seen.append((request.key, context.client_address, context.header.client_id))
        return response(ErrorCode.none)

    assert error_of(handle(find_coordinator(answer), ASK)) == 0
    assert seen == [("g", "192.0.2.1", "c")]


def test_request_that_wants_no_answer_gets_none() -> None:
    assert list(handle(find_coordinator(lambda *_: None), ASK)) == []


def test_handler_that_waits_is_answered_when_it_is_done() -> None:
    async def scenario() -> None:
        async def answer(context: Any, request: Any) -> Any:
            return response(ErrorCode.none)

        pending = handle(find_coordinator(answer), ASK)
        assert isinstance(pending, PendingAnswer)
        await pending.future
        assert error_of(pending.answer()) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("is_done", [False, True])
def test_response_that_is_made_later_tells_whether_the_next_request_may_begin(
    is_done: bool,
) -> None:
    async def scenario() -> None:
        future = asyncio.get_running_loop().create_future()
        later = LaterResponse(
            future, lambda: response(ErrorCode.none), is_done_but_for_answer=is_done
        )
        pending = handle(find_coordinator(lambda *_: later), ASK)
        assert isinstance(pending, PendingAnswer)
        assert pending.future is future
        assert pending.is_done_but_for_answer == is_done
        future.set_result(None)
        assert error_of(pending.answer()) == 0
        assert (await later).error_code == ErrorCode.none

    asyncio.run(scenario())


def raising(error: Exception, *, later: bool) -> Any:
    def at_once(context: Any, request: Any) -> Any:
        raise error

    async def when_awaited(context: Any, request: Any) -> Any:
        raise error

    return when_awaited if later else at_once


def outcome(answer: Any) -> Any:
    """The answer to ASK, whether the handler answers at once or later."""

    async def scenario() -> Any:
        answered = handle(find_coordinator(answer), ASK)
        if isinstance(answered, PendingAnswer):
            await asyncio.wait([answered.future])
            answered = answered.answer()
        return answered

    return asyncio.run(scenario())


@pytest.mark.parametrize("later", [False, True])
def test_error_of_a_handler_is_answered_with_its_code(later: bool) -> None:
    answered = outcome(raising(InvalidRequestError("no"), later=later))
    assert error_of(answered) == ErrorCode.invalid_request


@pytest.mark.parametrize("later", [False, True])
def test_unexpected_error_is_logged_once_and_answered(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answered = outcome(raising(ZeroDivisionError("oops"), later=later))
    assert error_of(answered) == ErrorCode.unknown_server_error
    (record,) = caplog.records
    assert "api_key=10" in record.message
    assert record.exc_info is not None


@pytest.mark.parametrize("later", [False, True])
def test_hanging_up_passes_through(later: bool) -> None:
    with pytest.raises(HangUpError):
        outcome(raising(HangUpError("bye"), later=later))


def test_response_that_cannot_be_encoded_is_an_unexpected_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = outcome(lambda *_: find_coordinator_v0.FindCoordinatorResponse(
        error_code=ErrorCode.none, node_id=1 << 40, host="h", port=2
    ))  # fmt: skip
    assert error_of(answered) == ErrorCode.unknown_server_error
    assert len(caplog.records) == 1


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x0a\0\0", bytes(ASK)[:-1], bytes(ASK)[:12]])
def test_request_cut_short_closes_the_connection(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        handle(find_coordinator(lambda *_: None), memoryview(payload))


@pytest.mark.parametrize(("key", "version"), [(10, 7), (10, -1), (0, 2), (0, 14), (999, 0)])
def test_version_that_is_not_served_closes_the_connection(key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"api_key={key} api_version={version}"):
        handle(find_coordinator(lambda *_: None), frame(key, version))


@pytest.mark.parametrize(("version", "tags"), [(5, b"\0"), (6, b"\0"), (99, b"\0"), (-1, b"")])
def test_unknown_version_of_api_versions_is_answered_in_version_0(
    version: int, tags: bytes
) -> None:
    asked = frame(ApiKey.API_VERSIONS, version, tags)
    answer = handle(find_coordinator(lambda *_: None), asked)
    code, *known = struct.unpack_from(">hihhh", b"".join(answer), 8)
    assert (code, known) == (ErrorCode.unsupported_version, [1, 18, *SERVED[ApiKey.API_VERSIONS]])


def test_long_request_is_decoded_by_another_thread_and_answered_in_order() -> None:
    async def scenario() -> None:
        loop_thread = threading.get_ident()
        asked: list[tuple[str, int]] = []

        def answer(context: Any, request: Any) -> Any:
            asked.append((request.key, threading.get_ident()))
            return response(ErrorCode.none)

        body = struct.pack(">h", LOOP_REQUEST_SIZE_MAX + 1) + b"k" * (LOOP_REQUEST_SIZE_MAX + 1)
        pending = handle(find_coordinator(answer), frame(FIND_COORDINATOR, 0, body))
        assert isinstance(pending, PendingAnswer)
        assert asked == []
        await pending.future
        encoding = pending.answer()
        assert [thread for _, thread in asked] == [loop_thread]
        assert isinstance(encoding, PendingAnswer)
        await encoding.future
        assert error_of(encoding.answer()) == 0

    asyncio.run(scenario())


# Transactional id, acks, timeout, and a count of no topics.
PRODUCE_NOTHING = frame(ApiKey.PRODUCE, 3, struct.pack(">hhii", -1, 0, 1000, 0))


@pytest.mark.parametrize(("asked", "outlives_client"), [(PRODUCE_NOTHING, True), (ASK, False)])
def test_only_records_are_taken_from_clients_that_have_gone(
    asked: Any, outlives_client: bool
) -> None:
    async def scenario() -> None:
        async def answer(context: Any, request: Any) -> None:
            return None

        apis = {
            key: dataclasses.replace(APIS[key], handle=answer)
            for key in (ApiKey.PRODUCE, FIND_COORDINATOR)
        }
        pending = handle(Dispatcher(SERVICES, apis), asked)
        assert isinstance(pending, PendingAnswer)
        assert pending.outlives_client == outlives_client
        await pending.future

    asyncio.run(scenario())


def test_long_request_that_is_none_closes_the_connection() -> None:
    async def scenario() -> None:
        pending = handle(
            find_coordinator(lambda *_: None), frame(FIND_COORDINATOR, 0, b"x" * 20_000)
        )
        assert isinstance(pending, PendingAnswer)
        await asyncio.wait([pending.future])
        with pytest.raises(ProtocolError):
            pending.answer()

    asyncio.run(scenario())
