"""Answers a frame: header, version check, handler, response. This is the request boundary for
errors.

Behaviour
- A version of ApiVersions that is not supported is answered in version 0 with UNSUPPORTED_VERSION
  and the served versions, so that a newer client can downgrade (KIP-511). For any other API the
  connection is closed, as in Kafka.
- A request that cannot be decoded closes its connection.
- An error of a handler is answered with its code (`error_mapping`) in the API's own response. An
  unexpected error is logged once, with its traceback, and answered with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.loop_turns import PART_SIZE, next_turn
from isotherm.broker.server.net.connection import Answer, Connection, PendingAnswer
from isotherm.broker.server.requests.context import BrokerServices, HangUpError, RequestContext
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.broker.server.requests.quotas import ClientQuotaManager
from isotherm.broker.server.requests.request_meter import RequestMeter
from isotherm.broker.server.requests.served_api import Api, Handler
from isotherm.broker.server.requests.split_requests import (
    JoinedResponse,
    Split,
    find_split,
    has_many_partitions,
    split_request,
)
from isotherm.errors import IsothermError, UnsupportedVersionError
from isotherm.metrics.request_metrics import RequestMetrics
from isotherm.protocol.api_keys import ApiKey, VersionRange, api_name, response_class
from isotherm.protocol.entities import entity_of
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import (
    FIRST_FLEXIBLE_API_VERSIONS,
    REQUEST_KIND,
    VersionCodec,
    read_request_frame,
    version_codec,
)

logger = logging.getLogger(__name__)

# Above these limits another thread decodes or encodes, so that the event loop serves other
# connections meanwhile: it would take longer than some milliseconds. The limits are bytes of a
# request (records are not decoded), and topics, groups or resources in a response.
LOOP_REQUEST_SIZE_MAX = 16 * 1024
LOOP_ELEMENTS_MAX = 200


class _Served(NamedTuple):
    """One API in one version."""

    api: Api
    codec: VersionCodec


class _ServedVersions(dict[tuple[int, int], _Served | None]):
    """The APIs by key and version;

    None for versions that are not supported. Codecs are created on first use.
    """

    def __init__(self, apis: Mapping[int, Api]) -> None:
        super().__init__()
        self._apis = apis

    def __missing__(self, kind: tuple[int, int]) -> _Served | None:
        key, version = kind
        api = self._apis.get(key)
        if api is None or not api.versions.min <= version <= api.versions.max:
            # Not stored, since clients could fill the memory with versions that do not exist.
            return None
        served = self[kind] = _Served(api, version_codec(key, version))
        return served


class Dispatcher:
    """The `connection.FrameHandler` of a broker. Event loop thread only."""

    def __init__(
        self,
        services: BrokerServices,
        apis: Mapping[int, Api],
        *,
        quotas: ClientQuotaManager | None = None,
    ) -> None:
        self._services = services
        self._served = _ServedVersions(apis)
        declared = apis.get(ApiKey.API_VERSIONS)
        self._api_versions = None if declared is None else declared.versions
        self._quotas = quotas
        self.metrics = RequestMetrics({int(key): api_name(key) for key in apis})

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer | PendingAnswer:
        """Handle one request. Raises IsothermError if the connection must be closed."""
        try:
            kind = REQUEST_KIND.unpack_from(frame)
        except struct.error as error:
            raise ProtocolError(f"a request has no header size={len(frame)}") from error
        served = self._served[kind]
        if served is None:
            return _answer_unsupported(frame, kind, self._api_versions)
        api, codec = served
        has_quotas = self._quotas is not None and self._quotas.is_active
        if connection.repeated_requests is not None and not has_quotas:
            answer = self._repeat(api, kind, frame, connection.repeated_requests)
            if answer is not None:
                return answer
        header, body = read_request_frame(frame, is_flexible=codec.is_flexible)
        context = RequestContext(
            self._services,
            header,
            connection.client_address,
            connection.listener_name,
            self._services.clock.monotonic_s(),
            principal=connection.principal,
            connection=connection,
        )
        # A broker without quotas makes no meter: a request has a budget of
        # calls (docs/decisions/0136).
        meter = None
        if has_quotas:
            assert self._quotas is not None
            meter = RequestMeter(
                self._quotas, api, header, len(frame), connection, connection.principal.name
            )
            if meter.mutations is not None:
                context = context._replace(charge=meter.mutations.charge)
        exchange = _Exchange(served, context, meter, self.metrics, frame)
        if len(body) <= LOOP_REQUEST_SIZE_MAX or api.carries_records:
            return exchange.handle(codec.read_request(body))
        return exchange.handle_decoded(body)

    def _repeat(
        self, api: Api, kind: tuple[int, int], frame: memoryview, repeated: Any
    ) -> Answer | None:
        if api.repetition is None:
            return None
        now_s = self._services.clock.monotonic_s
        arrived_s = now_s()
        answer = api.repetition.repeat(self._services, kind, frame, repeated)
        if answer is not None:
            self.metrics.mark(*kind, (now_s() - arrived_s) * 1000)
        return answer


class _Exchange:
    """One request, from its decoding to its answer."""

    __slots__ = ("_api", "_codec", "_context", "_frame", "_meter", "_metrics")

    def __init__(
        self,
        served: _Served,
        context: RequestContext,
        meter: RequestMeter | None,
        metrics: RequestMetrics,
        frame: memoryview,
    ) -> None:
        self._api, self._codec = served
        self._frame = frame
        self._context = context
        self._meter = meter
        self._metrics = metrics

    def handle_decoded(self, body: memoryview) -> PendingAnswer:
        """Decode the body in another thread, then `handle` the request."""
        loop = asyncio.get_running_loop()
        decoding = loop.run_in_executor(None, self._codec.read_request, body)
        self._context = self._context._replace(is_large=True)
        return PendingAnswer(decoding, lambda: self.handle(decoding.result()))

    def handle(self, request: Any) -> Answer | PendingAnswer:
        api = self._api
        if self._meter is not None:
            request = self._meter.bounded(request)
        # Most requests have one topic, and cost no call (docs/decisions/0136).
        if (
            api.carries_records
            and (len(request.topics) != 1 or len(request.topics[0].partitions) > PART_SIZE)
            and has_many_partitions(request)
        ):
            self._context = self._context._replace(is_large=True)
        context = self._context
        respond: Callable[[], Any] = partial(api.handle, context, request)
        if context.is_large and (split := find_split(api.items, request)) is not None:
            respond = partial(_handle_parts, context, request, api.handle, split)
        return self._respond(request, respond)

    def _respond(self, request: Any, respond: Callable[[], Any]) -> Answer | PendingAnswer:
        """Call `respond` and encode its response, or the answer to its error."""
        try:
            response = respond() if self._meter is None else self._meter.timed(respond)
            # Cheaper than isinstance(response, Awaitable), which every request would pay for.
            if not hasattr(response, "__await__"):
                if self._api.repetition is not None and self._meter is None:
                    self._api.repetition.remember(self._context, self._frame, request, response)
                return self._encode(response)
            if isinstance(response, LaterResponse):
                return PendingAnswer(
                    response.future,
                    partial(self._respond, request, response.respond),
                    is_done_but_for_answer=response.is_done_but_for_answer,
                )
            # The connection keeps the future and cancels it if the client disconnects, except for
            # produce requests: a client with acks=0 may disconnect right after it has sent its
            # records.
            future = asyncio.ensure_future(response)
            return PendingAnswer(
                future,
                lambda: self._respond(request, future.result),
                outlives_client=self._api.carries_records,
            )
        except HangUpError:
            raise
        except Exception as error:  # noqa: BLE001 - the request boundary
            return self._refuse(request, error)

    def _refuse(self, request: Any, error: Exception) -> Answer | PendingAnswer:
        context = self._context
        if not isinstance(error, IsothermError):
            header = context.header
            logger.error(
                "request failed api_key=%d api_version=%d client_id=%s client=%s",
                header.api_key,
                header.api_version,
                header.client_id,
                context.client_address,
                exc_info=error,
            )
        return self._encode(self._api.refuse(context, request, error_code(error)))

    def _encode(self, response: Any) -> Answer | PendingAnswer:
        if self._meter is not None:
            response = self._meter.throttled(response)
        if response is None:
            return self._finished(())
        write, correlation_id = self._codec.write_response, self._context.header.correlation_id
        # Fetch and Produce responses are tuples. They are as large as their requests, which
        # `is_large` shows.
        if self._context.is_large or (not isinstance(response, tuple) and _is_large(response)):
            loop = asyncio.get_running_loop()
            encoding = loop.run_in_executor(None, write, correlation_id, response)
            return PendingAnswer(encoding, lambda: self._finished(encoding.result()))
        return self._finished(write(correlation_id, response))

    def _finished(self, answer: Answer) -> Answer:
        context = self._context
        header = context.header
        total_s = context.services.clock.monotonic_s() - context.arrived_s
        self._metrics.mark(header.api_key, header.api_version, total_s * 1000)
        return answer


async def _handle_parts(
    context: RequestContext, request: Any, handle: Handler, split: Split
) -> Any:
    joined = JoinedResponse(split)
    for part in split_request(request, split):
        response = handle(context, part.request)
        if isinstance(response, Awaitable):
            response = await response
        if not joined.add(response, part.continued):
            break
        # Other connections are served between two parts (docs/decisions/0021).
        await next_turn()
    return joined.response


def _is_large(response: Any) -> bool:
    """Whether encoding would take long, judged by the number of items in the response."""
    return any(
        len(value) > LOOP_ELEMENTS_MAX
        for name in response.__dataclass_fields__
        if type(value := getattr(response, name)) is tuple
    )


def _answer_unsupported(
    frame: memoryview, kind: tuple[int, int], api_versions: VersionRange | None
) -> Answer:
    """`api_versions` are the served versions of ApiVersions, which alone are in the answer, as in
    Kafka: the client then asks again."""
    api_key, api_version = kind
    asks_for_versions = api_key == ApiKey.API_VERSIONS
    is_flexible = asks_for_versions and api_version >= FIRST_FLEXIBLE_API_VERSIONS
    header, _ = read_request_frame(frame, is_flexible=is_flexible)
    if not asks_for_versions or api_versions is None:
        raise UnsupportedVersionError(
            f"version is not supported api_key={api_key} api_version={api_version}"
            f" client_id={header.client_id}"
        )
    row = {"api_key": api_key, "min_version": api_versions.min, "max_version": api_versions.max}
    response = entity_of(
        response_class(ApiKey.API_VERSIONS, 0),
        {"error_code": ErrorCode.unsupported_version, "api_keys": [row]},
    )
    return version_codec(api_key, 0).write_response(header.correlation_id, response)
