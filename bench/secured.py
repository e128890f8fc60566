"""What do TLS and logins leave of a broker's speed?

Clients write, and read the tail and the history, over SASL_SSL and over PLAINTEXT, in the same run
and on the same brokers. librdkafka writes with a TLS record for each Kafka record; Kafka's own
producer fills its TLS records. `bench.fetch_client` reads, so that a client's work on records is
not measured. Except for Kafka's producer, connections are made and logged in before the clock
starts. Clients share the processors with the broker: over TLS each byte is work for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bench import fetch_client, load
from bench.cold_consume import TIERED_CONFIG
from bench.harness import Case, Question, main
from bench.load import Metrics
from bench.secured_servers import (
    NEW_SERVERS,
    PLAINTEXT,
    SASL_SSL,
    client_properties,
    java_client_config,
)
from bench.servers import Server
from bench.topics import create, create_filled, delete
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

RECORD_SIZE = 1024
FETCH_BYTES = 1 << 20


class Work(NamedTuple):
    name: str
    size: int
    """Bytes of values in a round."""
    prepare: Callable[..., None]
    measure: Callable[..., Metrics]
    is_written: bool = False


def _prepare_empty(server: Server, *, topic: str, records: int) -> None:
    create(server, topic=topic)


def _prepare_tail(server: Server, *, topic: str, records: int) -> None:
    create_filled(server, topic=topic, records=records, record_size=RECORD_SIZE, compression="none")


def _prepare_history(server: Server, *, topic: str, records: int) -> None:
    create_filled(
        server,
        topic=topic,
        records=records,
        record_size=RECORD_SIZE,
        compression="none",
        config=TIERED_CONFIG,
    )
    wait_until(lambda: fully_tiered(server.log_dir, topic, 1), f"the tiering of topic={topic}")


def _produce(server: Server, *, topic: str, records: int, protocol: str) -> Metrics:
    return load.produce(
        server.listeners[protocol],
        topic,
        records=records,
        record_size=RECORD_SIZE,
        properties=client_properties(server, protocol),
    )


def _produce_by_java(server: Server, *, topic: str, records: int, protocol: str) -> Metrics:
    return load.java_produce(
        server.listeners[protocol],
        topic,
        records=records,
        record_size=RECORD_SIZE,
        config=java_client_config(server, protocol),
    )


def _read(
    server: Server, *, topic: str, records: int, protocol: str, consumers: int = 1
) -> Metrics:
    return fetch_client.run(
        server.listeners[protocol],
        topic,
        records=records // consumers,
        fetch_bytes=FETCH_BYTES,
        consumers=consumers,
        properties=client_properties(server, protocol),
    )


WORKS = (
    Work("produce, acks=all", 400_000_000, _prepare_empty, _produce, is_written=True),
    Work(
        "produce by Java, acks=all", 300_000_000, _prepare_empty, _produce_by_java, is_written=True
    ),
    Work("tail", 800_000_000, _prepare_tail, _read),
    Work("tail, 5 consumers", 1_000_000_000, _prepare_tail, partial(_read, consumers=5)),
    Work("cold", 800_000_000, _prepare_history, _read),
)


def build_cases(scale: float) -> Sequence[Case]:
    """A case for each protocol and each of WORKS."""
    cases = []
    for number, work in enumerate(WORKS):
        records = int(work.size * scale / RECORD_SIZE / load.BATCH_RECORDS) * load.BATCH_RECORDS
        size = records * RECORD_SIZE
        for protocol in (PLAINTEXT, SASL_SSL):
            topic = f"secured-{number}-{protocol}"
            cases.append(
                Case(
                    name=f"{work.name}, {protocol}",
                    parameters={
                        "protocol": protocol,
                        "record_size": RECORD_SIZE,
                        "records": records,
                    },
                    bytes_moved=size,
                    bytes_written=size if work.is_written else 0,
                    prepare=partial(work.prepare, topic=topic, records=records),
                    measure=partial(work.measure, topic=topic, records=records, protocol=protocol),
                    finish=partial(delete, topic=topic),
                )
            )
    return cases


QUESTION = Question(
    "secured", "What do TLS and logins leave of a broker's speed?", build_cases, NEW_SERVERS
)

if __name__ == "__main__":
    main(QUESTION)
