"""`isotherm.spark.register(frame, "flights")`: `SELECT ... FROM isotherm.flights`.

The rows are a global view of Spark's. Its database is the static setting `spark.sql.globalTempDatabase`, which
`isotherm.spark.session()` makes `isotherm`. So a topic has a name in SQL without a catalog, for which Spark
would need a plug-in in Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEWS_DATABASE = "isotherm"
VIEWS_DATABASE_OPTION = "spark.sql.globalTempDatabase"


def register(frame: DataFrame, name: str) -> str:
    """Name a frame, such as one of `topic` or `read`, `isotherm.NAME` in SQL, and return that name as SQL takes it.

    All sessions of the Spark application see it, until it ends. A view of this name is replaced: call
    again for later records. Spark takes names that differ in case for one. Raises ConfigError in a session
    that keeps its global views in another database, as one does that `session()` has not made.
    """
    spark = frame.sparkSession
    database = spark.conf.get(VIEWS_DATABASE_OPTION) or ""
    if database.lower() != VIEWS_DATABASE:
        raise ConfigError(
            f"this session has its global views in another database database={database}"
            f" wanted={VIEWS_DATABASE} hint='isotherm.spark.session(), or a session that starts with"
            f" {VIEWS_DATABASE_OPTION}={VIEWS_DATABASE}; frame.createOrReplaceTempView needs neither'"
        )
    quoted = "`" + name.replace("`", "``") + "`"
    frame.createOrReplaceGlobalTempView(quoted)
    return f"{VIEWS_DATABASE}.{quoted}"
