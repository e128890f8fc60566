"""The expression of `erase --where`: what it may be, and the columns that it names.

The proof of an erasure selects once more, so an expression has to select the same records each
time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from isotherm.errors import ConfigError
from isotherm.spark.row_schema import COLUMN_TYPES, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHERE_COLUMNS = ("key", "value", "headers", "timestamp", "partition", "offset")
# What is another value at another time. Spark counts it as deterministic, because it is constant
# within a query. The proof is another query. A name behind a dot is a field's.
_OF_THE_TIME = re.compile(
    r"\b(now|curdate|unix_timestamp|current_timestamp|current_date|current_time|localtimestamp)`?"
    r"\s*\("
    r"|(?<![.`\w])(current_timestamp|current_date|current_time|localtimestamp)\b(?!`)",
    re.IGNORECASE,
)
_DAY_OF_THE_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_SHOWN_TYPE_MAX = 500
"""The longest type in the error for an expression, in characters."""
_TEXTS = re.compile(
    r"(?P<type>\b(?:date|timestamp(?:_ltz|_ntz)?)\s*r?)?"
    r"(?:'(?P<single>(?:[^'\\]|\\.|'')*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\")",
    re.IGNORECASE | re.DOTALL,
)
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


def check_where(
    spark: SparkSession, text: str, value: DataType = COLUMN_TYPES["value"]
) -> frozenset[str]:
    """The columns that an expression names. Raises ConfigError if Spark refuses it, or if it may
    select other records the next time."""
    frame = spark.createDataFrame([], where_schema(WHERE_COLUMNS, value))
    try:
        plan: Any = frame.where(text)._jdf.queryExecution().analyzed()
        # Alone, `offset > 7 AND` is an expression with the alias AND. In parentheses it has none.
        frame.where(f"({text}\n)")
    except PySparkException as error:
        reason = " ".join(str(error).partition("\n\nJVM stacktrace")[0].split())
        raise ConfigError(
            f"Spark refuses the expression of --where reason={reason!r}"
            f" columns={_shown_columns(value)}"
        ) from None
    if not plan.deterministic() or _is_of_the_time(text):
        raise ConfigError(
            "the expression of --where may select other records each time, and the proof selects"
            f" once more value={text!r} hint='write times and numbers as literals'"
        )
    return frozenset(name for name in WHERE_COLUMNS if _is_named(spark, text, name, value))


def _is_of_the_time(text: str) -> bool:
    for match in _TEXTS.finditer(text):
        content = match["single"] or match["double"] or ""
        if match["type"] is not None and _DAY_OF_THE_TIME.match(content):
            return True
    return _OF_THE_TIME.search(_COMMENTS.sub(" ", _TEXTS.sub(" ", text))) is not None


def where_schema(names: Sequence[str], value: DataType) -> StructType:
    """The columns of these names, with the type of decoded values."""
    fields = schema_of(names).fields
    return StructType([StructField("value", value) if f.name == "value" else f for f in fields])


def _shown_columns(value: DataType) -> str:
    if isinstance(value, BinaryType):
        return ",".join(WHERE_COLUMNS)
    shown = value.simpleString()[:_SHOWN_TYPE_MAX]
    return ",".join(f"value:{shown}" if name == "value" else name for name in WHERE_COLUMNS)


def _is_named(spark: SparkSession, text: str, column: str, value: DataType) -> bool:
    # Not a frame that drops the column: Spark would find it below the projection.
    others = where_schema([name for name in WHERE_COLUMNS if name != column], value)
    try:
        spark.createDataFrame([], others).where(text)
    except PySparkException:
        return True
    return False
