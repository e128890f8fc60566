"""Decoders and encoders, compiled once per message class from classes in kio's style.

Kafka's message definitions come as kio's dataclasses. kio's own reader must not read from the
network (docs/decisions: it reserves memory for array lengths that it has not checked). For each
class this module generates and compiles a Python function. It reads adjacent numbers with one
`struct` call, and other fields with a reader of `wire_types`. kio's encoder, a loop over closures,
takes about six times as long for a Metadata response of 100 partitions. Compiling takes about a
millisecond per message class, when it is first used.

For any input a decoder returns an entity or raises ProtocolError. Its memory is bounded by the size
of the input (at worst a small object for every two or three bytes), never by a length in it, and
its recursion by the depth of the class. Compiled functions are pure and may be called from any
thread.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import (
    Buffer,
    read_tag_header,
    read_unsigned_varint,
    skip_tagged_fields,
    spend_elements,
    write_tagged_field,
    write_unsigned_varint,
)
from isotherm.protocol.schema import SchemaField, cached_by_class, schema_fields
from isotherm.protocol.wire_types import (
    FIXED_TYPES,
    WireType,
    array_wire_type,
    leaf_wire_type,
    nullable_struct_wire_type,
    nullable_tagged_struct_wire_type,
)

E = TypeVar("E")

MALFORMED = (IndexError, struct.error, ValueError, OverflowError)
"""The errors of a decoder that is not `guarded` for malformed bytes, besides ProtocolError."""


def guarded(
    decode: Callable[[Buffer, int], tuple[E, int]], subject: str
) -> Callable[[Buffer, int], tuple[E, int]]:
    """Wrap `decode`, so that malformed bytes raise ProtocolError only."""

    def guarded_decode(buffer: Buffer, position: int) -> tuple[E, int]:
        try:
            return decode(buffer, position)
        except MALFORMED as error:
            raise malformed(error, subject) from error

    return guarded_decode


def malformed(error: Exception, subject: str) -> ProtocolError:
    """The error of a message whose decoder raised one of MALFORMED."""
    if isinstance(error, IndexError | struct.error):
        return ProtocolError(f"the bytes end within a message message={subject}")
    return ProtocolError(f"a field has no legal value message={subject}")


@cached_by_class
def decoder(entity_type: type[E]) -> Callable[[Buffer, int], tuple[E, int]]:
    """The decoder of a message class: `(buffer, position) -> (entity, next position)`.

    Byte fields are copied. Fields of kafka_type "records" are memoryviews into `buffer`.
    The decoder raises ProtocolError only. The caller checks whether bytes follow.
    """
    subject = f"{entity_type.__name__} version={getattr(entity_type, '__version__', None)}"
    return guarded(_wire_type(entity_type).read, subject)


@cached_by_class
def encoder(entity_type: type[E]) -> Callable[[E, bytearray], None]:
    """The encoder of a message class: appends the entity to `out`.

    Values outside their field's range are a programming error; `struct` raises its own error.
    """
    return cast("Callable[[E, bytearray], None]", _wire_type(entity_type).write)


@cached_by_class
def _wire_type(entity_type: type[Any]) -> WireType:
    fields = schema_fields(entity_type)
    size_min = sum(_field_size_min(field, entity_type) for field in fields if field.tag is None)
    size_min += 1 if entity_type.__flexible__ else 0
    return WireType(
        _compile_decoder(entity_type, fields),
        _compile_encoder(entity_type, fields),
        # At least 1: the received bytes must bound an array of messages without fields, too.
        max(1, size_min),
    )


def _field_wire_type(field: SchemaField, entity_type: type[Any]) -> WireType:
    flexible = entity_type.__flexible__
    item_nullable = field.is_nullable and not field.is_array
    if field.entity_type is None:
        assert field.kafka_type is not None
        wire_type = leaf_wire_type(field.kafka_type, flexible=flexible, nullable=item_nullable)
    else:
        wire_type = _wire_type(field.entity_type)
        if item_nullable and field.tag is not None:
            wire_type = nullable_tagged_struct_wire_type(wire_type)
        elif item_nullable:
            wire_type = nullable_struct_wire_type(wire_type)
    if field.is_array:
        return array_wire_type(wire_type, flexible=flexible, nullable=field.is_nullable)
    return wire_type


def _field_size_min(field: SchemaField, entity_type: type[Any]) -> int:
    return _field_wire_type(field, entity_type).size_min


def _is_fixed(field: SchemaField) -> bool:
    return field.kafka_type in FIXED_TYPES and not field.is_array


def _untagged_runs(fields: Sequence[SchemaField]) -> Iterator[tuple[bool, list[SchemaField]]]:
    """Adjacent fields, as (whether all are plain numbers, fields)."""
    untagged = [field for field in fields if field.tag is None]
    for is_fixed, run in itertools.groupby(untagged, _is_fixed):
        yield is_fixed, list(run)


def _run_layout(run: Sequence[SchemaField]) -> struct.Struct:
    return struct.Struct(">" + "".join(FIXED_TYPES[str(field.kafka_type)].code for field in run))


class _FunctionSource:
    """The source lines of a function, and the objects that it refers to."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"def {signature}:"]
        self._namespace: dict[str, Any] = {}

    def line(self, text: str, indent: int = 1) -> None:
        self._lines.append("    " * indent + text)

    def bind(self, value: Any) -> str:
        """Give `value` a name within the function."""
        name = f"bound_{len(self._namespace)}"
        self._namespace[name] = value
        return name

    def compile(self, function_name: str) -> Callable[..., Any]:
        # The source consists of dataclass field names only. No input reaches it.
        exec("\n".join(self._lines), self._namespace)  # noqa: S102
        return cast("Callable[..., Any]", self._namespace[function_name])


def _compile_decoder(entity_type: type[Any], fields: Sequence[SchemaField]) -> Callable[..., Any]:
    source = _FunctionSource("decode(buffer, position)")
    for is_fixed, run in _untagged_runs(fields):
        if is_fixed:
            _add_fixed_run_decoding(source, run)
            continue
        for field in run:
            read = source.bind(_field_wire_type(field, entity_type).read)
            source.line(f"v_{field.name}, position = {read}(buffer, position)")
    if entity_type.__flexible__:
        _add_tagged_decoding(source, entity_type, [f for f in fields if f.tag is not None])
    arguments = ", ".join(f"{field.name}=v_{field.name}" for field in fields)
    source.line(f"return {source.bind(entity_type)}({arguments}), position")
    return source.compile("decode")


def _add_fixed_run_decoding(source: _FunctionSource, run: Sequence[SchemaField]) -> None:
    layout = _run_layout(run)
    names = ", ".join(f"v_{field.name}" for field in run)
    source.line(f"{names}, = {source.bind(layout.unpack_from)}(buffer, position)")
    source.line(f"position += {layout.size}")
    for field in run:
        from_number = FIXED_TYPES[str(field.kafka_type)].from_number
        if from_number is not None:
            source.line(f"v_{field.name} = {source.bind(from_number)}(v_{field.name})")


def _add_tagged_decoding(
    source: _FunctionSource, entity_type: type[Any], tagged: Sequence[SchemaField]
) -> None:
    if not tagged:
        skip = source.bind(skip_tagged_fields)
        source.line(f"position = {skip}(buffer, position) if buffer[position] else position + 1")
        return
    for field in tagged:
        source.line(f"v_{field.name} = {source.bind(field.default)}")
    read_count, read_header = source.bind(read_unsigned_varint), source.bind(read_tag_header)
    source.line(f"tag_count, position = {read_count}(buffer, position)")
    # Unlike array lengths, a count of tags is not bounded by a minimum size per item.
    source.line(f"{source.bind(spend_elements)}(tag_count)")
    source.line("for _ in range(tag_count):")
    source.line(f"tag, position, end = {read_header}(buffer, position)", 2)
    for field in tagged:
        read = source.bind(_field_wire_type(field, entity_type).read)
        source.line(f"if tag == {field.tag}:", 2)
        source.line(f"v_{field.name}, position = {read}(buffer, position)", 3)
        source.line(f"if position != end: {source.bind(_raise_tag_size)}(tag, position, end)", 3)
    source.line("position = end", 2)


def _raise_tag_size(tag: int, position: int, end: int) -> None:
    raise ProtocolError(
        f"a tagged field has another size than it says tag={tag} position={position} end={end}"
    )


def _compile_encoder(entity_type: type[Any], fields: Sequence[SchemaField]) -> Callable[..., Any]:
    source = _FunctionSource("encode(entity, out)")
    for is_fixed, run in _untagged_runs(fields):
        if is_fixed:
            values = ", ".join(_number_expression(source, field) for field in run)
            source.line(f"out += {source.bind(_run_layout(run).pack)}({values})")
            continue
        for field in run:
            write = source.bind(_field_wire_type(field, entity_type).write)
            source.line(f"{write}(entity.{field.name}, out)")
    if entity_type.__flexible__:
        _add_tagged_encoding(source, entity_type, [f for f in fields if f.tag is not None])
    source.line("return")
    return source.compile("encode")


def _number_expression(source: _FunctionSource, field: SchemaField) -> str:
    to_number = FIXED_TYPES[str(field.kafka_type)].to_number
    value = f"entity.{field.name}"
    return value if to_number is None else f"{source.bind(to_number)}({value})"


def _add_tagged_encoding(
    source: _FunctionSource, entity_type: type[Any], tagged: Sequence[SchemaField]
) -> None:
    if not tagged:
        source.line("out.append(0)")
        return
    source.line("tagged = bytearray()")
    source.line("tag_count = 0")
    write_tagged = source.bind(write_tagged_field)
    for field in tagged:
        write = source.bind(_field_wire_type(field, entity_type).write)
        source.line(f"if entity.{field.name} != {source.bind(field.default)}:")
        source.line("tag_count += 1", 2)
        source.line(f"{write_tagged}({field.tag}, {write}, entity.{field.name}, tagged)", 2)
    source.line(f"{source.bind(write_unsigned_varint)}(tag_count, out)")
    source.line("out += tagged")
