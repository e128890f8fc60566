"""The SASL gate before a connection's requests: which requests pass, how long a session is, how a
failure ends.

The exchange is a model whose tokens say what happens. The time is simulated.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.principal import USER, Principal
from isotherm.broker.server.authentication.sasl_gate import SaslGate, SaslSettings
from isotherm.broker.server.net.connection import Answer, PendingAnswer
from isotherm.errors import IllegalSaslStateError, SaslAuthenticationError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.sim_clock import SimClock
from oracle.raw_requests import read_answer, request_frame

HOUR_MS = 3_600_000
SIZE_FIELD_SIZE = 4
# A request for the API versions, in a version that nobody serves.
UNSERVED_VERSION = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1)


class ModelExchange:
    """A SASL mechanism for tests. The token `more` asks for another token; `ok USER [MS]` succeeds
    with a credential that expires in so many ms; any other fails."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.user: str | None = None
        self.expires_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        words = token.decode().split()
        if words[0] == "more":
            return b"go on"
        if words[0] != "ok":
            raise SaslAuthenticationError("no")
        self.user = words[1]
        if len(words) > 2:
            self.expires_ms = self._clock.now_ms() + int(words[2])
        return b"done"


class ModelConnection:
    """A connection that keeps the principals of successful logins."""

    client_address = "here"
    listener_name = "CLIENTS"

    def __init__(self) -> None:
        self.principals: list[str] = []
        self.is_draining = False

    def authenticated(self, principal: Principal) -> None:
        assert principal.type == USER
        self.principals.append(principal.name)

    def drain(self) -> None:
        self.is_draining = True


class ModelRequests:
    def handle_frame(self, frame: memoryview, connection: Any) -> Answer:
        if frame[:4] == UNSERVED_VERSION[:4]:
            return (struct.pack(">iih", 6, 7, ErrorCode.unsupported_version),)
        return (b"answered",)


class ModelLoop:
    """An event loop whose timers fire when the test calls them."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self._loop = asyncio.new_event_loop()

    def create_future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def call_later(self, delay_s: float, end: Callable[[], None]) -> None:
        self.timers.append((delay_s, end))

    def close(self) -> None:
        self._loop.close()


class Client:
    """A client of one gate. Its requests and answers are encoded as on the wire."""

    def __init__(self, clock: SimClock, loop: ModelLoop, max_reauth_ms: int = 0) -> None:
        self.connection = ModelConnection()
        settings = SaslSettings(
            mechanisms={"MODEL": lambda: ModelExchange(clock)},
            max_receive_size=1000,
            max_reauth_ms=max_reauth_ms,
            failure_delay_ms=100,
        )
        gate: Any = SaslGate
        self._gate = gate(settings, ModelRequests(), clock, loop)

    def send(self, api: ApiKey, version: int, **fields: Any) -> Any:
        """Send a request. Returns the decoded response, the bytes of a request that passed the
        gate, or the pending answer."""
        frame = memoryview(request_frame(api, version, fields))
        answer = self._gate.handle_frame(frame, self.connection)
        return answer if isinstance(answer, PendingAnswer) else read(api, version, answer)

    def raw(self, token: bytes) -> Any:
        return self._gate.handle_frame(memoryview(token), self.connection)

    def log_in(self, token: str, version: int = 2) -> int:
        """Log in. Returns the length of the session in ms."""
        self.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="MODEL")
        response = self.send(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=token.encode().hex())
        assert response.auth_bytes == b"done"
        if version == 0:
            return 0
        return round(response.session_lifetime.total_seconds() * 1000)

    def ask(self) -> Any:
        return self.send(ApiKey.METADATA, 1)


def read(api: ApiKey, version: int, answer: Answer) -> Any:
    data = b"".join(map(bytes, answer))
    return data if data == b"answered" else read_answer(api, version, data[SIZE_FIELD_SIZE:])


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def loop() -> Any:
    made = ModelLoop()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("token", "max_reauth_ms", "life_ms"),
    [
        ("ok alice", 0, 0),
        ("ok alice", 5000, 5000),
        ("ok alice 3000", 0, 3000),
        ("ok alice 3000", 5000, 3000),
        ("ok alice 7000", 5000, 5000),
    ],
)
def test_session_is_as_long_as_the_shorter_of_both(
    clock: SimClock, loop: ModelLoop, token: str, max_reauth_ms: int, life_ms: int
) -> None:
    client = Client(clock, loop, max_reauth_ms)
    assert client.log_in(token) == life_ms
    clock.advance(life_ms or HOUR_MS)
    assert client.ask() == b"answered"
    if life_ms:
        clock.advance(1)
        with pytest.raises(IllegalSaslStateError, match="session has ended"):
            client.ask()


def test_session_ends_for_a_client_that_cannot_know_as_well(
    clock: SimClock, loop: ModelLoop
) -> None:
    client = Client(clock, loop)
    assert client.log_in("ok alice 3000", version=0) == 0
    clock.advance(3001)
    with pytest.raises(IllegalSaslStateError):
        client.ask()


def test_login_of_a_credential_that_has_just_ended_allows_nothing(
    clock: SimClock, loop: ModelLoop
) -> None:
    """Kafka accepts a token that expired within the allowed clock skew, with a session of length
    0."""
    client = Client(clock, loop)
    assert client.log_in("ok alice -5000") == 0
    clock.advance(1)
    with pytest.raises(IllegalSaslStateError):
        client.ask()


def test_session_is_prolonged_by_the_same_user_alone(clock: SimClock, loop: ModelLoop) -> None:
    client = Client(clock, loop)
    client.log_in("ok alice 3000")
    clock.advance(2000)
    assert client.log_in("ok alice 3000") == 3000
    clock.advance(2500)
    assert client.ask() == b"answered"
    client.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="MODEL")
    other = client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"ok bob 3000".hex())
    assert isinstance(other, PendingAnswer)
    assert client.connection.principals == ["alice", "alice"]


def test_requests_in_the_middle_of_an_exchange_close_the_connection(
    clock: SimClock, loop: ModelLoop
) -> None:
    for api, version in (
        (ApiKey.METADATA, 1),
        (ApiKey.API_VERSIONS, 0),
        (ApiKey.SASL_HANDSHAKE, 1),
    ):
        client = Client(clock, loop)
        client.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="MODEL")
        again = client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"more".hex())
        assert again.auth_bytes == b"go on"
        with pytest.raises(IllegalSaslStateError):
            client.send(api, version)
        assert client.connection.principals == []


def test_served_versions_are_told_once_before_a_login(clock: SimClock, loop: ModelLoop) -> None:
    """A client that asks in a version which is not served is told so, and asks again."""
    client = Client(clock, loop)
    versions = request_frame(ApiKey.API_VERSIONS, 0, {})
    for _ in range(3):
        assert client.raw(UNSERVED_VERSION)[0].endswith(b"\0\x23")
    assert client.raw(versions) == (b"answered",)
    for again in (versions, UNSERVED_VERSION):
        with pytest.raises(IllegalSaslStateError):
            client.raw(again)
    client.log_in("ok alice")
    assert client.raw(versions) == client.raw(versions) == (b"answered",)


def test_failure_is_answered_late_and_closes_the_connection(
    clock: SimClock, loop: ModelLoop
) -> None:
    client = Client(clock, loop)
    client.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="MODEL")
    pending = client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"wrong".hex())
    ((delay_s, end),) = loop.timers
    assert delay_s == 0.1
    assert not pending.future.done()
    # Meanwhile another client is served: a failed login does not block the event loop.
    healthy = Client(clock, loop)
    healthy.log_in("ok bob")
    assert healthy.ask() == b"answered"
    assert not client.connection.is_draining
    end()
    assert pending.future.done()
    response = read(ApiKey.SASL_AUTHENTICATE, 2, pending.answer())
    assert (int(response.error_code), response.error_message) == (58, "no")
    assert client.connection.is_draining


def test_failure_in_raw_tokens_closes_the_connection_late(clock: SimClock, loop: ModelLoop) -> None:
    client = Client(clock, loop)
    client.send(ApiKey.SASL_HANDSHAKE, 0, mechanism="MODEL")
    pending = client.raw(b"wrong")
    assert isinstance(pending, PendingAnswer)
    assert not client.connection.is_draining
    loop.timers[0][1]()
    assert pending.answer() == ()
    assert client.connection.is_draining
