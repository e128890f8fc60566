"""Encryption of chunks and indexes: AES-256-GCM under a key of the segment's own.

    stored chunk = IV (12 bytes) | ciphertext | tag (16 bytes)

Each segment has its own key and additional authenticated data (32 random bytes each); each chunk
has a random IV. The key is in the manifest, wrapped with RSA-OAEP (SHA3-512 for both digest and
mask, empty label); only the holder of the private key can unwrap it: `<key pair id>:<base64>`.
Source: the Aiven plugin's security package.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    CorruptObjectError,
    KeyPairNotConfiguredError,
)
from isotherm.remote.storage.manifest.aiven_manifest import SegmentEncryption, escaped

if TYPE_CHECKING:
    from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher
    from Crypto.PublicKey.RSA import RsaKey

DATA_KEY_SIZE = 32
AAD_SIZE = 32
IV_SIZE = 12
TAG_SIZE = 16

RandomBytes = Callable[[int], bytes]
_PARSED_KEYS_MAX = 16
# As many segments as manifests are kept of by default (fetch.manifest.cache.size).
_STEPS_MAX = 1000


class AesGcmStep:
    """Thread-safe."""

    overhead = IV_SIZE + TAG_SIZE

    def __init__(self, data_key: bytes, aad: bytes, random_bytes: RandomBytes = os.urandom) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(data_key)
        self._aad = aad
        self._random_bytes = random_bytes

    def apply(self, chunk: bytes) -> bytes:
        iv = self._random_bytes(IV_SIZE)
        return iv + self._cipher.encrypt(iv, chunk, self._aad)

    def undo(self, chunk: bytes | memoryview, original_size: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(bytes(chunk[:IV_SIZE]), bytes(chunk[IV_SIZE:]), self._aad)
        except (InvalidTag, ValueError) as error:
            raise CorruptObjectError(
                f"encrypted bytes fail their authentication size={len(chunk)}"
            ) from error


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """PEM files of one key pair: the private one to read, the public one to write."""

    public_key_file: str | None
    private_key_file: str


class KeyRing:
    """Wraps data keys under the active key pair, and unwraps those of any pair in the ring.

    The constructor raises ConfigError if a key file cannot be used.
    """

    def __init__(self, active_id: str | None, key_pairs: Mapping[str, KeyPairFiles]) -> None:
        self._active_id = active_id
        self._public = {
            key_id: _load_key(files.public_key_file)
            for key_id, files in key_pairs.items()
            if files.public_key_file is not None
        }
        self._private = {
            key_id: _load_key(files.private_key_file) for key_id, files in key_pairs.items()
        }
        # Each range and each index of a segment needs its key, and to unwrap it takes 1.5 ms under
        # 2,048 bits and 8 ms under 4,096. By the wrapped key itself: another copy of the segment
        # has another one.
        self._known_step = functools.lru_cache(_STEPS_MAX)(self._unwrapped_step)

    def new_step(self, random_bytes: RandomBytes) -> tuple[SegmentEncryption, AesGcmStep]:
        """A fresh key for a segment that is being copied."""
        assert self._active_id is not None, "the settings demand an active key pair"
        data_key, aad = random_bytes(DATA_KEY_SIZE), random_bytes(AAD_SIZE)
        wrapped = _key_cipher(self._public[self._active_id]).encrypt(data_key)
        encryption = SegmentEncryption(
            f"{self._active_id}:{base64.b64encode(wrapped).decode()}",
            base64.b64encode(aad).decode(),
        )
        return encryption, AesGcmStep(data_key, aad, random_bytes)

    def step(self, encryption: SegmentEncryption) -> AesGcmStep:
        """The step that reads a segment. Raises KeyPairNotConfiguredError for a key pair
        that is not in the ring, and CorruptMetadataError."""
        return self._known_step(encryption)

    def _unwrapped_step(self, encryption: SegmentEncryption) -> AesGcmStep:
        key_id, colon, wrapped_text = encryption.data_key.rpartition(":")
        if not colon:
            raise CorruptMetadataError("wrapped data key names no key pair")
        private = self._private.get(key_id)
        if private is None:
            raise KeyPairNotConfiguredError(
                "segment is encrypted under a key pair that is not configured"
                f" key_pair={escaped(key_id)}"
                f" configured={','.join(sorted(self._private)) or 'none'} hint='add it to"
                " encryption.key.pairs, with its private.key.file'"
            )
        try:
            wrapped = base64.b64decode(wrapped_text, validate=True)
            aad = base64.b64decode(encryption.aad, validate=True)
            data_key = _key_cipher(private).decrypt(wrapped)
            return AesGcmStep(data_key, aad)
        except (binascii.Error, ValueError, TypeError) as error:
            raise CorruptMetadataError(
                f"data key cannot be unwrapped key_pair={escaped(key_id)}"
            ) from error


# Imported where keys are used: it takes longer than the rest of the remote tier, and most buckets
# are not encrypted.
def _key_cipher(key: RsaKey) -> PKCS1OAEP_Cipher:
    from Crypto.Cipher import PKCS1_OAEP
    from Crypto.Hash import SHA3_512

    return PKCS1_OAEP.new(key, SHA3_512)


def _load_key(file: str) -> RsaKey:
    try:
        return _parsed_key(Path(file).read_bytes())
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise ConfigError(f"key file cannot be used file={file}") from error


# By content, not by path: a file may get another key.
@functools.lru_cache(_PARSED_KEYS_MAX)
def _parsed_key(pem: bytes) -> RsaKey:
    """Parse a key, each only once: the primes of a private key are tested, which takes 20 ms of CPU
    for 2,048 bits."""
    from Crypto.PublicKey import RSA

    return RSA.import_key(pem)
