"""An Arrow table as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table's rows, in a DataFrame that the driver holds.

    From a table with an empty chunk PySpark takes the rows before it alone, without an error. Here
    the chunks become one. What a function of mapInArrow or applyInArrow returns may have such
    chunks.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(table.combine_chunks(), from_arrow_schema(table.schema))
