"""How fast does a broker take records?

One producer, one partition, no pause between requests. librdkafka is the fast client; Kafka's own
perf tool adds latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench import load
from bench.harness import Case, Question, main
from bench.load import Metrics
from bench.servers import Server
from bench.topics import create, delete

CLIENTS = {"librdkafka": load.produce, "java": load.java_produce}
# client, record size, acks, compression, bytes per round
POINTS = (
    ("librdkafka", 1024, "all", "none", 200_000_000),
    ("librdkafka", 1024, "1", "none", 200_000_000),
    ("librdkafka", 1024, "all", "lz4", 200_000_000),
    ("librdkafka", 100, "all", "none", 60_000_000),
    ("java", 1024, "1", "none", 200_000_000),
)


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS."""
    cases = []
    for client, record_size, acks, compression, size in POINTS:
        records = int(size * scale / record_size / load.BATCH_RECORDS) * load.BATCH_RECORDS
        parameters = {
            "client": client,
            "record_size": record_size,
            "acks": acks,
            "compression": compression,
            "records": records,
        }
        topic = f"produce-{client}-{record_size}-{acks}-{compression}"
        cases.append(
            Case(
                name=f"{client} {record_size} B acks={acks} {compression}",
                parameters=parameters,
                bytes_moved=records * record_size,
                prepare=partial(create, topic=topic),
                measure=partial(_measure, topic=topic, **parameters),
                finish=partial(delete, topic=topic),
            )
        )
    return cases


def _measure(server: Server, *, topic: str, client: str, **parameters: object) -> Metrics:
    return CLIENTS[client](server.bootstrap_server, topic, **parameters)


QUESTION = Question("produce", "How fast does a broker take records?", build_cases)

if __name__ == "__main__":
    main(QUESTION)
