"""How fast does a broker take records?

One producer, one partition, no pause between requests. librdkafka is the fast client; Kafka's own
perf tool adds latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from bench import load
from bench.harness import Case, Question, main
from bench.load import Metrics
from bench.servers import Server
from oracle.topics import create_topic, delete_topic

CLIENTS = {"librdkafka": load.produce, "java": load.java_produce}
# client, record size, acks, compression, bytes per round
POINTS = (
    ("librdkafka", 1024, "all", "none", 400_000_000),
    ("librdkafka", 1024, "1", "none", 400_000_000),
    ("librdkafka", 1024, "all", "lz4", 400_000_000),
    ("librdkafka", 100, "all", "none", 100_000_000),
    ("java", 1024, "1", "none", 400_000_000),
)

_topic_numbers = count()


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
        cases.append(
            Case(
                name=f"{client} {record_size} B acks={acks} {compression}",
                parameters=parameters,
                bytes_moved=records * record_size,
                measure=partial(_measure, **parameters),
            )
        )
    return cases


def _measure(server: Server, *, client: str, **parameters: object) -> Metrics:
    topic = f"produce-{next(_topic_numbers)}"
    create_topic(server.bootstrap_server, topic, 1, {})
    try:
        return CLIENTS[client](server.bootstrap_server, topic, **parameters)
    finally:
        delete_topic(server.bootstrap_server, topic)


QUESTION = Question("produce", "How fast does a broker take records?", build_cases)

if __name__ == "__main__":
    main(QUESTION)
