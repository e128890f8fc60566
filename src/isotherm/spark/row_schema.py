"""The schema of the source's rows: the columns of Spark's Kafka source, and their Arrow form.

    key binary · value binary · topic string · partition int · offset long · timestamp timestamp ·
    timestampType int (0 create time, 1 log append time) · headers array<struct<key,value>>

All are nullable. `headers` exists on request only, and is NULL (not empty) for a record without
headers. Any subset of the columns in any order is a legal schema.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from isotherm.config.definition import unknown_key
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS_COLUMN = "headers"
COLUMN_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS_COLUMN: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def full_schema(*, include_headers: bool) -> StructType:
    """The schema of a query that does not choose columns."""
    names = [name for name in COLUMN_TYPES if include_headers or name != HEADERS_COLUMN]
    return schema_of(names)


def chosen_schema(columns: Sequence[str], *, include_headers: bool) -> StructType:
    """The schema of a query with these options."""
    return schema_of(columns) if columns else full_schema(include_headers=include_headers)


def schema_of(names: Sequence[str]) -> StructType:
    """The schema with the columns `names` in that order. Raises UnknownConfigError for an unknown
    column, which names the nearest known one."""
    for index, name in enumerate(names):
        if name not in COLUMN_TYPES:
            raise unknown_key(name, COLUMN_TYPES)
        if name in names[:index]:
            raise ConfigError(f"a column is named twice column={name}")
    return StructType([StructField(name, COLUMN_TYPES[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Raise ConfigError unless `schema` is a subset of the source's columns, with their types."""
    if not schema.fields:
        raise ConfigError(f"a schema has at least one column known={','.join(COLUMN_TYPES)}")
    expected = schema_of(schema.fieldNames())
    for field, needed in zip(schema.fields, expected.fields, strict=True):
        if field.dataType != needed.dataType:
            raise ConfigError(
                f"a column cannot have another type column={field.name}"
                f" type={field.dataType.simpleString()} expected={needed.dataType.simpleString()}"
                " hint='read it as it is and cast in the query'"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema with which Spark compares every batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    nullable = StructType([StructField(f.name, f.dataType) for f in schema.fields])
    # PySpark 4.0 and 4.1 always use UTC and have no such parameter.
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
    converted: pa.Schema = to_arrow_schema(nullable, **zone)
    return converted
