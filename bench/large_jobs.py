"""How long do the jobs of `isotherm pipeline` take on a bucket of 10 GB?

Run: python -m bench.large_jobs [--gb 10] [--rounds 2] [--before PYTHON]

As bench.small_jobs, with segments of 16 MiB. With --before the Isotherm of another interpreter
takes turns with this one, job by job; nothing is kept then, nor of another size. The folder for
temporary files needs twice the size for a moment.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.harness import Question, describe, keep
from bench.small_jobs import figures_of, fill, run
from isotherm.testing.embedded_broker import EmbeddedBroker

QUESTION = Question(
    "large_jobs",
    "How long do the jobs of the pipeline take on a bucket of 10 GB?",
    lambda scale: (),
)
GB = 10
SEGMENT_BYTES = 16 << 20
JOBS = ("scrub", "scrub of the manifests", "audit", "sweep")
_SETTINGS = {"remote.log.manager.task.interval.ms": "500"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gb", type=float, default=GB)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", metavar="PYTHON", help="an interpreter with another Isotherm")
    options = parser.parse_args()
    document = describe(QUESTION, options.rounds)
    pythons = {"": sys.executable}
    if options.before:
        pythons = {", before": options.before, **pythons}
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), _SETTINGS) as broker:
        fill(broker, round(options.gb * 1e9 / SEGMENT_BYTES), SEGMENT_BYTES)
        places = {
            "bucket": str(broker.directory / "bucket"),
            "broker": broker.bootstrap_servers,
            "folder": folder,
        }
        rows = []
        for name in JOBS:
            runs: dict[str, list[tuple[float, float]]] = {side: [] for side in pythons}
            for _ in range(options.rounds):
                for side, python in pythons.items():
                    runs[side].append(run(name, places, python))
            rows += [figures_of(name + side, figures) for side, figures in runs.items()]
    is_whole = options.gb == GB and not options.before
    keep({**document, "small_jobs": rows}, is_whole=is_whole)


if __name__ == "__main__":
    main()
