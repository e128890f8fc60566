"""What do injected faults of the store and of the metadata topic lose?

    python -m bench.fault_histories [--seeds 100] [--from 5000] [--keep]

Not a question of speed: simulations of the remote tier (tests.support.tier_simulation), each
from a seed, half of them with faults above the store's client, half with faults on the wire. Every
read is compared with what was appended, everything is read back at the end, and the bucket is
scrubbed against the metadata. `--keep` writes bench/results/fault_histories.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench.harness import RESULTS_DIRECTORY, commit
from tests.support.s3_stub import S3Stub
from tests.support.tier_simulation import Simulation, simulated

SIDES = ("store", "wire")
TEXT = "What do injected faults of the store and of the metadata topic lose?"


def play(side: str, seed: int, directory: Path) -> Simulation:
    if side == "store":
        return simulated(directory, seed)
    with S3Stub() as stub:
        return simulated(directory, seed, stub)


def run(seeds: range) -> dict[str, Any]:
    """`differences` are the seeds of simulations that found lost, leaked or wrong data."""
    sides = {}
    for side in SIDES:
        faults: Counter[tuple[str, str]] = Counter()
        records = reads = runs = 0
        differences = []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as directory:
                try:
                    simulation = play(side, seed, Path(directory) / "p")
                except AssertionError:
                    differences.append(seed)
                    continue
            faults += simulation.faults()
            records += sum(len(partition.values) for partition in simulation.partitions)
            reads += simulation.reads_checked
            runs += len(simulation.threads.trace)
        sides[side] = {
            "records": records,
            "reads_compared": reads,
            "pieces_of_work": runs,
            "faults": sorted([*names, count] for names, count in faults.items()),
            "differences": differences,
        }
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=5000)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(options.first, options.first + options.seeds)
    document = {
        "question": "fault_histories",
        "text": TEXT,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "seeds": [seeds.start, seeds.stop - 1],
        "histories": run(seeds),
    }
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if options.keep:
        (RESULTS_DIRECTORY / "fault_histories.json").write_text(text)


if __name__ == "__main__":
    main()
