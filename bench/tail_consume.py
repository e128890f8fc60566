"""How fast does a broker hand out records that lie on its disk?

The topic is not tiered; its segments are in the page cache, as the tail of a busy topic's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench import load
from bench.harness import Case, Question, main
from bench.servers import Server
from bench.topics import create_filled, delete

# record size, compression, bytes per round
POINTS = ((1024, "none", 400_000_000), (1024, "lz4", 400_000_000), (100, "none", 100_000_000))


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS."""
    cases = []
    for record_size, compression, size in POINTS:
        records = int(size * scale / record_size / load.BATCH_RECORDS) * load.BATCH_RECORDS
        topic = f"tail-{record_size}-{compression}"
        cases.append(
            Case(
                name=f"librdkafka {record_size} B {compression}",
                parameters={
                    "client": "librdkafka",
                    "record_size": record_size,
                    "compression": compression,
                    "records": records,
                },
                bytes_moved=records * record_size,
                prepare=partial(
                    create_filled,
                    topic=topic,
                    records=records,
                    record_size=record_size,
                    compression=compression,
                ),
                measure=partial(_measure, topic=topic, records=records),
                finish=partial(delete, topic=topic),
            )
        )
    return cases


def _measure(server: Server, *, topic: str, records: int) -> load.Metrics:
    return load.consume(server.bootstrap_server, topic, records=records)


QUESTION = Question(
    "tail_consume",
    "How fast does a broker hand out records that lie on its disk?",
    build_cases,
)

if __name__ == "__main__":
    main(QUESTION)
