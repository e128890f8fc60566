"""Raw bytes of broken or hostile clients at a broker's port harm no other client."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.record.batch import build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker

TIMEOUT_S = 300
_numbers = itertools.count()


class RawClient:
    """Sends raw bytes; reads one frame at a time."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        _, host, port = broker.node.endpoints[0]
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._file = self.socket.makefile("rb")

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def receive(self) -> bytes:
        """The next frame without its correlation id;

        EOFError if the broker has closed the connection.
        """
        try:
            head = self._file.read(4)
        except ConnectionError:
            head = b""
        if len(head) < 4:
            raise EOFError
        return self._file.read(*struct.unpack(">i", head))

    def is_hung_up_on(self) -> bool:
        try:
            self.receive()
        except EOFError:
            return True
        return False

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with contextlib.closing(RawClient(broker)) as made:
        yield made


@pytest.fixture
def healthy(broker: EmbeddedBroker) -> Iterator[RawClient]:
    """A connection that must still be served at the end of the test."""
    with contextlib.closing(RawClient(broker)) as made:
        made.send(request(18, 0))
        made.receive()
        yield made
        made.send(request(18, 0, correlation_id=9))
        assert made.receive()[:6] == struct.pack(">ih", 9, 0)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"raw-{next(_numbers)}"
    services = broker.node.services
    new = NewTopic(name=name, num_partitions=1, configs={"retention.ms": "-1"})
    (created,) = services.control_executor.submit(
        lambda: services.controller.create_topics([new])
    ).result()
    assert created.error is None
    return name


def request(api_key: int, version: int, body: bytes = b"", correlation_id: int = 1) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, 3) + b"raw" + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def produce(
    topic: str, records: bytes, *, acks: int = -1, partition: int = 0, correlation_id: int = 1
) -> bytes:
    body = struct.pack(">hhii", -1, acks, 1000, 1) + string(topic)
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return request(0, 3, body, correlation_id)


def produce_error(answer: bytes, topic: str) -> int:
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    return int(code)


def fetch(topic: str, offset: int, *, max_wait_ms: int = 0, correlation_id: int = 1) -> bytes:
    body = struct.pack(">iiiibi", -1, max_wait_ms, 1, 1 << 20, 0, 1) + string(topic)
    return request(1, 4, body + struct.pack(">iiqi", 1, 0, offset, 1 << 20), correlation_id)


def batch(*values: bytes) -> bytes:
    return bytes(build_batch([(1_700_000_000_000, None, value, ()) for value in values]))


def log_end(broker: EmbeddedBroker, topic: str) -> int:
    return broker.node.services.replica_manager.find_partition(topic, None, 0).log.log_end_offset


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS hello
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        struct.pack(">i", 100 * 1024 * 1024 + 1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 300) + bytes(300),
        struct.pack(">i", 9) + b"\xff" * 9,
    ],
)
def test_garbage_closes_that_connection_only(
    client: RawClient, healthy: RawClient, garbage: bytes
) -> None:
    client.socket.sendall(garbage)
    assert client.is_hung_up_on()


def test_random_requests_of_every_api_do_no_harm(
    broker: EmbeddedBroker, healthy: RawClient
) -> None:
    rng = random.Random(1)
    for api_key, version in itertools.product((0, 1, 2, 3, 10, 18, 19, 20, 22, 32, 77), range(14)):
        with contextlib.closing(RawClient(broker)) as client:
            client.send(request(api_key, version, rng.randbytes(rng.randrange(60))))
            client.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(EOFError):
                client.receive()


def test_truncated_frame_and_silence_leave_the_others_served(
    client: RawClient, healthy: RawClient
) -> None:
    client.socket.sendall(struct.pack(">i", 1000) + bytes(500))


def test_requests_before_garbage_are_answered(client: RawClient, topic: str) -> None:
    client.send(produce(topic, batch(b"a")))
    client.socket.sendall(b"\xff" * 8)
    assert produce_error(client.receive(), topic) == 0
    assert client.is_hung_up_on()


def test_pipelined_requests_are_answered_in_order_around_a_long_poll(
    broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    client.send(
        request(18, 0, correlation_id=10),
        fetch(topic, 0, max_wait_ms=20_000, correlation_id=11),
        request(18, 0, correlation_id=12),
    )
    assert client.receive()[:4] == struct.pack(">i", 10)
    with contextlib.closing(RawClient(broker)) as other:
        other.send(produce(topic, batch(b"woken")))
        assert produce_error(other.receive(), topic) == 0
    assert [client.receive()[:4] for _ in range(2)] == [
        struct.pack(">i", 11),
        struct.pack(">i", 12),
    ]


def test_client_that_leaves_during_a_long_poll_is_forgotten(
    broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    purgatory = broker.node.services.replica_manager.purgatory
    client.send(request(18, 0), fetch(topic, 0, max_wait_ms=600_000))
    client.receive()
    while len(purgatory) == 0:
        pass
    client.close()
    while len(purgatory) > 0:
        pass


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda records: records[:-1] + bytes([records[-1] ^ 1]), ErrorCode.corrupt_message),
        (lambda records: records[:-1], ErrorCode.invalid_record),
        (lambda records: records[:20], ErrorCode.invalid_record),
        (lambda records: records[:16] + b"\0" + records[17:], ErrorCode.invalid_record),
        (lambda records: records[:16] + b"\1" + records[17:], ErrorCode.invalid_record),
        (
            lambda records: records[:8] + b"\xff\xff\xff\xff" + records[12:],
            ErrorCode.corrupt_message,
        ),
    ],
)
def test_corrupt_batch_is_refused_and_the_connection_stays(
    broker: EmbeddedBroker, client: RawClient, topic: str, damage: Any, code: ErrorCode
) -> None:
    client.send(produce(topic, damage(batch(b"abc"))))
    assert produce_error(client.receive(), topic) == code
    assert log_end(broker, topic) == 0
    client.send(produce(topic, batch(b"abc")))
    assert produce_error(client.receive(), topic) == 0
    assert log_end(broker, topic) == 1


def test_acks_0_error_closes_the_connection(client: RawClient, topic: str) -> None:
    client.send(produce(topic, batch(b"a"), acks=0, partition=5))
    assert client.is_hung_up_on()


def test_unknown_version_of_api_versions_gets_the_known_ones(client: RawClient) -> None:
    client.send(request(18, 77, b"\0"))
    assert struct.unpack_from(">ih", client.receive()) == (1, ErrorCode.unsupported_version)


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (3, 99), (4242, 0)])
def test_other_unserved_versions_close_the_connection(
    client: RawClient, healthy: RawClient, api_key: int, version: int
) -> None:
    client.send(request(api_key, version))
    assert client.is_hung_up_on()


def test_announced_frames_that_never_come_cost_no_memory(
    broker: EmbeddedBroker, healthy: RawClient
) -> None:
    """Two announced frames use up queued.max.request.bytes; the memory for them is not touched."""
    resident_before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as clients:
        for _ in range(2):
            client = clients.enter_context(contextlib.closing(RawClient(broker)))
            client.socket.sendall(struct.pack(">i", 100 * 1024 * 1024) + bytes(100))
        healthy.send(request(18, 0))
        healthy.receive()
        assert psutil.Process().memory_info().rss - resident_before < 32 * 1024 * 1024


def test_slow_reader_of_large_answers_bounds_what_the_broker_holds(
    broker: EmbeddedBroker, client: RawClient, healthy: RawClient, topic: str
) -> None:
    with contextlib.closing(RawClient(broker)) as other:
        for _ in range(8):
            other.send(produce(topic, batch(bytes(1_000_000))))
            assert produce_error(other.receive(), topic) == 0
    resident_before = psutil.Process().memory_info().rss
    client.send(
        *[fetch(topic, 0) for _ in range(500)]
    )  # 500 MB of answers, which the client does not read
    for _ in range(20):
        healthy.send(request(18, 0))
        healthy.receive()
    assert psutil.Process().memory_info().rss - resident_before < 160 * 1024 * 1024
