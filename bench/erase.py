"""What does it cost to erase a thousand keys from a long history, beside a scrub of the same?

Run: python -m bench.erase [--megabytes 500] [--keys 1000] [--rounds 2] [--quick]

The bucket of `bench.compact`: one topic of 1 KiB records, every key four times at random places, so
that the records to be erased lie in almost every segment. `isotherm pipeline scrub` reads it, and
`isotherm pipeline erase` erases some keys into a copy: it selects, writes the segments again,
reads the written ones back, and reads the copy once more as the proof. Both commands run in one
warm session of two local cores, in turns. CPU is that of all processes, memory the peak of one
Python worker.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from typer.testing import CliRunner

from bench.compact import COPIES_OF_A_KEY, make_bucket, measured
from isotherm.cli.main import app
from isotherm.spark.session import session

ERASED_KEYS = 1000
WARM_UP_KEYS = 100
KEYS_NOT_THERE = 4
"""A history with fewer keys than are to be erased has one of so many of them."""


def command(folder: Path, job: str, *, records: int, keys: int) -> dict[str, float]:
    bucket, target = folder / "bucket", folder / "target"
    arguments = ["pipeline", job, "--path", bucket.as_uri()]
    if job == "erase":
        population = records // COPIES_OF_A_KEY
        if keys > population:
            # The history has a part of them, as of a list of all who have ever left.
            population = KEYS_NOT_THERE * keys
        chosen = random.Random(1).sample(range(population), keys)
        names = folder / "gone.txt"
        names.write_text("".join(f"key-{number:012}\n" for number in chosen))
        arguments += ["-o", "subscribe=history", "--keys", str(names)]
        arguments += ["--to", target.as_uri(), "--run"]
    with measured() as usage:
        started = time.perf_counter()
        result = CliRunner().invoke(app, arguments)
        seconds = time.perf_counter() - started
    if result.exit_code != 0:
        raise SystemExit(f"{job} failed with status {result.exit_code}:\n{result.output}")
    shutil.rmtree(target, ignore_errors=True)
    return {"seconds": seconds, "cpu_s": usage.cpu_s, "worker_mb": usage.worker_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--keys", type=int, default=ERASED_KEYS, help="keys to erase")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    arguments = parser.parse_args()
    size = arguments.megabytes * 1_000_000 // (8 if arguments.quick else 1)
    runs: dict[str, list[dict[str, float]]] = {"scrub": [], "erase": []}
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
        spark = session("isotherm-bench", master="local[2]")
        folder = Path(directory)
        small = folder / "small"
        small.mkdir()
        records = {folder: make_bucket(folder / "bucket", size)}
        records[small] = make_bucket(small / "bucket", 10_000_000)
        for round_number in range((1 if arguments.quick else arguments.rounds) + 1):
            # The first round warms the session up.
            of_round = folder if round_number else small
            keys = arguments.keys if round_number else WARM_UP_KEYS
            for job, figures in runs.items():
                measured = command(of_round, job, records=records[of_round], keys=keys)
                print(
                    job,
                    {name: round(value, 2) for name, value in measured.items()},
                    file=sys.stderr,
                )
                if round_number:
                    figures.append(measured)
        spark.stop()
    print(f"{arguments.keys} keys")
    show(size, runs)


def show(size: int, runs: dict[str, list[dict[str, float]]]) -> None:
    def middle(job: str, name: str) -> float:
        return statistics.median(measured[name] for measured in runs[job])

    for job in runs:
        print(
            f"{job:6} {size / 1e6:6.0f} MB   {middle(job, 'seconds'):7.1f} s"
            f" {size / 1e6 / middle(job, 'seconds'):7.1f} MB/s"
            f" {middle(job, 'cpu_s') / size * 1e9:6.1f} CPU-s/GB"
            f"   worker {middle(job, 'worker_mb'):5.0f} MB"
        )
    for name in ("seconds", "cpu_s"):
        print(f"erase / scrub, {name}: {middle('erase', name) / middle('scrub', name):.2f}")


if __name__ == "__main__":
    main()
