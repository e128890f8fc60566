"""TLS connections that a test keeps open, with requests over them and their certificates."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

from cryptography import x509

from isotherm.protocol.api_keys import ApiKey
from oracle.raw_requests import read_answer, receive_frame, request_frame
from tests.support.certificates import Issued

TIMEOUT_S = 300


def connect(port: int, authority: Issued, own: Path | None = None) -> ssl.SSLSocket:
    """`own` has the client's key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate_pem.decode())
    if own is not None:
        context.load_cert_chain(own)
    plain = socket.create_connection(("localhost", port), TIMEOUT_S)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def certificate_of(connection: ssl.SSLSocket) -> x509.Certificate:
    shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def answers(connection: ssl.SSLSocket) -> bool:
    frame = request_frame(ApiKey.API_VERSIONS, 0, {})
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    return bool(read_answer(ApiKey.API_VERSIONS, 0, receive_frame(connection)).api_keys)
