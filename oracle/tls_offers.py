"""Which versions and cipher suites of TLS does a server offer? Asked with bare ClientHello
messages.

    python -m oracle.tls_offers localhost:9093 other:9093

There is a connection for each version and each suite. The server answers with a ServerHello if it
offers it, and otherwise with an alert or nothing. No TLS library is involved, so versions and
suites that libraries have dropped are tested too. Suites depend on the server's key: servers with
an RSA key and with an EC key differ.
Source: RFC 5246, RFC 8446, IANA's registry of cipher suites.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

from isotherm.client.tls_stream import receive

TIMEOUT_S = 300
_HANDSHAKE, _CLIENT_HELLO, _SERVER_HELLO = 22, 1, 2
_TLS_1_2, _TLS_1_3 = 0x0303, 0x0304
_X25519 = 0x001D

VERSIONS = {
    "SSLv3": 0x0300,
    "TLSv1": 0x0301,
    "TLSv1.1": 0x0302,
    "TLSv1.2": _TLS_1_2,
    "TLSv1.3": _TLS_1_3,
}
SUITES_OF_1_3 = {
    "TLS_AES_128_GCM_SHA256": 0x1301,
    "TLS_AES_256_GCM_SHA384": 0x1302,
    "TLS_CHACHA20_POLY1305_SHA256": 0x1303,
    "TLS_AES_128_CCM_SHA256": 0x1304,
    "TLS_AES_128_CCM_8_SHA256": 0x1305,
}
SUITES = {
    # Ephemeral keys and authenticated encryption.
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": 0xC02B,
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": 0xC02C,
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA9,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CCM": 0xC0AC,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CCM": 0xC0AD,
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": 0xC02F,
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": 0xC030,
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCA8,
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": 0x009E,
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": 0x009F,
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": 0xCCAA,
    # Ephemeral keys and CBC.
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": 0xC023,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384": 0xC024,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": 0xC009,
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": 0xC00A,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": 0xC027,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": 0xC028,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": 0xC013,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": 0xC014,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": 0x0067,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": 0x006B,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA": 0x0033,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA": 0x0039,
    # No forward secrecy: the server's key, obtained later, decrypts recorded traffic.
    "TLS_RSA_WITH_AES_128_GCM_SHA256": 0x009C,
    "TLS_RSA_WITH_AES_256_GCM_SHA384": 0x009D,
    "TLS_RSA_WITH_AES_128_CBC_SHA256": 0x003C,
    "TLS_RSA_WITH_AES_256_CBC_SHA256": 0x003D,
    "TLS_RSA_WITH_AES_128_CBC_SHA": 0x002F,
    "TLS_RSA_WITH_AES_256_CBC_SHA": 0x0035,
    # Broken.
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": 0x000A,
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": 0xC012,
    "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA": 0xC008,
    "TLS_RSA_WITH_RC4_128_SHA": 0x0005,
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": 0xC011,
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": 0xC007,
    "TLS_RSA_WITH_DES_CBC_SHA": 0x0009,
    "TLS_RSA_EXPORT_WITH_RC4_40_MD5": 0x0003,
    "TLS_RSA_WITH_NULL_SHA256": 0x003B,
    "TLS_RSA_WITH_NULL_SHA": 0x0002,
    "TLS_ECDHE_RSA_WITH_NULL_SHA": 0xC010,
    "TLS_DH_anon_WITH_AES_128_CBC_SHA": 0x0034,
    "TLS_ECDH_anon_WITH_AES_128_CBC_SHA": 0xC018,
}


def offered(address: str) -> list[str]:
    """The names of VERSIONS, SUITES_OF_1_3 and SUITES that the server at `host:port` offers, in
    order.
    """
    everything = [*SUITES_OF_1_3.values(), *SUITES.values()]
    found = [name for name, number in VERSIONS.items() if _is_answered(address, number, everything)]
    for version, suites in ((_TLS_1_3, SUITES_OF_1_3), (_TLS_1_2, SUITES)):
        found += [
            name for name, number in suites.items() if _is_answered(address, version, [number])
        ]
    return found


def table(columns: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table of each server's offers, without the rows that no server offers."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in (*VERSIONS, *SUITES_OF_1_3, *SUITES):
        cells = ["yes" if name in found else "-" for found in columns.values()]
        if "yes" in cells:
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_answered(address: str, version: int, suites: Iterable[int]) -> bool:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(client_hello(version, list(suites)))
        try:
            return _server_hello_version(connection) == version
        except ConnectionError:
            return False


def client_hello(version: int, suites: Sequence[int]) -> bytes:
    extensions = [
        (0, _sized(b"\x00" + _sized(b"localhost"))),
        (10, _sized(struct.pack(">3H", _X25519, 0x0017, 0x0100))),
        (11, b"\x01\x00"),
        (13, _sized(struct.pack(f">{len(_SIGNATURES)}H", *_SIGNATURES))),
        (23, b""),
        (0xFF01, b"\x00"),
    ]
    if version == _TLS_1_3:
        extensions += [
            (43, b"\x02" + struct.pack(">H", version)),
            (51, _sized(struct.pack(">H", _X25519) + _sized(os.urandom(32)))),
        ]
    written = b"".join(struct.pack(">H", kind) + _sized(data) for kind, data in extensions)
    body = (
        struct.pack(">H", min(version, _TLS_1_2))
        + os.urandom(32)
        + b"\x20"
        + os.urandom(32)
        + _sized(struct.pack(f">{len(suites)}H", *suites))
        + b"\x01\x00"
        + _sized(written)
    )
    message = bytes([_CLIENT_HELLO]) + len(body).to_bytes(3, "big") + body
    return bytes([_HANDSHAKE]) + struct.pack(">H", min(version, 0x0301)) + _sized(message)


# Signature schemes of ECDSA, RSA-PSS and RSA, with SHA-2, and with SHA-1 for old versions.
_SIGNATURES = (
    0x0403, 0x0503, 0x0603, 0x0807, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201,
)  # fmt: skip


def _sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _server_hello_version(connection: socket.socket) -> int | None:
    """The version in the ServerHello; None for an alert or a closed connection."""
    head = receive(connection, 5)
    if len(head) < 5 or head[0] != _HANDSHAKE:
        return None
    message = receive(connection, struct.unpack(">H", head[3:])[0])
    if message[:1] != bytes([_SERVER_HELLO]):
        return None
    (version,) = struct.unpack_from(">H", message, 4)
    position = 6 + 32
    position += 1 + message[position]  # the session id
    position += 3  # suite and compression
    end = 4 + int.from_bytes(message[1:4], "big")
    position += 2
    while position + 4 <= end:
        kind, size = struct.unpack_from(">HH", message, position)
        if kind == 43:
            (version,) = struct.unpack_from(">H", message, position + 4)
        position += 4 + size
    return int(version)


if __name__ == "__main__":
    print(table({address: offered(address) for address in sys.argv[1:]}))
