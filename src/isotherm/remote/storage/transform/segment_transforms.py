"""Decides, once per segment, the steps for its chunks and indexes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from isotherm.errors import KeyPairNotConfiguredError
from isotherm.remote.storage.manifest.aiven_manifest import (
    SegmentEncryption,
    SegmentManifest,
    escaped,
)
from isotherm.remote.storage.segment_sources import Source
from isotherm.remote.storage.transform.chunks import ChunkStep
from isotherm.remote.storage.transform.compression import ZstdStep, starts_compressed
from isotherm.remote.storage.transform.encryption import KeyRing


@dataclass(frozen=True, slots=True)
class TransformSettings:
    """The transformation of segments that are copied from now on."""

    compression: bool = False
    compression_heuristic: bool = False
    encryption: bool = False


@dataclass(frozen=True, slots=True)
class SegmentTransform:
    """The steps of one segment. Indexes are encrypted whole and never compressed."""

    compression: bool
    encryption: SegmentEncryption | None
    chunk_steps: tuple[ChunkStep, ...]
    index_steps: tuple[ChunkStep, ...]

    @property
    def is_plain(self) -> bool:
        return not self.chunk_steps


class SegmentTransforms:
    """Thread-safe. `key_ring` may be None when no key pair is configured."""

    def __init__(self, settings: TransformSettings, key_ring: KeyRing | None) -> None:
        self._settings = settings
        self._key_ring = key_ring
        self._zstd = ZstdStep()

    @property
    def writes_plain(self) -> bool:
        return not (self._settings.compression or self._settings.encryption)

    def for_copy(self, log: Source) -> SegmentTransform:
        compression = self._settings.compression and not (
            self._settings.compression_heuristic and starts_compressed(log)
        )
        if not self._settings.encryption:
            return self._transform(compression, None, ())
        assert self._key_ring is not None, "the settings demand a key ring for encryption"
        encryption, step = self._key_ring.new_step(os.urandom)
        return self._transform(compression, encryption, (step,))

    def for_read(self, manifest: SegmentManifest) -> SegmentTransform:
        """The steps that read a segment. Raises KeyPairNotConfiguredError, and
        CorruptMetadataError for a key that cannot be unwrapped."""
        if manifest.encryption is None:
            return self._transform(manifest.compression, None, ())
        if self._key_ring is None:
            key_id = escaped(manifest.encryption.data_key.rpartition(":")[0])
            raise KeyPairNotConfiguredError(
                "segment is encrypted and no key pair is configured key=encryption.key.pairs"
                f" key_pair={key_id}"
                f" hint='name it there, and encryption.key.pairs.{key_id}.private.key.file'"
            )
        step = self._key_ring.step(manifest.encryption)
        return self._transform(manifest.compression, manifest.encryption, (step,))

    def _transform(
        self,
        compression: bool,
        encryption: SegmentEncryption | None,
        encryption_steps: tuple[ChunkStep, ...],
    ) -> SegmentTransform:
        # Compressed before it is encrypted: ciphertext does not compress.
        compression_steps = (self._zstd,) if compression else ()
        return SegmentTransform(
            compression, encryption, (*compression_steps, *encryption_steps), encryption_steps
        )
