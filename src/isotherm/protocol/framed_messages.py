"""Messages in record values: KRaft's metadata log and `__remote_log_metadata`.

    frame_version uvarint (1) | api_key uvarint | api_version uvarint | body, to the end

This is stored data, not a peer's: unreadable bytes raise CorruptMetadataError, and the caller adds
the place. Source: Kafka MetadataRecordSerde, AbstractApiMessageSerde.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isotherm.errors import CorruptMetadataError
from isotherm.protocol.codec import decoder, encoder, guarded
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import Buffer, read_unsigned_varint, write_unsigned_varint

FRAME_VERSION = 1


def registry_of(entity_types: Iterable[type[Any]]) -> Mapping[tuple[int, int], type[Any]]:
    """Message classes by (api key, version), for `decode_framed`."""
    return {(int(t.__api_key__), int(t.__version__)): t for t in entity_types}


def encode_framed(entity: Any) -> bytes:
    """The record value of an entity, whose class has the api key and version."""
    out = bytearray()
    write_unsigned_varint(FRAME_VERSION, out)
    write_unsigned_varint(int(entity.__api_key__), out)
    write_unsigned_varint(int(entity.__version__), out)
    encoder(type(entity))(entity, out)
    return bytes(out)


def _read_frame_header(buffer: Buffer, position: int) -> tuple[tuple[int, int, int], int]:
    frame_version, position = read_unsigned_varint(buffer, position)
    api_key, position = read_unsigned_varint(buffer, position)
    api_version, position = read_unsigned_varint(buffer, position)
    return (frame_version, api_key, api_version), position


_guarded_frame_header = guarded(_read_frame_header, "metadata record")


def decode_framed(buffer: Buffer, registry: Mapping[tuple[int, int], type[Any]]) -> Any:
    """Decode a record value, with the class in `registry` for its key and version.

    Raises CorruptMetadataError for an unknown frame version, key or version, a malformed body, or
    trailing bytes.
    """
    try:
        (frame_version, api_key, api_version), position = _guarded_frame_header(buffer, 0)
        if frame_version != FRAME_VERSION:
            raise CorruptMetadataError(f"unknown frame version frame_version={frame_version}")
        entity_type = registry.get((api_key, api_version))
        if entity_type is None:
            raise CorruptMetadataError(
                f"unknown metadata record api_key={api_key} api_version={api_version}"
            )
        entity, position = decoder(entity_type)(buffer, position)
    except ProtocolError as error:
        raise CorruptMetadataError(f"a metadata record is malformed size={len(buffer)}") from error
    if position != len(buffer):
        raise CorruptMetadataError(
            f"bytes follow a metadata record api_key={api_key} count={len(buffer) - position}"
        )
    return entity
