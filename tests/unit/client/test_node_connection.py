"""Requests and responses over real loopback sockets. The test plays the other side."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.errors import ErrorCode

from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import PLAINTEXT, Login, NodeSecurity
from isotherm.clock import Clock
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError, SaslAuthenticationError
from isotherm.protocol.api_keys import response_class
from isotherm.protocol.entities import blank_entity
from isotherm.protocol.framing import read_request_frame, version_codec
from isotherm.testing.local_servers import free_ports
from isotherm.testing.sim_clock import SimClock
from tests.support.scripted_peer import ScriptedPeer

REQUEST = DescribeClusterRequest(
    include_cluster_authorized_operations=False, endpoint_type=2, include_fenced_brokers=True
)
# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0


class Peer:
    """Accepts one connection after the other, and answers each frame with the bytes that `answer`
    returns. If it returns None, the peer closes the connection."""

    def __init__(self, answer: Callable[[memoryview], bytes | None]) -> None:
        self.frames: list[bytes] = []
        self.connections = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = NodeAddress(*self._listener.getsockname())
        self._open: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._open, _ = self._listener.accept()
                self.connections += 1
                with self._open as connection, contextlib.suppress(OSError):
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with stream:
            while head := stream.read(4):
                frame = stream.read(*struct.unpack(">i", head))
                self.frames.append(frame)
                answer = self._answer(memoryview(frame))
                if answer is None:
                    return
                connection.sendall(answer)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def start_peer() -> Iterator[Callable[..., Peer]]:
    started: list[Peer] = []

    def start(answer: Callable[[memoryview], bytes | None]) -> Peer:
        started.append(Peer(answer))
        return started[-1]

    yield start
    for peer in started:
        peer.stop()


def cluster_answer(frame: memoryview, **fields: object) -> bytes:
    header, _ = read_request_frame(frame, is_flexible=True)
    response = blank_entity(
        response_class(header.api_key, header.api_version),
        {"cluster_id": "c", "controller_id": 3, **fields},
    )
    codec = version_codec(header.api_key, header.api_version)
    return b"".join(codec.write_response(header.correlation_id, response))


@contextlib.contextmanager
def connected(
    address: NodeAddress,
    *,
    request_timeout_s: float = PATIENT_S,
    response_bytes_max: int = 1 << 20,
    security: NodeSecurity = PLAINTEXT,
    clock: Clock | None = None,
) -> Iterator[NodeConnection]:
    connection = NodeConnection(
        address,
        client_id="broker-1-test",
        connect_timeout_s=PATIENT_S,
        request_timeout_s=request_timeout_s,
        response_bytes_max=response_bytes_max,
        security=security,
        clock=clock,
    )
    try:
        yield connection
    finally:
        connection.close()


def test_request_arrives_as_sent_and_its_response_comes_back(start_peer):
    peer = start_peer(cluster_answer)
    with connected(peer.address) as connection:
        first, second = connection.send(REQUEST), connection.send(REQUEST)
    assert first == second
    assert (first.cluster_id, first.controller_id) == ("c", 3)
    assert peer.connections == 1
    header, body = read_request_frame(memoryview(peer.frames[1]), is_flexible=True)
    assert (header.api_key, header.api_version, header.client_id) == (60, 2, "broker-1-test")
    assert version_codec(60, 2).read_request(body) == REQUEST


def test_response_to_api_versions_has_the_old_header(start_peer):
    peer = start_peer(cluster_answer)
    request = ApiVersionsRequest(client_software_name="i", client_software_version="1")
    with connected(peer.address) as connection:
        assert connection.send(request).error_code == ErrorCode.none


def test_next_request_connects_again_after_the_peer_hung_up(start_peer):
    answers = iter([None, cluster_answer])
    peer = start_peer(lambda frame: (answer := next(answers)) and answer(frame))
    with connected(peer.address) as connection:
        with pytest.raises(PeerDisconnectedError, match=f"peer=127.0.0.1:{peer.address.port}"):
            connection.send(REQUEST)
        assert connection.send(REQUEST).controller_id == 3
    assert peer.connections == 2


def test_refused_connection_is_reported_with_its_reason():
    address = NodeAddress("127.0.0.1", *free_ports(1))
    with (
        connected(address) as connection,
        pytest.raises(PeerDisconnectedError, match="Connection refused"),
    ):
        connection.send(REQUEST)


def test_unknown_host_is_reported_with_its_reason():
    with (
        connected(NodeAddress("no-such-host.invalid", 9)) as connection,
        pytest.raises(PeerDisconnectedError, match=r"no-such-host\.invalid:9 reason="),
    ):
        connection.send(REQUEST)


def test_silent_peer_times_out_and_its_late_answer_is_dropped(start_peer):
    is_late = threading.Event()

    def answer(frame: memoryview) -> bytes:
        if peer.connections == 1:
            is_late.wait()
        return cluster_answer(frame, controller_id=peer.connections)

    peer = start_peer(answer)
    with connected(peer.address, request_timeout_s=0.2) as connection:
        with pytest.raises(PeerTimeoutError, match="api=DescribeCluster"):
            connection.send(REQUEST)
        is_late.set()
    with connected(peer.address) as connection:
        assert connection.send(REQUEST).controller_id == 2


def of_another_request(frame: memoryview) -> bytes:
    answer = bytearray(cluster_answer(frame))
    answer[7] ^= 1
    return bytes(answer)


def malformed(frame: memoryview) -> bytes:
    answer = cluster_answer(frame)[4:12]
    return struct.pack(">i", len(answer)) + answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(lambda _: struct.pack(">i", 2**31 - 1), "invalid size", id="huge"),
        pytest.param(lambda _: struct.pack(">i", -1), "invalid size", id="negative"),
        pytest.param(of_another_request, "it answers request 1, not 0", id="other request"),
        pytest.param(malformed, "malformed: DescribeCluster", id="malformed"),
        pytest.param(
            lambda _: struct.pack(">ii", 4, 0), "malformed: header", id="without a header"
        ),
    ],
)
def test_response_that_cannot_be_understood_ends_the_connection(start_peer, answer, reason):
    answers = iter([answer, cluster_answer])
    peer = start_peer(lambda frame: next(answers)(frame))
    with connected(peer.address) as connection:
        with pytest.raises(PeerDisconnectedError, match=reason):
            connection.send(REQUEST)
        assert connection.send(REQUEST).controller_id == 3
    assert peer.connections == 2


def test_close_ends_a_request_that_waits_and_all_later_ones(start_peer):
    has_request, is_over = threading.Event(), threading.Event()

    def answer(_frame: memoryview) -> None:
        has_request.set()
        is_over.wait()

    peer = start_peer(answer)
    with ThreadPoolExecutor(1) as executor, connected(peer.address) as connection:
        waiting = executor.submit(connection.send, REQUEST)
        has_request.wait()
        connection.close()
        with pytest.raises(PeerDisconnectedError):
            waiting.result(PATIENT_S)
        with pytest.raises(PeerDisconnectedError, match="this side has closed it"):
            connection.send(REQUEST)
        is_over.set()
    assert peer.connections == 1


def test_interrupt_ends_a_request_that_waits_and_the_next_one_is_answered(start_peer):
    has_request, is_over = threading.Event(), threading.Event()

    def answer(frame: memoryview) -> bytes | None:
        if has_request.is_set():
            return cluster_answer(frame)
        has_request.set()
        is_over.wait()
        return None

    peer = start_peer(answer)
    with ThreadPoolExecutor(1) as executor, connected(peer.address) as connection:
        assert not connection.interrupt()
        waiting = executor.submit(connection.send, REQUEST)
        has_request.wait()
        assert connection.interrupt()
        with pytest.raises(PeerDisconnectedError):
            waiting.result(PATIENT_S)
        is_over.set()
        assert connection.send(REQUEST).controller_id == 3
        assert not connection.interrupt()
        assert connection.send(REQUEST).controller_id == 3
    assert peer.connections == 2


def test_interrupt_leaves_a_response_that_has_begun_to_arrive(start_peer):
    begins, is_tried = threading.Event(), threading.Event()
    tried = []

    class Recording(NodeConnection):
        def _read(self, stream, sent, buffer):
            first = memoryview(bytearray(1))
            stream.recv_into(first)
            begins.set()
            is_tried.wait()
            tried.append(first[0])
            raise OSError("the rest is not read")

    peer = start_peer(cluster_answer)
    connection = Recording(
        peer.address,
        client_id="broker-1-test",
        connect_timeout_s=PATIENT_S,
        request_timeout_s=PATIENT_S,
        response_bytes_max=1 << 20,
    )
    with ThreadPoolExecutor(1) as executor, contextlib.closing(connection):
        waiting = executor.submit(connection.send, REQUEST)
        begins.wait()
        assert not connection.interrupt()
        is_tried.set()
        with pytest.raises(PeerDisconnectedError, match="the rest is not read"):
            waiting.result(PATIENT_S)
    assert tried == [0]


def test_started_request_is_answered_while_its_sender_does_other_work(start_peer):
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(frame: memoryview) -> bytes:
        is_asked.set()
        may_answer.wait()
        return cluster_answer(frame)

    peer = start_peer(answer)
    with connected(peer.address) as connection:
        connection.start(REQUEST)
        assert is_asked.wait(PATIENT_S)
        may_answer.set()
        assert connection.finish().controller_id == 3
        assert connection.send(REQUEST).controller_id == 3
    assert peer.connections == 1


def test_started_request_fails_once_this_side_closes(start_peer):
    peer = start_peer(cluster_answer)
    with connected(peer.address) as connection:
        connection.start(REQUEST)
        connection.close()
        with pytest.raises(PeerDisconnectedError, match="this side has closed it"):
            connection.finish()


def test_started_request_fails_with_its_connection_and_the_next_opens_another(start_peer):
    answers = iter([None, cluster_answer])
    peer = start_peer(lambda frame: (answer := next(answers)) and answer(frame))
    with connected(peer.address) as connection:
        connection.start(REQUEST)
        with pytest.raises(
            PeerDisconnectedError, match=r"reason='(it was closed|Connection reset)"
        ):
            connection.finish()
        assert connection.send(REQUEST).controller_id == 3
    assert peer.connections == 2


def test_bytes_that_keep_coming_exceed_a_sent_requests_time_but_not_a_started_ones(start_peer):
    clock = SimClock()

    def answer(frame: memoryview) -> bytes:
        clock.advance(round(PATIENT_S + 1) * 1000)
        return cluster_answer(frame)

    peer = start_peer(answer)
    with connected(peer.address, clock=clock) as connection:
        connection.start(REQUEST)
        assert connection.finish().controller_id == 3
        with pytest.raises(PeerTimeoutError, match="api=DescribeCluster"):
            connection.send(REQUEST)


def test_refused_login_is_a_lost_connection_to_a_request_and_itself_to_open():
    def answer(request: Any) -> dict[str, Any]:
        return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ["PLAIN"]}

    peer = ScriptedPeer(answer)
    security = NodeSecurity(login=Login("SCRAM-SHA-256", "ana", "secret"))
    try:
        with connected(peer.address, security=security) as connection:
            with pytest.raises(PeerDisconnectedError, match="offered=PLAIN"):
                connection.send(REQUEST)
            with pytest.raises(SaslAuthenticationError, match="offered=PLAIN"):
                connection.open()
    finally:
        peer.stop()


def test_address_of_ipv6_has_brackets():
    assert str(NodeAddress("::1", 9092)) == "[::1]:9092"
