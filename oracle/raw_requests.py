"""Requests as bytes, to any broker: also requests that no client library would send.

`request_frame` fills a request from a few named fields, `ask` sends it on a connection of its own
and returns the answer or why there was none, `outcomes` maps the error codes and messages of a
response to the things that they belong to, so that two brokers' answers can be compared.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import socket
import struct
import types
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kio.static.primitive import TZAware, i32Timedelta, i64Timedelta

from isotherm.client.tls_stream import Stream, receive
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import decoder, encoder

TIMEOUT_S = 300
CORRELATION_ID = 7
CLIENT_ID = b"raw"
_SIZE = struct.Struct(">i")

# How a broker can leave a request without an answer.
CLOSED = "the connection was closed"
SILENT = "no answer"

# Fields that name the thing that an element of a response is about.
_NAMES = ("name", "topic", "partition_index", "partition", "partition_id", "index",
          "group_id", "feature", "resource_type", "resource_name", "transactional_id", "key",
          "member_id")  # fmt: skip


class Outcome(NamedTuple):
    error_code: int
    error_message: str | None


def request_header(api_key: int, api_version: int, *, is_flexible: bool) -> bytes:
    """The header of a request. A flexible one ends in tagged fields, here none."""
    header = struct.pack(">hhih", api_key, api_version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    return header + b"\0" if is_flexible else header


def request_frame(api_key: int, api_version: int, fields: Mapping[str, Any]) -> bytes:
    """A request of a served version. Fields not named have their defaults, or are empty.

    Ids are given as text, bytes as hexadecimal digits, durations in milliseconds.
    """
    entity_type = request_class(api_key, api_version)
    out = bytearray(
        request_header(api_key, api_version, is_flexible=bool(entity_type.__flexible__))
    )
    encoder(entity_type)(_entity(entity_type, fields), out)
    return bytes(out)


def receive_frame(connection: Stream) -> bytes:
    """The next answer on a connection, without its size.

    ConnectionError if the broker closes it first.
    """
    head = receive(connection, _SIZE.size)
    if len(head) == _SIZE.size:
        (size,) = _SIZE.unpack(head)
        frame = receive(connection, size)
        if len(frame) == size:
            return frame
    raise ConnectionError("the broker closed the connection")


def ask(bootstrap_server: str, frame: bytes, timeout_s: float = TIMEOUT_S) -> bytes | str:
    """The payload of the answer, or CLOSED, or SILENT."""
    host, _, port = bootstrap_server.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=timeout_s) as client,
        client.makefile("rb") as answers,
    ):
        client.sendall(struct.pack(">i", len(frame)) + frame)
        try:
            head = answers.read(4)
            if len(head) < 4:
                return CLOSED
            return answers.read(*struct.unpack(">i", head))
        except ConnectionError:
            return CLOSED
        except TimeoutError:
            return SILENT


def read_answer(api_key: int, api_version: int, payload: bytes) -> Any:
    """The response in a payload, as kio's class."""
    entity_type = response_class(api_key, api_version)
    has_tags = entity_type.__flexible__ and api_key != ApiKey.API_VERSIONS
    entity, _ = decoder(entity_type)(memoryview(payload), 5 if has_tags else 4)
    return entity


def outcomes(response: Any) -> dict[str, Outcome]:
    """Error codes and messages, by the path of names to the thing that each belongs to."""
    return dict(_outcomes(response, "/"))


def _outcomes(value: Any, path: str) -> Iterator[tuple[str, Outcome]]:
    if isinstance(value, tuple):
        for number, each in enumerate(value):
            names = [str(getattr(each, name)) for name in _NAMES if hasattr(each, name)]
            yield from _outcomes(each, f"{path}{','.join(names) if names else number}/")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            attribute = getattr(value, field.name)
            if field.name.endswith("error_code"):
                message = getattr(value, field.name.replace("code", "message"), None)
                kind = field.name.removesuffix("error_code")
                yield path + kind, Outcome(int(attribute), message)
            else:
                yield from _outcomes(attribute, path)


@functools.cache
def annotations_of(entity_type: Any) -> Mapping[str, Any]:
    """The types of a class's fields.

    Cached: type hints are parsed from text, and a request may have a hundred thousand elements of
    one class.
    """
    return typing.get_type_hints(entity_type)


def _entity(entity_type: Any, fields: Mapping[str, Any]) -> Any:
    annotations = annotations_of(entity_type)
    declared = dataclasses.fields(entity_type)
    assert fields.keys() <= {field.name for field in declared}, (entity_type, fields)
    values = {}
    for field in declared:
        if field.name in fields:
            values[field.name] = _value(annotations[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _empty(annotations[field.name])
    return entity_type(**values)


def _value(annotation: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _value(next(arm for arm in arms if arm is not types.NoneType), value)
    if origin is tuple:
        # One item of several places is made once: requests repeat one item ten thousand times.
        made = {key: _value(arms[0], each) for key, each in {id(e): e for e in value}.items()}
        return tuple(made[id(each)] for each in value)
    if dataclasses.is_dataclass(annotation):
        return _entity(annotation, value)
    if annotation in (i32Timedelta, i64Timedelta):
        return annotation(datetime.timedelta(milliseconds=value))
    if annotation is uuid.UUID:
        return uuid.UUID(value)
    # The schemas' number types would refuse what is out of their range, which is the point here.
    return bytes.fromhex(value) if issubclass(annotation, bytes) else value


def _empty(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return None
    if typing.get_origin(annotation) is tuple:
        return ()
    if dataclasses.is_dataclass(annotation):
        return _entity(annotation, {})
    if annotation in (i32Timedelta, i64Timedelta):
        return annotation(datetime.timedelta())
    if annotation is TZAware:
        return datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
    if annotation is uuid.UUID:
        return uuid.UUID(int=0)
    return next((kind() for kind in (bool, str, bytes, float) if issubclass(annotation, kind)), 0)
