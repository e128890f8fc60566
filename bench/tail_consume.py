"""How fast does a broker serve records from its disk?

The topic is not tiered; its segments are in the page cache, like the tail of a busy topic. One,
five and twenty consumers read the same records at the same time; rates are totals.

librdkafka and the Java consumer turn records into messages. With cores for one consumer only, that
takes longer than either broker's work. `bench.fetch_client` only receives the bytes, so that the
broker is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bench import fetch_client, load
from bench.harness import Case, Question, main
from bench.servers import Server
from bench.topics import create_filled, delete

FETCH_BYTES = 1 << 20
"""The Java consumer's default size of a fetch of one partition."""


class Point(NamedTuple):
    client: str
    consumers: int
    record_size: int
    compression: str
    size: int
    """Bytes of values that each consumer reads in a round."""
    is_quick: bool = False


POINTS = (
    Point("librdkafka", 1, 1024, "none", 400_000_000),
    Point("librdkafka", 5, 1024, "none", 100_000_000),
    Point("librdkafka", 1, 1024, "lz4", 400_000_000),
    Point("librdkafka", 1, 100, "none", 100_000_000),
    Point("java", 1, 1024, "none", 400_000_000),
    Point("java", 5, 1024, "none", 200_000_000, is_quick=True),
    Point("java", 20, 1024, "none", 100_000_000),
    Point("fetch client", 1, 1024, "none", 800_000_000, is_quick=True),
    Point("fetch client", 5, 1024, "none", 300_000_000),
    Point("fetch client", 20, 1024, "none", 200_000_000),
)


def fetch(address: str, topic: str, *, records: int, consumers: int) -> load.Metrics:
    return fetch_client.run(
        address, topic, records=records, consumers=consumers, fetch_bytes=FETCH_BYTES
    )


CLIENTS: Mapping[str, Callable[..., load.Metrics]] = {
    "librdkafka": load.consume,
    "java": load.java_consume,
    "fetch client": fetch,
}


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS."""
    cases = []
    for number, point in enumerate(POINTS):
        records = int(point.size * scale / point.record_size / load.BATCH_RECORDS)
        records *= load.BATCH_RECORDS
        topic = f"tail-{number}"
        cases.append(
            Case(
                name=f"{point.client} x{point.consumers} {point.record_size} B {point.compression}",
                parameters={
                    "client": point.client,
                    "consumers": point.consumers,
                    "record_size": point.record_size,
                    "compression": point.compression,
                    "records": records,
                },
                bytes_moved=point.consumers * records * point.record_size,
                prepare=partial(
                    create_filled,
                    topic=topic,
                    records=records,
                    record_size=point.record_size,
                    compression=point.compression,
                ),
                measure=partial(_measure, topic=topic, point=point, records=records),
                finish=partial(delete, topic=topic),
                is_quick=point.is_quick,
            )
        )
    return cases


def _measure(server: Server, *, topic: str, point: Point, records: int) -> load.Metrics:
    consume = CLIENTS[point.client]
    return consume(server.bootstrap_server, topic, records=records, consumers=point.consumers)


QUESTION = Question(
    "tail_consume",
    "How fast does a broker serve records from its disk?",
    build_cases,
)

if __name__ == "__main__":
    main(QUESTION)
