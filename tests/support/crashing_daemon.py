"""PySpark's daemon with workers that end the driver at a durable write: see crashing_table.

Spark starts it by the setting spark.python.daemon.module. Each worker is a fork of it.
"""

from __future__ import annotations

from pyspark import daemon

from tests.support.crashing_table import install_in_executor

if __name__ == "__main__":
    install_in_executor()
    daemon.manager()
