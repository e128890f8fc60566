"""The source that Spark registers.

Beside Isotherm's clients alone it says what to install: an import that fails would keep Spark from
the sources of all other packages.
"""

from isotherm.errors import ConfigError

try:
    from isotherm.spark.source import IsothermDataSource as DefaultSource
except ConfigError as error:
    from pyspark.sql.datasource import DataSource

    _reason = error

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        @classmethod
        def name(cls) -> str:
            return "isotherm"

        def __init__(self, options: dict[str, str]) -> None:
            raise _reason


__all__ = ["DefaultSource"]
