"""`isotherm.spark.register(frame, "flights")`: `SELECT ... FROM isotherm.flights`.

The frame becomes a global temporary view of Spark. The database of these views is the static
setting `spark.sql.globalTempDatabase`, which `isotherm.spark.session()` sets to `isotherm`. So a
topic has a name in SQL without a catalog, for which Spark would need a plug-in in Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEWS_DATABASE = "isotherm"
VIEWS_DATABASE_OPTION = "spark.sql.globalTempDatabase"


def register(frame: DataFrame, name: str) -> str:
    """Register a frame, such as that of `topic` or `read`, as `isotherm.NAME`, and return the name
    in SQL's form.

    All sessions of the Spark application see the view until the application ends. A view of this
    name is replaced, so a second call shows later records. Spark ignores the case of names. Raises
    ConfigError if the session has another database for global views, because `session()` did not
    create it.
    """
    spark = frame.sparkSession
    database = spark.conf.get(VIEWS_DATABASE_OPTION) or ""
    if database.lower() != VIEWS_DATABASE:
        raise ConfigError(
            f"this session has its global views in another database database={database}"
            f" wanted={VIEWS_DATABASE} hint='isotherm.spark.session(), or a session that starts"
            f" with {VIEWS_DATABASE_OPTION}={VIEWS_DATABASE}; frame.createOrReplaceTempView needs"
            " neither'"
        )
    quoted = "`" + name.replace("`", "``") + "`"
    frame.createOrReplaceGlobalTempView(quoted)
    return f"{VIEWS_DATABASE}.{quoted}"
