"""Decodes Protobuf values of records to one Arrow column. ptars, a compiled library, reads a batch
at a time. If that fails, the halves of the batch are tried, down to single bad values.

    bool -> bool · string -> string · bytes -> binary · enum -> string, its name
    int32, uint32, int64 and the like -> int64 · uint64, fixed64 -> decimal(20, 0)
    float, double -> double · message -> struct · repeated -> list · map -> map
    google.protobuf.Timestamp -> timestamp · its wrappers -> the wrapped type

If a field was not set, it is null, or has its default if it has no presence. A message without
fields is no column.

The wire message of a message is simpler and reads the same bytes: all single fields have presence,
enums are numbers, and names are generated, so that the reader does not treat a message as a
well-known one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

from isotherm.spark.tables.column_limits import UnfitValueError, check_times, inside
from isotherm.spark.tables.halving import decode_by_halves
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Places, Values
from isotherm.spark.tables.schema_registry import UnknownSchemaError
from isotherm.spark.tables.value_types import ValueType

pc: Any = pyarrow.compute
# The stubs lack types that these take.
_map_of: Any = pa.MapArray.from_arrays
_scalar: Any = pa.scalar

COLUMNS_MAX = 10_000
"""The most columns of a message, nested ones included. Messages that use each other many times
would otherwise grow without bound."""
_NANOS_MAX = 999_999_999
_WHOLE = pa.int64()
_UNSIGNED = pa.decimal128(20, 0)
_F = FieldDescriptor
_COLUMNS: dict[int, Any] = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32, _F.TYPE_INT64), _WHOLE),
    **dict.fromkeys((_F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), _WHOLE),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), _UNSIGNED),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_DOUBLE), pa.float64()),
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
}
_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")


class ProtobufSchemaError(ValueError):
    """The message cannot become a column."""


class ProtobufType(Protocol):
    """A type of a field."""

    @property
    def column(self) -> ValueType:
        """The column's type. None for a message without fields."""

    def declare(self, field: FieldDescriptorProto) -> None:
        """Give a field of a wire message this type."""

    def column_of(self, stored: Any) -> Any:
        """Convert the reader's array of the wire type to the column. Raises ArrowInvalid for values
        that cannot be in a column."""


@dataclass(frozen=True)
class Scalar:
    number: int

    @property
    def column(self) -> ValueType:
        column: ValueType = _COLUMNS[self.number]
        return column

    def declare(self, field: FieldDescriptorProto) -> None:
        field.type = self.number

    def column_of(self, stored: Any) -> Any:
        return stored.cast(self.column)


@dataclass(frozen=True)
class Enum:
    """An enum, by its names. A number without a name becomes its digits."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def column(self) -> ValueType:
        return pa.string()

    def declare(self, field: FieldDescriptorProto) -> None:
        field.type = FieldDescriptorProto.TYPE_INT32

    def column_of(self, stored: Any) -> Any:
        indexes = pc.index_in(stored, value_set=pa.array(self.numbers, pa.int32()), skip_nulls=True)
        named = pa.array(self.names, pa.string()).take(indexes)
        return pc.coalesce(named, stored.cast(pa.string()))


@dataclass(frozen=True)
class Field:
    """A field of a message. `absent` is the column's value if the field was not set."""

    name: str
    number: int
    kind: ProtobufType
    absent: Any = None
    is_repeated: bool = False
    is_required: bool = False
    choice: str | None = None

    @property
    def wire_name(self) -> str:
        return f"f{self.number}"

    @property
    def column(self) -> ValueType:
        inner = self.kind.column
        if not self.is_repeated or inner is None:
            return inner
        if not isinstance(self.kind, MapEntry):
            return pa.list_(inner)
        key, item = (field.column for field in self.kind.fields)
        assert key is not None, "no message is a key"
        return None if item is None else pa.map_(key, item)

    def column_of(self, stored: Any) -> Any:
        if self.is_repeated:
            if isinstance(self.kind, MapEntry):
                return self.kind.map_of(stored, self.column)
            with inside("[]"):
                elements = self.kind.column_of(stored.values)
            return pa.ListArray.from_arrays(
                stored.offsets, elements, type=self.column, mask=stored.is_null()
            )
        column = self.kind.column_of(stored)
        return column if self.absent is None else pc.fill_null(column, self.absent)


@dataclass(frozen=True)
class Message:
    fields: Sequence[Field]
    wire_name: str

    @cached_property
    def column(self) -> ValueType:
        columns = [(field.name, field.column) for field in self.fields]
        fields = [pa.field(name, kind) for name, kind in columns if kind is not None]
        return pa.struct(fields) if fields else None

    def declare(self, field: FieldDescriptorProto) -> None:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = self.wire_name

    def column_of(self, stored: Any) -> Any:
        arrays = [stored.field(field.wire_name) for field in self.fields]
        is_set = stored.is_valid()
        self._check_required(arrays, is_set)
        self._check_choices(arrays, is_set)
        kind = self.column
        if not isinstance(kind, pa.StructType):
            return pa.nulls(len(stored))
        columns = []
        for field, array in zip(self.fields, arrays, strict=True):
            if field.column is not None:
                with inside(field.name):
                    columns.append(field.column_of(array))
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=stored.is_null())

    def _check_required(self, arrays: Sequence[Any], is_set: Any) -> None:
        for field, array in zip(self.fields, arrays, strict=True):
            if field.is_required and pc.any(pc.and_(is_set, array.is_null())).as_py():
                raise pa.ArrowInvalid(f"a required field is missing field={field.name}")

    def _check_choices(self, arrays: Sequence[Any], is_set: Any) -> None:
        """Raise ArrowInvalid if several members of a oneof are set. The last one would count, but
        the reader does not report which it was."""
        counts: dict[str, Any] = {}
        for field, array in zip(self.fields, arrays, strict=True):
            if field.choice is not None:
                there = np.asarray(pc.and_(is_set, array.is_valid())).astype(np.int64)
                counts[field.choice] = counts.get(field.choice, 0) + there
        for choice, count in counts.items():
            if count.max(initial=0) > 1:
                raise pa.ArrowInvalid(f"several fields of one choice are there oneof={choice}")


@dataclass(frozen=True)
class MapEntry(Message):
    """The entry of a map. `column` is the type of an entry; the field's column is a map."""

    def map_of(self, stored: Any, kind: Any) -> Any:
        """The column of a map field. If several entries have the same key, the last one counts. An
        entry without a value has the default, because some serializers leave it out."""
        parts = (stored.keys, _all_set(stored.items))
        with inside("{}"):
            keys, items = (
                field.column_of(array) for field, array in zip(self.fields, parts, strict=True)
            )
        offsets = np.asarray(stored.offsets)
        rows = np.repeat(np.arange(len(stored)), np.diff(offsets))
        entries = pa.table({"row": rows, "key": keys, "at": np.arange(len(rows))})
        last = entries.group_by(["row", "key"]).aggregate([("at", "max")]).column("at_max")
        if len(last) < len(rows):
            places = np.sort(last.to_numpy())
            keys, items = keys.take(places), items.take(places)
            counts = np.bincount(rows[places], minlength=len(stored))
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return _map_of(pa.array(offsets), keys, items, type=kind, mask=stored.is_null())


def _all_set(stored: Any) -> Any:
    """The array with an empty message in the place of each null. Its lists and maps are empty."""
    if not (isinstance(stored, pa.StructArray) and stored.null_count):
        return stored
    parts = [
        pc.coalesce(part, pa.scalar([], part.type)) if _has_elements(part) else part
        for part in stored.flatten()
    ]
    return pa.StructArray.from_arrays(parts, fields=list(stored.type))


def _has_elements(stored: Any) -> bool:
    return bool(pa.types.is_list(stored.type) or pa.types.is_map(stored.type))


@dataclass(frozen=True)
class Timestamp(Message):
    """google.protobuf.Timestamp, cut to microseconds.

    A key `is_compared`, so it must not have more digits.
    """

    is_compared: bool = False

    @property
    def column(self) -> ValueType:
        return pa.timestamp("us", "UTC")

    def column_of(self, stored: Any) -> Any:
        seconds, nanos = (pc.fill_null(part.cast(_WHOLE), 0) for part in stored.flatten())
        # Before the multiplication, which would wrap around without an error.
        check_times(seconds, 1)
        self._check_nanos(np.asarray(nanos))
        microseconds = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000))
        return pc.if_else(stored.is_valid(), microseconds, None).cast(self.column)

    def _check_nanos(self, nanos: npt.NDArray[np.int64]) -> None:
        outside = nanos[(nanos < 0) | (nanos > _NANOS_MAX)]
        if len(outside):
            raise UnfitValueError("a timestamp's nanos are not in a second", f"nanos={outside[0]}")
        if self.is_compared and (nanos % 1_000).any():
            raise UnfitValueError(
                "a key's timestamp has nanoseconds", f"nanos={nanos[nanos % 1_000 > 0][0]}"
            )


@dataclass(frozen=True)
class Wrapper(Message):
    """A wrapper such as google.protobuf.Int64Value. It is null if the message was not set."""

    @property
    def column(self) -> ValueType:
        return self.fields[0].column

    def column_of(self, stored: Any) -> Any:
        column = self.fields[0].column_of(stored.field(self.fields[0].wire_name))
        return pc.if_else(stored.is_valid(), column, _scalar(None, self.column))


_WRAPPER_NAMES = frozenset(f"google.protobuf.{type_name}Value" for type_name in _WRAPPERS)


class Wire:
    """The types of a message and of all messages in it, and the file with their wire messages.

    Raises ProtobufSchemaError for a message that cannot become a column.
    """

    def __init__(self, message: Descriptor, *, is_compared: bool = False) -> None:
        self._is_compared = is_compared
        self.file = FileDescriptorProto(name="wire.proto", package="wire", syntax="proto2")
        self._known: dict[str, Message] = {}
        self._sizes: dict[str, int] = {}
        self._open: list[str] = []
        self.message = self._message(message)

    def _message(self, message: Descriptor) -> Message:
        name = message.full_name
        if name in self._open:
            raise ProtobufSchemaError(f"a message is a part of itself message={name}")
        if name not in self._known:
            self._open.append(name)
            fields = [self._field(field) for field in message.fields]
            self._open.pop()
            inside = (field.message_type for field in message.fields)
            size = 1 + sum(self._sizes[field.full_name] if field else 1 for field in inside)
            if size > COLUMNS_MAX:
                raise ProtobufSchemaError(f"a message has more than {COLUMNS_MAX} columns")
            self._sizes[name] = size
            is_entry = message.GetOptions().map_entry
            wire_name = f".wire.M{len(self._known)}"
            made: Message
            if name == "google.protobuf.Timestamp":
                made = Timestamp(fields, wire_name, self._is_compared)
            elif name in _WRAPPER_NAMES:
                made = Wrapper(fields, wire_name)
            else:
                made = (MapEntry if is_entry else Message)(fields, wire_name)
            self._known[name] = made
            self._declare(made, is_entry=is_entry)
        return self._known[name]

    def _declare(self, made: Message, *, is_entry: bool) -> None:
        wire = DescriptorProto(name=made.wire_name.rpartition(".")[2])
        wire.options.map_entry = is_entry
        for member in made.fields:
            # The fields of a map's entries must keep their names, key and value.
            name = member.name if is_entry else member.wire_name
            label = _F.LABEL_REPEATED if member.is_repeated else _F.LABEL_OPTIONAL
            field = wire.field.add(name=name, number=member.number, label=label)
            member.kind.declare(field)
        self.file.message_type.append(wire)

    def _field(self, field: FieldDescriptor) -> Field:
        kind = self._kind(field)
        is_repeated = field.is_repeated
        choice = field.containing_oneof
        is_of_entry = field.containing_type.GetOptions().map_entry
        has_default = is_of_entry or not field.has_presence
        made = Field(
            field.name,
            field.number,
            kind,
            absent=_default(field) if has_default and not is_repeated else None,
            is_repeated=is_repeated,
            is_required=field.is_required,
            choice=choice.name if choice is not None and len(choice.fields) > 1 else None,
        )
        if is_repeated and made.column is None:
            raise ProtobufSchemaError(f"elements of a list have no fields field={field.full_name}")
        return made

    def _kind(self, field: FieldDescriptor) -> ProtobufType:
        if field.type == _F.TYPE_MESSAGE:
            return self._message(field.message_type)
        if field.type == _F.TYPE_ENUM:
            return _enum(field.enum_type)
        if field.type not in _COLUMNS:
            raise ProtobufSchemaError(f"a group cannot be a column field={field.full_name}")
        return Scalar(field.type)


def _enum(kind: EnumDescriptor) -> Enum:
    names = {value.number: value.name for value in reversed(kind.values)}
    return Enum(tuple(names), tuple(names.values()))


def _default(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return None
    if field.type == _F.TYPE_ENUM:
        return _scalar(field.enum_type.values_by_number[field.default_value].name)
    return _scalar(field.default_value, _COLUMNS[field.type])


# Without this setting ptars panics at a map entry without a value.
_CONFIG = PtarsConfig(map_value_nullable=True)


class ProtobufCodec:
    """Decodes values that are messages of one type. `column` is the column's type, None without
    fields. With `is_compared`, values that differ stay different: those with nanoseconds are dead.

    Raises UnknownSchemaError for a message that cannot become a column.
    """

    def __init__(self, message: Descriptor, *, is_compared: bool = False) -> None:
        try:
            wire = Wire(message, is_compared=is_compared)
        except ProtobufSchemaError as error:
            raise UnknownSchemaError(f"the schema cannot be a column: {error}") from error
        self._type = wire.message
        self.column = self._type.column
        pool = DescriptorPool()
        pool.Add(wire.file)
        plain = pool.FindMessageTypeByName(self._type.wire_name[1:])
        self._reader = HandlerPool([plain.file], _CONFIG).get_for_message(plain)

    def decode(self, payloads: Values) -> DecodedValues:
        """The values as `column`, and those that cannot be decoded. `payloads` has no nulls."""
        return decode_by_halves(payloads, self.column, self._decode_together)

    def _decode_together(self, payloads: Values, places: Places) -> DecodedValues | None:
        try:
            stored = self._reader.array_to_record_batch(payloads).to_struct_array()
            return DecodedValues(self._type.column_of(stored), ())
        except BaseException as error:
            if not isinstance(error, ValueError | pa.ArrowException) and not _is_panic(error):
                raise
            if len(payloads) > 1:
                return None
            is_told = isinstance(error, UnfitValueError)
            reason = str(error) if is_told else f"it is not of its schema: {error}"
            dead = DeadValue(int(places[0]), reason)
            kind = pa.null() if self.column is None else self.column
            return DecodedValues(pa.array([], kind), [dead])


def _is_panic(error: BaseException) -> bool:
    """Whether the error is a panic of compiled code, as for a length beyond the end. No module
    exports its class, so it is found by its name."""
    return type(error).__name__ == "PanicException"
