"""Run a suite by hand: see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from suites import kafka_go, librdkafka, librdkafka_kip848, sarama
from suites.results import Outcomes, SuiteUnavailableError, lines_of

# By the folder of the lists.
SUITES = {
    "kafka_go": kafka_go,
    "librdkafka_kip848": librdkafka_kip848,
    "librdkafka_suite": librdkafka,
    "sarama": sarama,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suites", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--broker", choices=("isotherm", "kafka"), default="isotherm")
    parser.add_argument("--log", type=Path, required=True, help="where the suite's output goes")
    parser.add_argument("--tests", nargs="+", help="some of its tests alone")
    options = parser.parse_args()
    try:
        print("\n".join(lines_of(_run(options))))
    except SuiteUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> Outcomes:
    suite = SUITES[options.suite]
    prepared = suite.prepare()
    with (
        tempfile.TemporaryDirectory() as folder,
        suite.broker(options.broker, Path(folder)) as address,
    ):
        return suite.run(prepared, address, options.log.absolute(), options.tests)


if __name__ == "__main__":
    sys.exit(main())
