"""Reads and sets features of a cluster on a plain connection: librdkafka has no call for them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.cli.client import REQUEST_TIMEOUT_S
from isotherm.errors import BrokerUnreachableError, InvalidUpdateVersionError
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.broker_probe import bootstrap_addresses, check_brokers
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.entities import entity_of

# The first version whose response includes features at level 0.
_API_VERSIONS_VERSION = 4
_UPDATE_FEATURES_VERSION = 1
_CLIENT_ID = b"isotherm-cli"
_CORRELATION_ID = 1
_SIZE = struct.Struct(">i")
_ANSWER_SIZE_MAX = 16 * 1024 * 1024
_UPGRADE = 1


@dataclass(frozen=True, slots=True)
class Features:
    """`supported` are the highest levels that the broker supports, `levels` the active ones."""

    supported: Mapping[str, int]
    levels: Mapping[str, int]


def read_features(bootstrap_server: str) -> Features:
    """Empty for a broker without that version. Raises BrokerUnreachableError."""
    answer = _ask(
        bootstrap_server,
        ApiKey.API_VERSIONS,
        _API_VERSIONS_VERSION,
        {"client_software_name": "isotherm", "client_software_version": "cli"},
    )
    if answer is None:
        return Features({}, {})
    return Features(
        {feature.name: feature.max_version for feature in answer.supported_features},
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
    )


def raise_feature(bootstrap_server: str, name: str, level: int) -> None:
    """Durable on return. No effect if the level is already set.

    Raises InvalidUpdateVersionError if the cluster refuses, and BrokerUnreachableError.
    """
    update = {"feature": name, "max_version_level": level, "upgrade_type": _UPGRADE}
    answer = _ask(
        bootstrap_server,
        ApiKey.UPDATE_FEATURES,
        _UPDATE_FEATURES_VERSION,
        {"feature_updates": [update], "validate_only": False},
    )
    code = ErrorCode.unsupported_version if answer is None else answer.error_code
    if code is not ErrorCode.none:
        message = "" if answer is None else answer.error_message
        raise InvalidUpdateVersionError(
            f"the cluster refuses the feature's level feature={name} level={level}"
            f" error={code.name} message={message!r}"
        )


def _ask(
    bootstrap_server: str, api_key: ApiKey, api_version: int, fields: Mapping[str, Any]
) -> Any | None:
    """The answer; None if the broker does not support this version."""
    request_type = request_class(api_key, api_version)
    out = bytearray(
        struct.pack(">hhih", api_key, api_version, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    )
    out += b"\0"  # no tagged fields: these versions have flexible headers
    encoder(request_type)(entity_of(request_type, fields), out)
    payload = memoryview(_exchange(bootstrap_server, bytes(out)))
    is_versions = api_key is ApiKey.API_VERSIONS
    if is_versions and payload[4:6] == struct.pack(">h", ErrorCode.unsupported_version):
        return None
    # ApiVersions is answered with the oldest header, so that every client can read it.
    answer, _ = decoder(response_class(api_key, api_version))(payload, 4 if is_versions else 5)
    return answer


def _exchange(bootstrap_server: str, request: bytes) -> bytes:
    check_brokers({"bootstrap.servers": bootstrap_server})
    address = bootstrap_addresses(bootstrap_server)[0]
    try:
        with socket.create_connection(address, REQUEST_TIMEOUT_S) as client:
            client.sendall(_SIZE.pack(len(request)) + request)
            (size,) = _SIZE.unpack(_receive(client, _SIZE.size))
            if not 4 <= size <= _ANSWER_SIZE_MAX:
                raise ConnectionError(f"answer of {size} bytes")
            return _receive(client, size)
    except (OSError, ValueError) as error:
        raise BrokerUnreachableError(
            "the broker does not answer on a plain connection"
            f" bootstrap-server={bootstrap_server} reason={str(error)!r}"
        ) from error


def _receive(client: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = client.recv(size - len(received))
        if not part:
            raise ConnectionError("the connection was closed")
        received += part
    return bytes(received)
