"""How fast does a broker accept produced records?

One producer sends without pauses. librdkafka is the fast client; Kafka's own perf tool adds
latencies. The base case has 1 KiB records, acks=all, one partition and no compression. Each other
case changes one of client, record size, acks, compression and partitions. "batches" are prebuilt
ones of a client that does next to nothing (bench/produce_client.py): there the broker is the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from bench import load, produce_client
from bench.harness import Case, Question, main
from bench.load import Metrics
from bench.servers import Server
from bench.topics import create, delete

CLIENTS = {"librdkafka": load.produce, "java": load.java_produce}


class Point(NamedTuple):
    client: str
    record_size: int
    acks: str
    compression: str
    partitions: int
    size: int
    """Bytes of values in a round."""
    is_quick: bool = False

    @property
    def name(self) -> str:
        name = f"{self.client} {self.record_size} B acks={self.acks} {self.compression}"
        return name if self.partitions == 1 else f"{name} {self.partitions} partitions"


POINTS = (
    Point("librdkafka", 1024, "all", "none", 1, 400_000_000, is_quick=True),
    Point("librdkafka", 1024, "1", "none", 1, 400_000_000),
    Point("librdkafka", 1024, "all", "lz4", 1, 400_000_000),
    Point("librdkafka", 100, "all", "none", 1, 100_000_000, is_quick=True),
    Point("librdkafka", 10_240, "all", "none", 1, 400_000_000, is_quick=True),
    Point("librdkafka", 1024, "all", "none", 100, 400_000_000),
    Point("librdkafka", 100, "1", "lz4", 100, 100_000_000),
    Point("java", 1024, "all", "none", 1, 300_000_000),
    Point("java", 1024, "1", "lz4", 1, 300_000_000),
    Point("java", 100, "all", "none", 1, 60_000_000),
    Point("java", 10_240, "all", "none", 1, 400_000_000),
)


class BatchPoint(NamedTuple):
    batch_size: int
    connections: int
    size: int
    """Bytes of batches in a round."""
    is_quick: bool = False

    @property
    def name(self) -> str:
        return f"batches of {self.batch_size} B x{self.connections}"


BATCH_POINTS = (
    BatchPoint(16_384, 1, 300_000_000),
    BatchPoint(16_384, 8, 300_000_000),
    BatchPoint(65_536, 1, 600_000_000),
    BatchPoint(65_536, 8, 600_000_000, is_quick=True),
    BatchPoint(1_000_000, 4, 1_000_000_000),
)


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS and of BATCH_POINTS."""
    return [*_client_cases(scale), *_batch_cases(scale)]


def _batch_cases(scale: float) -> Iterator[Case]:
    for point in BATCH_POINTS:
        batch_count = int(point.size * scale / point.batch_size / point.connections)
        topic = f"batches-{point.batch_size}-{point.connections}"
        moved = batch_count * point.connections * point.batch_size
        yield Case(
            name=point.name,
            parameters={"batch_size": point.batch_size, "connections": point.connections},
            bytes_moved=moved,
            bytes_written=moved,
            prepare=partial(create, topic=topic, partitions=point.connections),
            measure=partial(
                _measure_batches,
                topic=topic,
                batch_count=batch_count,
                batch_size=point.batch_size,
                connections=point.connections,
            ),
            finish=partial(delete, topic=topic),
            is_quick=point.is_quick,
        )


def _measure_batches(server: Server, *, topic: str, **sizes: int) -> Metrics:
    return produce_client.run(server.bootstrap_server, topic, **sizes)


def _client_cases(scale: float) -> Sequence[Case]:
    cases = []
    for point in POINTS:
        records = int(point.size * scale / point.record_size / load.BATCH_RECORDS)
        records *= load.BATCH_RECORDS
        parameters = {
            "client": point.client,
            "record_size": point.record_size,
            "acks": point.acks,
            "compression": point.compression,
            "partitions": point.partitions,
            "records": records,
        }
        topic = "produce-" + "-".join(str(value) for value in parameters.values())
        cases.append(
            Case(
                name=point.name,
                parameters=parameters,
                bytes_moved=records * point.record_size,
                bytes_written=records * point.record_size,
                prepare=partial(create, topic=topic, partitions=point.partitions),
                measure=partial(_measure, topic=topic, **parameters),
                finish=partial(delete, topic=topic),
                is_quick=point.is_quick,
            )
        )
    return cases


def _measure(server: Server, *, topic: str, client: str, **parameters: object) -> Metrics:
    if client == "java":  # it spreads its records by itself
        parameters.pop("partitions")
    return CLIENTS[client](server.bootstrap_server, topic, **parameters)


QUESTION = Question("produce", "How fast does a broker accept produced records?", build_cases)

if __name__ == "__main__":
    main(QUESTION)
