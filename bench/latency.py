"""How long does a record take from a producer to a consumer?

One producer sends to one partition with acks=all, by a schedule, and one consumer reads. The rates
are shares of the highest that Apache Kafka accepts (librdkafka, the same records, measured by
bench/produce.py). bench/open_loop.py defines the latencies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from bench import open_loop
from bench.harness import LATEST_DIRECTORY, RESULTS_DIRECTORY, Case, Question, main
from bench.load import Metrics
from bench.servers import Server
from bench.topics import create, delete

RECORD_SIZE = 1024
SECONDS = 8.0
SHARES = (0.1, 0.5)
CAPACITY_CASE = "librdkafka 1024 B acks=all none"
TOPIC = "latency"


def kafkas_capacity_mb_per_s() -> float:
    """The produce rate of Kafka that bench/produce.py measured last on this machine, else the
    stored one.
    """
    for directory in (LATEST_DIRECTORY, RESULTS_DIRECTORY):
        path = directory / "produce.json"
        results = json.loads(path.read_text())["results"] if path.exists() else []
        for result in results:
            if result["case"] == CAPACITY_CASE and "kafka" in result["sides"]:
                capacity: float = result["sides"]["kafka"]["mb_per_s"]["median"]
                return capacity
    raise SystemExit("run python -m bench.produce first: this takes shares of Kafka's capacity")


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of SHARES."""
    capacity = kafkas_capacity_mb_per_s()
    seconds = max(2.0, SECONDS * scale)
    cases = []
    for share in SHARES:
        records_per_s = share * capacity * 1e6 / RECORD_SIZE
        size = int(records_per_s * RECORD_SIZE * seconds)
        cases.append(
            Case(
                name=f"{share:.0%} of Kafka's capacity",
                parameters={
                    "record_size": RECORD_SIZE,
                    "records_per_s": round(records_per_s),
                    "seconds": seconds,
                },
                bytes_moved=size,
                bytes_written=size,
                is_quick=share == max(SHARES),
                prepare=partial(create, topic=TOPIC),
                measure=partial(_measure, records_per_s=records_per_s, seconds=seconds),
                finish=partial(delete, topic=TOPIC),
            )
        )
    return cases


def _measure(server: Server, *, records_per_s: float, seconds: float) -> Metrics:
    return open_loop.run(
        server.bootstrap_server,
        TOPIC,
        records_per_s=records_per_s,
        record_size=RECORD_SIZE,
        seconds=seconds,
    )


QUESTION = Question(
    "latency", "How long does a record take from a producer to a consumer?", build_cases
)

if __name__ == "__main__":
    main(QUESTION)
