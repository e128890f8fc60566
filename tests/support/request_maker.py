"""Random requests of every served API and version, and damaged ones.

Requests come from real clients (`tests/fault/recorded_requests.txt`, made by
oracle/record_requests.py), converted to every version and to a topic that exists; others are made
from the schemas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import struct
import types
import typing
import uuid
from pathlib import Path
from typing import Any

from kio.schema.types import TopicName
from kio.static.primitive import Records, TZAware, i32Timedelta, i64Timedelta

from isotherm.broker.apis.api_register import SERVED
from isotherm.protocol.api_keys import request_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.framing import read_request_frame
from isotherm.record.batch import build_batch
from oracle.raw_requests import annotations_of

REQUESTS = [
    (key, version) for key, (low, high) in SERVED.items() for version in range(low, high + 1)
]
RECORDED = [
    bytes.fromhex(line)
    for line in (Path(__file__).parents[1] / "fault" / "recorded_requests.txt")
    .read_text("ascii")
    .split()
]
TOPIC = "fuzzed"
NUMBERS = (-1, 0, 0, 1, 1, 2, 3, 100, 127)
RECORDS = bytes(build_batch([(1_700_000_000_000, b"key", b"value", ())]))


class RequestMaker:
    """Random entities of the request classes."""

    def __init__(self, rng: random.Random, topic_id: uuid.UUID) -> None:
        self._rng = rng
        self._topic_id = topic_id

    def frame(self, api_key: int, version: int) -> bytes:
        entity_type = request_class(api_key, version)
        out = bytearray(struct.pack(">hhih", api_key, version, 1, 4) + b"fuzz")
        if entity_type.__flexible__:
            out.append(0)
        encoder(entity_type)(self._entity(entity_type), out)
        return bytes(out)

    def recorded_frames(self, api_key: int, version: int) -> list[bytes]:
        """Recorded requests of this API in the nearest recorded version, encoded as this
        version.
        """
        of_api = [frame for frame in RECORDED if frame[:2] == struct.pack(">h", api_key)]
        versions = {struct.unpack_from(">h", frame, 2)[0] for frame in of_api}
        if not versions:
            return []
        nearest = min(versions, key=lambda each: (abs(each - version), each))
        entity_type = request_class(api_key, version)
        frames = []
        for frame in of_api:
            sent_version = struct.unpack_from(">h", frame, 2)[0]
            is_flexible = bool(request_class(api_key, sent_version).__flexible__)
            header, body = read_request_frame(memoryview(frame), is_flexible=is_flexible)
            if header.api_version != nearest:
                continue
            sent, _ = decoder(request_class(api_key, nearest))(body, 0)
            out = bytearray(struct.pack(">hhih", api_key, version, 1, 4) + b"fuzz")
            if entity_type.__flexible__:
                out.append(0)
            encoder(entity_type)(self._carried_over(sent, entity_type), out)
            frames.append(bytes(out))
        return frames

    def _carried_over(self, sent: Any, entity_type: type) -> Any:
        """`sent` as another version of its class; fields that `sent` lacks get random values."""
        annotations = annotations_of(entity_type)
        return entity_type(
            **{
                field.name: self._carried_over_value(
                    getattr(sent, field.name, None), annotations[field.name]
                )
                for field in dataclasses.fields(entity_type)
            }
        )

    def _carried_over_value(self, value: Any, annotation: Any) -> Any:
        if typing.get_origin(annotation) in (types.UnionType, typing.Union):
            if value is None:
                return None
            arms = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
            annotation = arms[0]
        if value is None:
            return self._value(annotation)
        if typing.get_origin(annotation) is tuple:
            item = typing.get_args(annotation)[0]
            return tuple(self._carried_over_value(each, item) for each in value)
        if dataclasses.is_dataclass(annotation):
            return self._carried_over(value, typing.cast("type", annotation))
        if annotation is uuid.UUID:
            return self._topic_id
        if annotation is TopicName:
            return TOPIC
        return value

    def mutant(self, frame: bytes) -> bytes:
        """A copy of `frame` with damage after its API key and version."""
        rng, mutant = self._rng, bytearray(frame)
        for _ in range(rng.randint(1, 3)):
            position = rng.randrange(8, len(mutant) + 1)
            damage = rng.randrange(4)
            if damage == 0:
                del mutant[position:]
            elif damage == 1:
                mutant[position : position + 1] = rng.randbytes(1)
            elif damage == 2:
                mutant[position:position] = rng.randbytes(rng.randint(1, 8))
            else:
                mutant[position : position + 4] = rng.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f")
                )
        return bytes(mutant)

    def _entity(self, entity_type: type) -> Any:
        annotations = annotations_of(entity_type)
        return entity_type(
            **{
                field.name: self._value(annotations[field.name])
                for field in dataclasses.fields(entity_type)
            }
        )

    def _value(self, annotation: Any) -> Any:
        rng, origin = self._rng, typing.get_origin(annotation)
        if origin in (types.UnionType, typing.Union):
            arms = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
            return self._value(arms[0]) if rng.random() < 0.7 else None
        if origin is tuple:
            item = typing.get_args(annotation)[0]
            return tuple(self._value(item) for _ in range(rng.randrange(3)))
        if dataclasses.is_dataclass(annotation):
            return self._entity(typing.cast("type", annotation))
        return self._leaf(annotation)

    def _leaf(self, annotation: Any) -> Any:
        rng = self._rng
        if annotation is uuid.UUID:
            return rng.choice((self._topic_id, uuid.UUID(int=rng.getrandbits(128))))
        if annotation is Records:
            return RECORDS
        if annotation in (i32Timedelta, i64Timedelta):
            return annotation(datetime.timedelta(milliseconds=rng.choice((0, 1, 10))))
        if annotation is TZAware:
            return datetime.datetime.fromtimestamp(rng.randrange(2**31), tz=datetime.UTC)
        if issubclass(annotation, bool):
            return rng.random() < 0.5
        if issubclass(annotation, str):
            return rng.choice((TOPIC, "", "group", "1", "x" * 300, "é/\0", "range", "member-1"))
        if issubclass(annotation, bytes):
            return rng.randbytes(rng.randrange(20))
        if issubclass(annotation, float):
            return rng.choice((0.0, -1.0, 1e9, float("nan"), float("inf")))
        return self._number(annotation)

    def _number(self, annotation: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError):
            return annotation(self._rng.choice(NUMBERS))
        return annotation(self._rng.choice((0, 1)))
