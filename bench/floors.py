"""Fail if a ratio to Apache Kafka has fallen below its floor.

    python -m bench.floors              of the stored results
    python -m bench.floors --latest     of what was measured last, such as by `python -m bench
                                        --quick`

floors.toml has the floors: reached ratios, never times, each minus a margin for the noise of a
shared machine. Floors of questions that were not measured are skipped, and printed as skipped. A
floor without a matching case in a measured question is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path

from bench.harness import LATEST_DIRECTORY, RESULTS_DIRECTORY
from bench.ratios import matching, ratios_of
from bench.targets import Bound

FLOORS = Path(__file__).with_name("floors.toml")


def read_floors() -> list[Bound]:
    return [Bound(**entry) for entry in tomllib.loads(FLOORS.read_text())["floor"]]


def check(directory: Path, floors: list[Bound]) -> tuple[list[str], list[str]]:
    """The ratios below their floors, and all checked ratios, as lines to print."""
    fallen, held = [], []
    for floor in floors:
        path = directory / f"{floor.question}.json"
        name = f"{floor.question}, {floor.case}, {floor.metric}"
        if not path.exists():
            held.append(f"not measured: {name}")
            continue
        ratios = matching(ratios_of(json.loads(path.read_text())), floor.case, floor.metric)
        if not ratios:
            fallen.append(f"no such case: {name}")
        for ratio in ratios:
            line = (
                f"{floor.question}, {ratio.case}, {ratio.metric}: {ratio.value:.2f}, floor {floor}"
            )
            if floor.is_met_by(ratio.value):
                held.append(f"holds: {line}")
            else:
                fallen.append(f"FALLEN: {line}")
    return fallen, held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latest", action="store_true", help="of what was measured last")
    latest = parser.parse_args().latest
    fallen, held = check(LATEST_DIRECTORY if latest else RESULTS_DIRECTORY, read_floors())
    print("\n".join([*held, *fallen]), file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
