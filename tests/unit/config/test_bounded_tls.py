"""Messages of TLS that bring no data do not keep a server busy, and do not fill its memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from isotherm.config.bounded_tls import (
    OVERHEAD_SIZE_MAX,
    BoundedTlsContext,
    BoundedTlsObject,
)
from tests.support.certificates import issue
from tests.support.tls_records import (
    APPLICATION_DATA,
    HANDSHAKE,
    RecordingClient,
    Tls13Records,
)

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


class Server:
    """A server in memory, and a client that has shaken hands with it."""

    def __init__(self, folder: Path, version: ssl.TLSVersion) -> None:
        context = BoundedTlsContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issue("localhost").write_pem(folder / "server.pem"))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: BoundedTlsObject = context.wrap_bio(self.incoming, self.outgoing, True)
        self.client = RecordingClient(version, folder / "secrets")
        has_ended = False
        while not has_ended:
            sent, has_ended = self.client.shake_hands(self.outgoing.read())
            self.incoming.write(sent)
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                continue
        self.outgoing.read()
        self.records = self.client.records()

    def receive(self, records: bytes) -> bytes:
        """Read as a transport does: until there is no more."""
        self.incoming.write(records)
        data = b""
        try:
            while True:
                data += self.tls.read(1000)
        except ssl.SSLWantReadError:
            return data


@pytest.mark.parametrize("version", [V12, V13])
def test_data_arrives_in_records_of_any_size(tmp_path: Path, version: ssl.TLSVersion) -> None:
    server = Server(tmp_path, version)
    sizes = (1, 16_000, 0, 5)
    sent = b"".join(server.records.record(APPLICATION_DATA, bytes(size)) for size in sizes)
    # More than the bound byte by byte, of which none brings data alone.
    data = b"".join(server.receive(sent[at : at + 1]) for at in range(len(sent)))
    assert data == bytes(sum(sizes))


@pytest.mark.parametrize("has_data", [False, True])
def test_second_handshake_ends_the_connection(tmp_path: Path, has_data: bool) -> None:
    server = Server(tmp_path, V12)
    records = server.records.record(HANDSHAKE, server.client.hello)
    if has_data:
        records += server.records.record(APPLICATION_DATA, b"data")
    with pytest.raises(ssl.SSLError, match="a second handshake is not supported"):
        server.receive(records)


def test_keys_may_change(tmp_path: Path) -> None:
    server = Server(tmp_path, V13)
    records = server.records
    assert isinstance(records, Tls13Records)
    answered_size = 0
    while answered_size <= OVERHEAD_SIZE_MAX:
        change = records.key_update(is_answered=True)
        assert server.receive(change + records.record(APPLICATION_DATA, b"data")) == b"data"
        # The client reads the answers, which change keys too.
        answered_size += len(server.outgoing.read())


def test_changes_of_keys_without_data_end_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path, V13)
    records = server.records
    assert isinstance(records, Tls13Records)
    changes = b"".join(records.key_update(is_answered=False) for _ in range(100))
    allowed = OVERHEAD_SIZE_MAX // len(changes)
    for _ in range(allowed):
        server.receive(changes)
        changes = b"".join(records.key_update(is_answered=False) for _ in range(100))
    with pytest.raises(ssl.SSLError, match="without data"):
        server.receive(changes)


def test_answers_that_are_not_read_end_the_connection(tmp_path: Path) -> None:
    server = Server(tmp_path, V13)
    records = server.records
    assert isinstance(records, Tls13Records)
    while server.outgoing.pending <= OVERHEAD_SIZE_MAX - 100:
        change = records.key_update(is_answered=True)
        assert server.receive(change + records.record(APPLICATION_DATA, b"data")) == b"data"
    changes = b"".join(records.key_update(is_answered=True) for _ in range(5))
    with pytest.raises(ssl.SSLError, match="are not read"):
        server.receive(changes)
