"""Decodes keys and values with the schemas of a registry to JSON for people, one value at a time.

The jobs decode whole columns (isotherm.spark.tables). This module decodes a page of records, and
also supports schemas that cannot become columns. Both use the same framing of values and the same
registry.
"""

from __future__ import annotations

import functools
import json
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias

from isotherm.clock import Clock
from isotherm.errors import SchemaRegistryError
from isotherm.spark.tables.framed_values import SchemaId, SchemaName, frame_of
from isotherm.spark.tables.header_names import named_value
from isotherm.spark.tables.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    UnknownSchemaError,
    registered_schema,
)

SCHEMAS_MAX = 1000
"""The most schemas that are kept."""
QUESTIONS_MAX = 32
"""The most schemas that one call asks the registry for. Values that only look as if they had a
schema may name any number of ids."""
UNKNOWN_KEPT_S = 60.0
"""Seconds until the registry is asked again for a schema that it did not have."""
FAILURE_KEPT_S = 10.0
"""Seconds without requests to the registry after one failed."""
VALUE_BYTES_MAX = 1024 * 1024
WITH_DECIMALS_BYTES_MAX = 16 * 1024
"""The most bytes of an Avro value whose decimals are shown as numbers. The digits of an integer
cost the square of its size, and 16 KiB are some 20 ms."""
_DIGITS_MAX = 3 * WITH_DECIMALS_BYTES_MAX
_PROTOBUF = "PROTOBUF"
_REASON_SIZE_MAX = 400
# Short limits, because a person waits for the page. An option of the same name overrides them.
REGISTRY_DEFAULTS = {"timeout": "5", "max.retries": "1"}

ValueReader: TypeAlias = Callable[[bytes], str]
"""Turns the bytes after a frame into JSON. Raises ValueError with the reason."""


def with_defaults(registry: RegistrySettings) -> RegistrySettings:
    settings = {**REGISTRY_DEFAULTS, **dict(registry.settings)}
    return RegistrySettings(registry.url, tuple(sorted(settings.items())))


class NamedBytes(NamedTuple):
    """A key or value, and the header of its record that names the schema, if there is one."""

    value: bytes | None
    header: bytes | None = None

    def framed(self, *, has_path: bool) -> bytes:
        return named_value(self.value, self.header, has_path=has_path) or b""


class RegisteredValue(NamedTuple):
    """A value as JSON. `kind` is the registry's name of the format. If `text` is None, `error` has
    the reason."""

    schema_id: SchemaId
    kind: str | None
    text: str | None
    error: str | None


class _Reader(NamedTuple):
    """The reader of a schema's values. If `read` is None, `error` has the reason."""

    read: ValueReader | None
    error: str | None = None


class _SchemaError(Exception):
    """A value cannot be decoded because of its schema, whatever its bytes."""


class RegisteredValues:
    """Decodes values with the schemas of one registry, and keeps these schemas. Thread-safe."""

    def __init__(self, registry: RegistrySettings, clock: Clock) -> None:
        self._registry = with_defaults(registry)
        self._clock = clock
        self._schemas: OrderedDict[SchemaId, RegisteredSchema] = OrderedDict()
        self._readers: OrderedDict[SchemaName, _Reader] = OrderedDict()
        # The reason, and the monotonic time until which the registry is not asked again.
        self._unknown: OrderedDict[SchemaId, tuple[str, float]] = OrderedDict()
        self._failure = ("", 0.0)
        self._questions_left = 0
        self._guard = threading.Lock()

    def read_all(self, values: Sequence[NamedBytes]) -> list[RegisteredValue | None]:
        """Decode values, in their order. The result is None for a value that neither begins like
        one with a schema nor has a header that names one."""
        with self._guard:
            self._questions_left = QUESTIONS_MAX
            return [None if value.value is None else self._read(value) for value in values]

    def _read(self, given: NamedBytes) -> RegisteredValue | None:
        value = given.framed(has_path=False)
        framed = frame_of(value)
        if framed is None:
            return None
        name, _ = framed
        if len(value) > VALUE_BYTES_MAX:
            return _refused(name, None, f"it is larger than {VALUE_BYTES_MAX} bytes")
        try:
            schema = self._schema(name.id)
        except _SchemaError as error:
            return _refused(name, None, str(error))
        if schema.kind == _PROTOBUF:
            framed = frame_of(given.framed(has_path=True), has_path=True)
        if framed is None:
            return _refused(name, schema.kind, "no indexes of a message follow the schema's id")
        try:
            text = self._reader(schema, framed[0])(framed[1])
        except (_SchemaError, ValueError) as error:
            return _refused(name, schema.kind, str(error))
        return RegisteredValue(name.id, schema.kind, text, None)

    def _schema(self, schema_id: SchemaId) -> RegisteredSchema:
        cached = self._schemas.get(schema_id)
        if cached is not None:
            return cached
        now_s = self._clock.monotonic_s()
        # A failed registry is not asked for any schema: each request would wait for its timeout
        # again.
        for reason, until_s in (self._unknown.get(schema_id, ("", 0.0)), self._failure):
            if reason and now_s < until_s:
                raise _SchemaError(reason)
        if not self._questions_left:
            raise _SchemaError(f"one step asks for no more than {QUESTIONS_MAX} schemas")
        self._questions_left -= 1
        try:
            schema = registered_schema(self._registry, schema_id)
        except UnknownSchemaError as error:
            _put(self._unknown, schema_id, (str(error), now_s + UNKNOWN_KEPT_S))
            raise _SchemaError(str(error)) from error
        except SchemaRegistryError as error:
            self._failure = str(error), now_s + FAILURE_KEPT_S
            raise _SchemaError(str(error)) from error
        _put(self._schemas, schema_id, schema)
        return schema

    def _reader(self, schema: RegisteredSchema, name: SchemaName) -> ValueReader:
        reader = self._readers.get(name)
        if reader is None:
            reader = _opened(schema, name)
            _put(self._readers, name, reader)
        if reader.read is None:
            raise _SchemaError(reader.error)
        return reader.read


def _refused(name: SchemaName, kind: str | None, reason: str) -> RegisteredValue:
    return RegisteredValue(name.id, kind, None, reason[:_REASON_SIZE_MAX])


def _put(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > SCHEMAS_MAX:
        kept.popitem(last=False)


def _opened(schema: RegisteredSchema, name: SchemaName) -> _Reader:
    openers = {"AVRO": _avro_reader, _PROTOBUF: _protobuf_reader, "JSON": _json_reader}
    opener = openers.get(schema.kind)
    if opener is None:
        return _Reader(None, f"nothing reads schemas of this kind kind={schema.kind}")
    try:
        return _Reader(opener(schema, name))
    except UnknownSchemaError as error:
        return _Reader(None, str(error))


def _json_reader(schema: RegisteredSchema, name: SchemaName) -> ValueReader:
    del schema, name  # the text is the value, sound or not

    def read(payload: bytes) -> str:
        try:
            text = payload.decode()
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from error
        return text

    return read


def _avro_reader(schema: RegisteredSchema, name: SchemaName) -> ValueReader:
    """The reader for an Avro schema. Raises UnknownSchemaError if the schema is not sound."""
    del name
    import fastavro  # of the extra `registry`, as the next one's

    from isotherm.spark.tables.avro_schema import parsed_schema

    try:
        parsed, named = parsed_schema(schema)
        plain = parsed_schema(schema, is_plain=True).schema
        has_decimals = _keep_all_digits([parsed, *named.values()])
        _check_items(parsed, named, set())
        is_recursive = _contains_itself(parsed, named, frozenset(), set())
    except (fastavro.schema.SchemaParseException, ValueError, LookupError, TypeError) as error:
        raise UnknownSchemaError(f"the schema is not one of Avro: {error!r}") from error
    except RecursionError as error:
        raise UnknownSchemaError("the schema is nested too deeply") from error
    if is_recursive:
        # The compiled reader has no bound for the depth of a value: 20,000 levels, a byte each, end
        # the process. The same reader in Python ends at the interpreter's bound, with an error.
        from fastavro._read_py import schemaless_reader
    else:
        schemaless_reader = fastavro.schemaless_reader
    bytes_max = WITH_DECIMALS_BYTES_MAX if has_decimals else VALUE_BYTES_MAX
    return functools.partial(_avro_text, schemaless_reader, parsed, plain, bytes_max)


def _keep_all_digits(schemas: list[Any]) -> bool:
    """Whether there are decimals in parsed schemas. fastavro rounds a number that has more digits
    than the schema says; here each gets as many as it has."""
    waiting, has_decimals = list(schemas), False
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get("logicalType") == "decimal":
                part["precision"], has_decimals = _DIGITS_MAX, True
            waiting += _parts(part)
        elif isinstance(part, list):
            waiting += part
    return has_decimals


def _avro_text(
    schemaless_reader: Callable[..., Any], schema: Any, plain: Any, bytes_max: int, payload: bytes
) -> str:
    """The value as JSON. One with a time that Python lacks has its numbers, as `plain` has them,
    and so has one of more than `bytes_max`."""
    stream = BytesIO(payload)
    if len(payload) > bytes_max:
        schema = plain
    try:
        try:
            value = schemaless_reader(stream, schema, None)
        except (ArithmeticError, ValueError):
            stream.seek(0)
            value = schemaless_reader(stream, plain, None)
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    except EOFError as error:
        raise ValueError("it ends before its schema does") from error
    except (LookupError, ArithmeticError, TypeError, struct.error, ValueError) as error:
        raise ValueError(f"it is not Avro of its schema: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise ValueError("it is not Avro of its schema: it is too large or too deep") from error
    left = len(payload) - stream.tell()
    if left:
        raise ValueError(f"it is not Avro of its schema: {left} bytes are left behind it")
    return text


def _check_items(schema: Any, named: dict[str, Any], seen: set[str]) -> None:
    """Raise UnknownSchemaError if an array has items without bytes: a few bytes could then claim
    billions of items, and decoding them would fill the memory."""
    if isinstance(schema, list):
        for branch in schema:
            _check_items(branch, named, seen)
        return
    if isinstance(schema, str):
        if schema in named and schema not in seen:
            seen.add(schema)
            _check_items(named[schema], named, seen)
        return
    for field in schema.get("fields", ()):
        _check_items(field["type"], named, seen)
    for inner in ("items", "values"):
        if inner in schema:
            _check_items(schema[inner], named, seen)
    if "items" in schema and _is_empty(schema["items"], named, set()):
        raise UnknownSchemaError("an array has items without bytes")
    if isinstance(schema.get("type"), dict | list):
        _check_items(schema["type"], named, seen)


def _contains_itself(
    schema: Any, named: dict[str, Any], within: frozenset[str], finite: set[str]
) -> bool:
    """Whether a value of the schema may have any depth: a type refers to one that it is part of.

    `finite` collects the names that are settled, so that each is looked at once.
    """
    if isinstance(schema, str):
        if schema in within:
            return True
        if schema not in named or schema in finite:
            return False
        schema = named[schema]
    name = schema.get("name") if isinstance(schema, dict) else None
    if name is not None:
        within = within | {name}
    if any(_contains_itself(part, named, within, finite) for part in _parts(schema)):
        return True
    if name is not None:
        finite.add(name)
    return False


def _parts(schema: dict[str, Any] | list[Any]) -> list[Any]:
    """The schemas of which a parsed schema consists."""
    if isinstance(schema, list):
        return schema
    parts = [field["type"] for field in schema.get("fields", ())]
    parts += [schema[key] for key in ("items", "values") if key in schema]
    if isinstance(schema.get("type"), dict | list):
        parts.append(schema["type"])
    return parts


def _is_empty(schema: Any, named: dict[str, Any], within: set[str]) -> bool:
    """Whether the values of a schema have no bytes. A record that contains itself counts as empty,
    which ends the recursion: such a schema has no finite values."""
    if isinstance(schema, list):
        return False  # the number of the branch
    if isinstance(schema, str):
        if schema == "null" or schema in within:
            return True
        return schema in named and _is_empty(named[schema], named, {*within, schema})
    kind = schema["type"]
    if kind in ("record", "error"):
        inside = {*within, schema["name"]}
        return all(_is_empty(field["type"], named, inside) for field in schema["fields"])
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if isinstance(kind, dict | list):
        return _is_empty(kind, named, within)
    return bool(kind == "null")


def _plain(value: object) -> str:
    """The text for a value that JSON lacks: bytes in hex; decimals, dates, times and ids as
    texts.
    """
    if isinstance(value, bytes):
        return value.hex()
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else str(isoformat())


def _protobuf_reader(schema: RegisteredSchema, name: SchemaName) -> ValueReader:
    """The reader for a Protobuf schema. Raises UnknownSchemaError if it lacks the message."""
    from google.protobuf.message_factory import GetMessageClass

    from isotherm.spark.tables.protobuf_schema import message_of

    made = GetMessageClass(message_of(schema, name.path))
    return functools.partial(_protobuf_text, made)


def _protobuf_text(kind: Any, payload: bytes) -> str:
    """A message in Protobuf's own JSON mapping: 64-bit numbers are texts, bytes are base64."""
    from google.protobuf.json_format import MessageToJson, SerializeToJsonError
    from google.protobuf.message import DecodeError

    try:
        message = kind.FromString(payload)
        text: str = MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            indent=None,
            ensure_ascii=False,
            descriptor_pool=message.DESCRIPTOR.file.pool,
        )
    except (DecodeError, SerializeToJsonError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not Protobuf of its schema: {error}") from error
    return text
