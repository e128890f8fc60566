"""Headers that librdkafka's client cannot give are fetched once more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from isotherm.client.record_headers import HeaderReader
from isotherm.errors import RejectedError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.testing.sim_clock import SimClock
from tests.support.raw_header_names import RawName
from tests.support.scripted_peer import ScriptedPeer


class Message:
    """A message of confluent-kafka whose headers the client cannot give, or can."""

    def __init__(self, offset: int, headers: list[tuple[str, bytes | None]] | None = None) -> None:
        self._offset, self._headers = offset, headers

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def set_headers(self, headers: list[tuple[str, bytes | None]]) -> None:
        self._headers = headers

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        if self._headers is None:
            raise SystemError("returned a result with an exception set")
        return self._headers or None


@pytest.fixture
def peer() -> Iterator[ScriptedPeer]:
    """A broker with two batches: of the offsets 3 to 5, and 6."""
    odd = (RawName(b"h\xff\xfe"), b"1"), ("ok", None)
    data = build_batch([NewRecord(1, None, b"v", odd)] * 3, base_offset=3)
    data += build_batch([NewRecord(1, None, b"w", odd[:1])], base_offset=6)

    def answer(request: Any) -> dict[str, Any]:
        if not hasattr(request, "max_wait"):
            partition = {"partition_index": 0, "leader_id": 7}
            node = {"node_id": 7, "host": running.address.host, "port": running.address.port}
            return {"brokers": [node], "topics": [{"name": "a", "partitions": [partition]}]}
        partition = {"preferred_read_replica": -1, "records": memoryview(data)}
        return {"responses": [{"topic": "a", "partitions": [partition]}]}

    running = ScriptedPeer(answer)
    yield running
    running.stop()


def reader(peer: ScriptedPeer, **more: str) -> HeaderReader:
    return HeaderReader(
        {"bootstrap.servers": f"{peer.address.host}:{peer.address.port}", **more}, SimClock()
    )


def test_name_that_is_not_utf8_gets_replacement_characters(peer: ScriptedPeer) -> None:
    headers = reader(peer)
    replaced = (("h\ufffd\ufffd", b"1"), ("ok", None))
    assert headers.headers_of(Message(4)) == replaced
    assert headers.headers_of(Message(6)) == replaced[:1]


def test_names_of_one_batch_are_fetched_once(peer: ScriptedPeer) -> None:
    headers = reader(peer)
    for offset in (3, 4, 5):
        assert headers.headers_of(Message(offset))
    assert len([request for request in peer.requests if hasattr(request, "max_wait")]) == 1


def test_headers_that_the_client_gives_are_not_fetched(peer: ScriptedPeer) -> None:
    headers = reader(peer)
    assert headers.headers_of(Message(4, [("a", b"1")])) == [("a", b"1")]
    assert headers.headers_of(Message(4, [])) == ()
    assert peer.requests == []


def test_login_that_only_librdkafka_has_names_the_record(peer: ScriptedPeer) -> None:
    kerberos = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(RejectedError, match="not UTF-8 partition=a-0 offset=4"):
        reader(peer, **kerberos).headers_of(Message(4))
