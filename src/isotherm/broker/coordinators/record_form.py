"""The form of the records of coordinators: a version, and the fields of one of Kafka's schemas."""

from __future__ import annotations

import struct
from typing import Any

from isotherm.errors import CorruptMetadataError
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import Buffer

VERSION = struct.Struct(">h")


def encoded(version: int, entity: Any) -> bytes:
    """Raises struct.error, ValueError or OverflowError if a text is too long (32767 bytes)."""
    out = bytearray(VERSION.pack(version))
    encoder(type(entity))(entity, out)
    return bytes(out)


def version_of(buffer: Buffer, record: str) -> int:
    """The version of a key or a value. `record` names the kind of record in errors: "a transaction
    record". Raises CorruptMetadataError."""
    if len(buffer) < VERSION.size:
        raise CorruptMetadataError(f"{record} has no version size={len(buffer)}")
    version: int = VERSION.unpack_from(buffer)[0]
    return version


def decoded(entity_class: type[Any], buffer: Buffer, record: str) -> Any:
    """The fields behind the version. Raises CorruptMetadataError."""
    try:
        entity, _ = decoder(entity_class)(buffer, VERSION.size)
    except ProtocolError as error:
        raise CorruptMetadataError(f"{record} is malformed size={len(buffer)}") from error
    return entity
