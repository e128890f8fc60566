"""Measure every question beside Apache Kafka, then write docs/benchmarks.md.

    python -m bench [--quick]

--quick takes a tenth of the time; what it measures is printed and not stored.
"""

from __future__ import annotations

import subprocess
import sys

QUESTIONS = (
    "record_decode",
    "cleaner",
    "produce",
    "latency",
    "tail_consume",
    "cold_consume",
    "cold_store",
    "history_readers",
    "tiering",
    "connections",
    "hostile_clients",
    "start_stop",
    "spark_cold_read",
    "spark_beside_kafka",
    "spark_scale",
    "spark_handover",
    "compact",
)


def main() -> None:
    for question in QUESTIONS:
        # A process of its own: no question measures with another's memory and threads.
        subprocess.run([sys.executable, "-m", f"bench.{question}", *sys.argv[1:]], check=True)
    subprocess.run([sys.executable, "-m", "bench.report"], check=True)


if __name__ == "__main__":
    main()
