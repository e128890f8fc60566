"""Makes what the first tests of a checkout would wait for: jars, archives of classes, programs.

`python -m tests.support.first_run`, from the checkout. What cannot be made here is left to the
first test that needs it, which says what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from oracle.jars import resolve_iceberg_catalog, resolve_registry_archive, resolve_spark_source_jars
from oracle.kafka import java_command
from suites import librdkafka, sarama
from tests.support import spark_classes

STEPS: tuple[tuple[str, Callable[[], object]], ...] = (
    # It needs the jars, and an archive of their classes.
    ("a command of Kafka's", lambda: java_command("kafka.Kafka")),
    ("Spark's Kafka source", resolve_spark_source_jars),
    ("the archive of Spark's classes", spark_classes.java_options),
    ("the schema registry", resolve_registry_archive),
    ("the REST catalog", resolve_iceberg_catalog),
    # Those suites of tests/interop/test_suites.py that are not nightly.
    ("librdkafka's tests", librdkafka.prepare),
    ("sarama's tests", sarama.prepare),
)


def make(steps: tuple[tuple[str, Callable[[], object]], ...] = STEPS) -> list[str]:
    """Carry out each step. Returns a line for each that has failed."""
    failed = []
    for name, step in steps:
        try:
            step()
        # Its tests fail or skip with the same error, in the place where it is read.
        except Exception as error:
            failed.append(f"not made yet: {name}: {error}")
    return failed


if __name__ == "__main__":
    for line in make():
        print(line, file=sys.stderr)
