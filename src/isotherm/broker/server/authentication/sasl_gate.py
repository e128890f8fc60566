"""Admits a connection's requests only after its client has authenticated (KIP-43, 152, 368).

    [ApiVersions]  SaslHandshake  SaslAuthenticate...          then any request
                   SaslHandshake  token token ... (version 0)

Behaviour
- Until the exchange has succeeded, any other request, and any frame larger than
  sasl.server.max.receive.size, closes the connection.
- ApiVersions is answered once. If the answer is an error, such as that of a version which is not
  served, the client may ask again.
- An unknown mechanism is answered with UNSUPPORTED_SASL_MECHANISM and the enabled mechanisms.
- A failure is answered with SASL_AUTHENTICATION_FAILED after
  connection.failed.authentication.delay.ms, and the connection is closed. The delay slows down
  guessing, and a broken client that reconnects at once. It does not block the event loop.
- A session ends after connections.max.reauth.ms, or when its token expires. The client must
  authenticate again before, on the same connection, with the same mechanism and as the same user.
  Otherwise its next request closes the connection.

Source: Kafka SaslServerAuthenticator. Event loop thread only. Reasons: docs/decisions/0115.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.principal import USER, Principal
from isotherm.broker.server.net.connection import (
    SIZE_FIELD,
    Answer,
    Connection,
    FrameHandler,
    PendingAnswer,
)
from isotherm.clock import Clock
from isotherm.errors import IllegalSaslStateError, SaslAuthenticationError
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.entities import entity_of
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import REQUEST_KIND, RequestHeader, read_request_frame, version_codec
from isotherm.types import TimestampMs

logger = logging.getLogger(__name__)

_HANDSHAKE_VERSIONS = (0, 1)
_AUTHENTICATE_VERSIONS = (0, 2)
FIRST_SESSION_VERSION = 1


class SaslExchange(Protocol):
    """The server's side of one exchange: a state machine without I/O."""

    @property
    def user(self) -> str | None:
        """The user, once the exchange has succeeded."""

    @property
    def expires_ms(self) -> TimestampMs | None:
        """The wall-clock time at which the user's session ends; None if it does not end."""

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's next token.

        Raises SaslAuthenticationError, which ends the exchange. Its message goes to the client,
        which is not authenticated, so it must not reveal anything.
        """


NewExchange = Callable[[], SaslExchange]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """The SASL settings of one listener.

    `mechanisms` maps a name to the factory of its exchanges.
    """

    mechanisms: Mapping[str, NewExchange]
    max_receive_size: int
    max_reauth_ms: int
    failure_delay_ms: int


class Authenticated(Protocol):
    """The part of a connection that the gate changes."""

    def authenticated(self, principal: Principal) -> None: ...


class _State(enum.Enum):
    NEW = enum.auto()
    TOKENS = enum.auto()  # raw, after a handshake of version 0
    MESSAGES = enum.auto()
    OPEN = enum.auto()


class SaslGate:
    """The FrameHandler of one connection."""

    def __init__(
        self,
        settings: SaslSettings,
        requests: FrameHandler,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._clock = clock
        self._loop = loop
        self._state = _State.NEW
        self._has_told_versions = False
        self._exchange: SaslExchange
        self._mechanism = ""
        # Mechanism and principal of the session; a later exchange must have the same.
        self._established: tuple[str, Principal] | None = None
        self._lifetime_ms: int | None = None
        self._expires_s: float | None = None

    @property
    def frame_size_max(self) -> int:
        return self._settings.max_receive_size

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer | PendingAnswer:
        if self._state is _State.TOKENS:
            return self._take_raw_token(frame, connection)
        try:
            kind = REQUEST_KIND.unpack_from(frame)
        except struct.error as error:
            raise ProtocolError(f"a request has no header size={len(frame)}") from error
        key = kind[0]
        # In OPEN it begins a re-authentication, during which no other request is served (KIP-368).
        if key == ApiKey.SASL_HANDSHAKE and self._state is not _State.MESSAGES:
            return self._shake_hands(frame, kind, connection)
        if key == ApiKey.SASL_AUTHENTICATE and self._state is _State.MESSAGES:
            return self._take_message(frame, kind, connection)
        if self._state is _State.OPEN and key != ApiKey.SASL_AUTHENTICATE:
            if self._expires_s is not None and self._clock.monotonic_s() > self._expires_s:
                raise IllegalSaslStateError("the session has ended, and was not prolonged")
            return self._requests.handle_frame(frame, connection)
        # The only request besides the handshake: a client chooses its version of the handshake by
        # the answer.
        is_allowed = self._state is _State.NEW and not self._has_told_versions
        if key == ApiKey.API_VERSIONS and is_allowed:
            answer = self._requests.handle_frame(frame, connection)
            self._has_told_versions = isinstance(answer, PendingAnswer) or not _error_code(answer)
            return answer
        raise IllegalSaslStateError(f"a request comes before authentication api_key={key}")

    def _shake_hands(
        self, frame: memoryview, kind: tuple[int, int], connection: Connection
    ) -> Answer | PendingAnswer:
        header, request = _read(frame, kind, _HANDSHAKE_VERSIONS)
        enabled = tuple(self._settings.mechanisms)
        new_exchange = self._settings.mechanisms.get(request.mechanism)
        if new_exchange is None:
            logger.info(
                "SASL mechanism is not enabled client=%s listener=%s",
                connection.client_address,
                connection.listener_name,
            )
            fields = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": enabled}
            return self._close_later(_answer(header, fields), connection)
        self._mechanism, self._exchange = request.mechanism, new_exchange()
        if header.api_version == 0:
            if self._established is not None:
                raise IllegalSaslStateError("a session is prolonged by messages, not by tokens")
            self._state = _State.TOKENS
        else:
            self._state = _State.MESSAGES
        return _answer(header, {"error_code": ErrorCode.none, "mechanisms": enabled})

    def _take_raw_token(self, frame: memoryview, connection: Connection) -> Answer | PendingAnswer:
        try:
            token = self._respond(bytes(frame), connection)
        except SaslAuthenticationError as error:
            # A raw token has no room for an error message. The client only sees that the connection
            # closes.
            self._log_failure(connection, error)
            return self._close_later((), connection)
        return (SIZE_FIELD.pack(len(token)) + token,)

    def _take_message(
        self, frame: memoryview, kind: tuple[int, int], connection: Connection
    ) -> Answer | PendingAnswer:
        header, request = _read(frame, kind, _AUTHENTICATE_VERSIONS)
        try:
            token = self._respond(request.auth_bytes, connection)
        except SaslAuthenticationError as error:
            self._log_failure(connection, error)
            fields = {
                "error_code": ErrorCode.sasl_authentication_failed,
                "error_message": str(error),
                "auth_bytes": b"",
            }
            return self._close_later(_answer(header, fields), connection)
        # 0 means that the client need not re-authenticate (KIP-368).
        lifetime_ms = 0
        if self._state is _State.OPEN and header.api_version >= FIRST_SESSION_VERSION:
            lifetime_ms = self._lifetime_ms or 0
        return _answer(
            header,
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "auth_bytes": token,
                "session_lifetime": datetime.timedelta(milliseconds=lifetime_ms),
            },
        )

    def _respond(self, token: bytes, connection: Authenticated) -> bytes:
        answer = self._exchange.respond(token)
        if self._exchange.user is not None:
            self._open(Principal(USER, self._exchange.user), connection)
        return answer

    def _open(self, principal: Principal, connection: Authenticated) -> None:
        session = (self._mechanism, principal)
        if self._established not in (None, session):
            raise SaslAuthenticationError(
                "Cannot change principals or mechanisms during re-authentication"
            )
        self._established = session
        self._state = _State.OPEN
        self._lifetime_ms = self._new_lifetime_ms()
        if self._lifetime_ms is not None:
            self._expires_s = self._clock.monotonic_s() + self._lifetime_ms / 1000
        connection.authenticated(principal)

    def _new_lifetime_ms(self) -> int | None:
        """The lifetime of the session that begins now: bounded by the credential's validity and by
        the configuration."""
        bounds = []
        if self._settings.max_reauth_ms > 0:
            bounds.append(self._settings.max_reauth_ms)
        if self._exchange.expires_ms is not None:
            bounds.append(max(self._exchange.expires_ms - self._clock.now_ms(), 0))
        return min(bounds, default=None)

    def _log_failure(self, connection: Connection, error: SaslAuthenticationError) -> None:
        logger.info(
            "authentication failed client=%s listener=%s mechanism=%s reason='%s'",
            connection.client_address,
            connection.listener_name,
            self._mechanism,
            error,
        )

    def _close_later(self, answer: Answer, connection: Connection) -> PendingAnswer:
        """Send the answer after the delay, then close the connection."""
        delayed = self._loop.create_future()

        def end() -> None:
            if not delayed.done():
                delayed.set_result(None)

        self._loop.call_later(self._settings.failure_delay_ms / 1000, end)

        def last_answer() -> Answer:
            # Before the answer is sent, so that the connection closes behind it.
            connection.drain()
            return answer

        # It lets no later request begin, so no token is tried during the delay.
        return PendingAnswer(delayed, last_answer)


def _error_code(answer: Answer) -> int:
    """That of an answer which begins with it, behind its size and correlation id."""
    return int.from_bytes(b"".join(answer)[8:10], "big")


def _read(
    frame: memoryview, kind: tuple[int, int], versions: tuple[int, int]
) -> tuple[RequestHeader, Any]:
    if not versions[0] <= kind[1] <= versions[1]:
        raise ProtocolError(f"version is not supported api_key={kind[0]} api_version={kind[1]}")
    codec = version_codec(*kind)
    header, body = read_request_frame(frame, is_flexible=codec.is_flexible)
    return header, codec.read_request(body)


def _answer(header: RequestHeader, fields: Mapping[str, Any]) -> Answer:
    response = entity_of(response_class(header.api_key, header.api_version), fields)
    codec = version_codec(header.api_key, header.api_version)
    return codec.write_response(header.correlation_id, response)
