"""Maps Avro schemas to column types, and to simpler schemas that read the same bytes. Pure.

    boolean -> bool · int, long -> int64 · float, double -> double · string, uuid, enum -> string
    bytes, fixed -> binary · decimal -> decimal · date -> date · timestamp-* -> timestamp
    record -> struct · array -> list · map -> map · [null, T] -> T
    [T, U, ...] -> struct with the fields member0, member1, ..., as Spark's from_avro

All whole numbers are long and all others double, so that a field which grows from int to long keeps
its column. Times of day and durations stay plain numbers. A type without bytes (null, a record
without fields) is no column.

The `wire` of a type is a simpler schema that reads the same bytes: it has no logical types, no
names that a reader may confuse, and each branch of a union in its own record. A reader returns
Arrow arrays of the type `stored`, and `column_of` turns these into the column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute

from isotherm.spark.tables.column_limits import check_times, dates_of, decimals_of, inside
from isotherm.spark.tables.value_types import ValueType, name_reason

pc: Any = pyarrow.compute
# The stubs lack types that these take.
_map_of: Any = pa.MapArray.from_arrays

DECIMAL_DIGITS_MAX = 38
COLUMNS_MAX = 10_000
"""The most columns of a value, as for Protobuf. Records that use each other many times would
otherwise grow without bound."""
_TIMESTAMPS = {
    "timestamp-millis": (1_000, "UTC"),
    "timestamp-micros": (1_000_000, "UTC"),
    "local-timestamp-millis": (1_000, None),
    "local-timestamp-micros": (1_000_000, None),
}
"""The units in a second, and the zone."""


class AvroSchemaError(ValueError):
    """No column can have this schema."""


class AvroType(Protocol):
    """A type of a schema."""

    @property
    def column(self) -> ValueType:
        """The column's type. None if values have no bytes."""

    @property
    def stored(self) -> ValueType: ...

    @property
    def is_vectorized(self) -> bool:
        """Whether Polars can read the type."""

    @property
    def has_bytes(self) -> bool: ...

    def wire(self, names: Iterator[str]) -> Any:
        """The simpler schema. Named types take their names from `names`."""

    def stored_value(self, value: Any) -> Any:
        """Convert a value that fastavro has read with `wire` to one from which pa.array makes
        `stored`.
        """

    def column_of(self, stored: Any) -> Any:
        """Convert an array of type `stored` to the column.

        Raises ArrowInvalid for values that it cannot have.
        """


@dataclass(frozen=True)
class Leaf:
    """A type whose column has the stored values, unchanged."""

    written: str
    stored: ValueType
    is_vectorized: ClassVar[bool] = True
    has_bytes: ClassVar[bool] = True

    @property
    def column(self) -> ValueType:
        return self.stored

    def wire(self, names: Iterator[str]) -> Any:
        return self.written

    def stored_value(self, value: Any) -> Any:
        return value

    def column_of(self, stored: Any) -> Any:
        return stored


@dataclass(frozen=True)
class Null(Leaf):
    is_vectorized: ClassVar[bool] = False
    has_bytes: ClassVar[bool] = False


@dataclass(frozen=True)
class Boolean(Leaf):
    """A byte. It is read as a fixed byte so that values other than 0 and 1 are refused. The readers
    disagree about these: Polars reads them as false, fastavro as true."""

    @property
    def column(self) -> ValueType:
        return pa.bool_()

    def wire(self, names: Iterator[str]) -> Any:
        return {"type": "fixed", "name": next(names), "size": 1}

    def column_of(self, stored: Any) -> Any:
        column = pc.equal(stored, b"\x01")
        if pc.any(pc.and_not(pc.not_equal(stored, b"\x00"), column)).as_py():
            raise pa.ArrowInvalid("a boolean is neither 0 nor 1")
        return column


@dataclass(frozen=True)
class Timestamp(Leaf):
    """A number of units since the epoch."""

    units_of_second: int = 1_000_000
    zone: str | None = None

    @property
    def column(self) -> ValueType:
        return pa.timestamp("us", self.zone)

    def column_of(self, stored: Any) -> Any:
        check_times(stored, self.units_of_second)
        return pc.multiply(stored, 1_000_000 // self.units_of_second).cast(self.column)


@dataclass(frozen=True)
class Date(Leaf):
    """Days since the epoch."""

    @property
    def column(self) -> ValueType:
        return pa.date32()

    def column_of(self, stored: Any) -> Any:
        return dates_of(stored)


@dataclass(frozen=True)
class Enum(Leaf):
    """The index of a symbol."""

    symbols: Sequence[str] = ()

    @property
    def column(self) -> ValueType:
        return pa.string()

    def column_of(self, stored: Any) -> Any:
        symbols = pa.array(self.symbols, pa.string())
        # This also checks that the symbol exists.
        return pa.DictionaryArray.from_arrays(stored, symbols).dictionary_decode()


@dataclass(frozen=True)
class Fixed(Leaf):
    """Bytes of a fixed size."""

    size: int = 0

    def wire(self, names: Iterator[str]) -> Any:
        return {"type": "fixed", "name": next(names), "size": self.size}


@dataclass(frozen=True)
class Decimal:
    """The unscaled number, as `bytes`. It is read as bytes because both readers round or refuse
    numbers in ways of their own."""

    bytes_type: Leaf
    precision: int
    scale: int
    is_vectorized: ClassVar[bool] = True
    has_bytes: ClassVar[bool] = True

    @property
    def stored(self) -> ValueType:
        return self.bytes_type.stored

    @property
    def column(self) -> ValueType:
        return pa.decimal128(self.precision, self.scale)

    def wire(self, names: Iterator[str]) -> Any:
        return self.bytes_type.wire(names)

    def stored_value(self, value: Any) -> Any:
        return value

    def column_of(self, stored: Any) -> Any:
        return decimals_of(stored, self.precision, self.scale)


class Record:
    """Fields in their order. Fields without bytes are left out of `wire`."""

    def __init__(self, fields: Mapping[str, AvroType]) -> None:
        self._fields = {name: kind for name, kind in fields.items() if kind.has_bytes}
        self.has_bytes = bool(self._fields)
        self.is_vectorized = all(kind.is_vectorized for kind in self._fields.values())
        self.stored: ValueType = pa.struct(
            [pa.field(name, _stored(kind)) for name, kind in self._fields.items()]
        )
        self._columns = [
            pa.field(name, kind.column)
            for name, kind in self._fields.items()
            if kind.column is not None
        ]
        self.column: ValueType = pa.struct(self._columns) if self._columns else None

    def wire(self, names: Iterator[str]) -> Any:
        fields = [{"name": name, "type": kind.wire(names)} for name, kind in self._fields.items()]
        return {"type": "record", "name": next(names), "fields": fields}

    def stored_value(self, value: Any) -> Any:
        return {name: kind.stored_value(value[name]) for name, kind in self._fields.items()}

    def column_of(self, stored: Any) -> Any:
        # One `flatten` for all fields: a look-up by name takes time for each field, and so the
        # square of their number in all.
        columns = []
        for (name, kind), child in zip(self._fields.items(), stored.flatten(), strict=True):
            if kind.column is not None:
                with inside(name):
                    columns.append(kind.column_of(child))
        return pa.StructArray.from_arrays(columns, fields=self._columns, mask=stored.is_null())


class Array:
    def __init__(self, items: AvroType) -> None:
        if not items.has_bytes:
            # Otherwise a few bytes could claim any number of items, which would fill the memory.
            raise AvroSchemaError("the items of an array have no bytes")
        self._items = items
        self.has_bytes = True
        self.is_vectorized = items.is_vectorized
        self.stored: ValueType = pa.list_(_stored(items))
        self.column: ValueType = None if items.column is None else pa.list_(items.column)

    def wire(self, names: Iterator[str]) -> Any:
        return {"type": "array", "items": self._items.wire(names)}

    def stored_value(self, value: Any) -> Any:
        return [self._items.stored_value(item) for item in value]

    def column_of(self, stored: Any) -> Any:
        # Even in a slice the offsets count from the start of all values.
        with inside("[]"):
            items = self._items.column_of(stored.values)
        return pa.ListArray.from_arrays(
            stored.offsets, items, type=self.column, mask=stored.is_null()
        )


class Map:
    """A map, whose keys are strings."""

    def __init__(self, values: AvroType) -> None:
        self._values = values
        self.has_bytes = True
        self.is_vectorized = False
        self.stored: ValueType = pa.map_(pa.string(), _stored(values))
        self.column: ValueType = (
            None if values.column is None else pa.map_(pa.string(), values.column)
        )

    def wire(self, names: Iterator[str]) -> Any:
        return {"type": "map", "values": self._values.wire(names)}

    def stored_value(self, value: Any) -> Any:
        return [(key, self._values.stored_value(item)) for key, item in value.items()]

    def column_of(self, stored: Any) -> Any:
        with inside("{}"):
            items = self._values.column_of(stored.items)
        return _map_of(stored.offsets, stored.keys, items, type=self.column, mask=stored.is_null())


class Nullable:
    """[null, T] or [T, null]."""

    has_bytes = True

    def __init__(self, kind: AvroType, *, null_first: bool) -> None:
        self._kind = kind
        self._null_first = null_first
        self.is_vectorized = kind.is_vectorized
        self.stored: ValueType = _stored(kind)
        self.column = kind.column

    def wire(self, names: Iterator[str]) -> Any:
        wire = self._kind.wire(names)
        return ["null", wire] if self._null_first else [wire, "null"]

    def stored_value(self, value: Any) -> Any:
        if isinstance(value, tuple):  # fastavro returns the record's name and its value
            value = value[1]
        return None if value is None else self._kind.stored_value(value)

    def column_of(self, stored: Any) -> Any:
        return self._kind.column_of(stored)


class Union:
    """A union of several types, as a struct with one field for each.

    At most one field is not null.
    """

    has_bytes = True
    is_vectorized = False

    def __init__(self, branches: Sequence[AvroType]) -> None:
        self._branches = branches
        self._members = {
            f"member{number}": kind
            for number, kind in enumerate(b for b in branches if not isinstance(b, Null))
            if kind.stored is not None
        }
        self._record = Record(self._members)
        self.stored: ValueType = self._record.stored
        self.column: ValueType = self._record.column

    def wire(self, names: Iterator[str]) -> Any:
        """The union with each branch in a record of its own, which adds no bytes. So a reader
        cannot confuse the branches."""
        numbers = itertools.count()
        return [
            "null"
            if isinstance(kind, Null)
            else {
                "type": "record",
                "name": f"{next(names)}.member{next(numbers)}",
                "fields": [{"name": "it", "type": kind.wire(names)}],
            }
            for kind in self._branches
        ]

    def stored_value(self, value: Any) -> Any:
        if value is None:
            return None
        name, record = value
        member = name.rpartition(".")[2]
        kind = self._members.get(member)
        return {} if kind is None else {member: kind.stored_value(record["it"])}

    def column_of(self, stored: Any) -> Any:
        return self._record.column_of(stored)


_BYTES = Leaf("bytes", pa.binary())
_PRIMITIVES: dict[str, AvroType] = {
    "null": Null("null", None),
    "boolean": Boolean("", pa.binary()),
    "int": Leaf("long", pa.int64()),
    "long": Leaf("long", pa.int64()),
    "float": Leaf("float", pa.float64()),
    "double": Leaf("double", pa.float64()),
    "bytes": _BYTES,
    "string": Leaf("string", pa.string()),
}


def avro_type(parsed: Any, names: Mapping[str, Any]) -> AvroType:
    """The type of a schema that fastavro has parsed. `names` has the types that it may refer to.

    Raises AvroSchemaError for a type that contains itself, since its column would be infinitely
    deep, and for one with more than COLUMNS_MAX columns.
    """
    if _column_count(parsed, names, {}) > COLUMNS_MAX:
        raise AvroSchemaError(f"it has more than {COLUMNS_MAX} columns")
    return _type_of(parsed, dict(names), frozenset())


def _column_count(schema: Any, names: Mapping[str, Any], counts: dict[str, int]) -> int:
    """The columns of a type, with those inside it. `counts` has those of named types."""
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return 1
        if schema not in counts:
            counts[schema] = 0  # a type inside itself, which is refused later
            counts[schema] = _column_count(names[schema], names, counts)
        return counts[schema]
    if isinstance(schema, list):
        inside = schema
    elif "fields" in schema:
        inside = [field["type"] for field in schema["fields"]]
    else:
        inside = [schema[name] for name in ("items", "values") if name in schema]
    count = 1 + sum(_column_count(part, names, counts) for part in inside)
    if isinstance(schema, dict) and "name" in schema:
        counts[schema["name"]] = count
    return count


def _type_of(schema: Any, names: dict[str, Any], inside: frozenset[str]) -> AvroType:
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in inside:
            raise AvroSchemaError(f"a type is a part of itself type={schema}")
        return _type_of(names[schema], names, inside)
    if isinstance(schema, list):
        return _union([_type_of(branch, names, inside) for branch in schema])
    if "name" in schema:
        names[schema["name"]] = schema
    return _leaf(schema) or _composed(schema, names, inside)


def _leaf(schema: Mapping[str, Any]) -> AvroType | None:
    """The type of a schema without inner types. None if it has inner types, or is a primitive type
    under another name."""
    logical = schema.get("logicalType")
    match schema["type"]:
        case "enum":
            return Enum("long", pa.int64(), tuple(schema["symbols"]))
        case "fixed" | "bytes":
            return _bytes_type(schema)
        case "int" if logical == "date":
            return Date("long", pa.int64())
        case "long" if logical in _TIMESTAMPS:
            return Timestamp("long", pa.int64(), *_TIMESTAMPS[logical])
    return None


def _composed(schema: Mapping[str, Any], names: dict[str, Any], inside: frozenset[str]) -> AvroType:
    match schema["type"]:
        case "record" | "error":
            within = inside | {schema["name"]}
            for field in schema["fields"]:
                reason = name_reason(field["name"])
                if reason is not None:
                    raise AvroSchemaError(reason)
            return Record(
                {
                    field["name"]: _type_of(field["type"], names, within)
                    for field in schema["fields"]
                }
            )
        case "array":
            return Array(_type_of(schema["items"], names, inside))
        case "map":
            return Map(_type_of(schema["values"], names, inside))
        case kind:
            return _type_of(kind, names, inside)


def _bytes_type(schema: Mapping[str, Any]) -> AvroType:
    is_fixed = schema["type"] == "fixed"
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    # As Avro's specification has it, an invalid logical type is ignored: the value is bytes.
    if is_fixed and schema["size"] < 1:
        # As for items without bytes: an array could claim any number of them.
        raise AvroSchemaError(f"a fixed type has no bytes type={schema['name']}")
    plain = Fixed("", pa.binary(), schema["size"]) if is_fixed else _BYTES
    if schema.get("logicalType") != "decimal" or not scale <= precision <= DECIMAL_DIGITS_MAX:
        return plain
    return Decimal(plain, precision, scale)


def _union(branches: list[AvroType]) -> AvroType:
    others = [branch for branch in branches if not isinstance(branch, Null)]
    if len(branches) == 1:
        return Union(branches)  # the number of the branch has bytes
    if len(branches) == 2 and len(others) == 1:
        return Nullable(others[0], null_first=isinstance(branches[0], Null))
    return Union(branches)


def _stored(kind: AvroType) -> pa.DataType:
    """The stored type of a value inside another one. A value without bytes is stored as null."""
    return pa.int64() if kind.stored is None else kind.stored
