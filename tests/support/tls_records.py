"""A TLS client that may send any message once its handshake has ended.

Python's client cannot begin a second handshake, or change its keys. So the records are encrypted
here, with the secrets that it logs: RFC 5246 (6.3, 8.1), RFC 8446 (7.1, 7.3).
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HANDSHAKE, APPLICATION_DATA = 22, 23
_CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"


class RecordingClient:
    """`received` and `sent` are its bytes. `hello` is its first message."""

    def __init__(self, version: ssl.TLSVersion, key_log: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_ciphers(_CIPHERS)
        context.keylog_filename = str(key_log)
        self._key_log = key_log
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._received = self._sent = b""

    def shake_hands(self, received: bytes) -> tuple[bytes, bool]:
        """Returns what to send, and whether the handshake has ended."""
        self._received += received
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            has_ended = False
        else:
            has_ended = True
        sent = self._outgoing.read()
        self._sent += sent
        return sent, has_ended

    @property
    def hello(self) -> bytes:
        return self._sent[5 : 5 + int.from_bytes(self._sent[3:5], "big")]

    def _secrets(self) -> dict[str, list[bytes]]:
        lines = self._key_log.read_text(encoding="ascii").splitlines()
        words = [line.split() for line in lines if not line.startswith("#")]
        return {name: [bytes.fromhex(each) for each in rest] for name, *rest in words}

    def records(self) -> Records:
        if self._tls.version() == "TLSv1.3":
            return Tls13Records(self._secrets()["CLIENT_TRAFFIC_SECRET_0"][1])
        client_random, master = self._secrets()["CLIENT_RANDOM"]
        # Behind the heads of the record and the message, and the version.
        server_random = self._received[11:43]
        seed, block = b"key expansion" + server_random + client_random, b""
        link = seed
        while len(block) < 40:
            link = hmac.digest(master, link, "sha256")
            block += hmac.digest(master, link + seed, "sha256")
        return Tls12Records(key=block[:16], salt=block[32:36])


class Records:
    def record(self, kind: int, message: bytes) -> bytes:
        raise NotImplementedError


class Tls12Records(Records):
    def __init__(self, key: bytes, salt: bytes) -> None:
        self._cipher, self._salt = AESGCM(key), salt
        self._number = 1  # the first was Finished

    def record(self, kind: int, message: bytes) -> bytes:
        number = struct.pack(">Q", self._number)
        self._number += 1
        head = struct.pack(">BH", kind, 0x0303)
        known = number + head + struct.pack(">H", len(message))
        body = number + self._cipher.encrypt(self._salt + number, message, known)
        return head + struct.pack(">H", len(body)) + body


class Tls13Records(Records):
    def __init__(self, secret: bytes) -> None:
        self._hash = hashlib.sha384 if len(secret) == 48 else hashlib.sha256
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        key_size = 32 if len(secret) == 48 else 16
        self._cipher = AESGCM(self._derived(b"key", key_size))
        self._iv = int.from_bytes(self._derived(b"iv", 12), "big")
        self._number = 0

    def _derived(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0\x01"
        return hmac.digest(self._secret, info, self._hash)[:size]

    def record(self, kind: int, message: bytes) -> bytes:
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(message) + 17)
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._cipher.encrypt(nonce, message + bytes([kind]), head)

    def key_update(self, *, is_answered: bool) -> bytes:
        """Change the keys, and perhaps ask the server to do the same."""
        record = self.record(HANDSHAKE, b"\x18\0\0\x01" + bytes([is_answered]))
        self._use(self._derived(b"traffic upd", len(self._secret)))
        return record
