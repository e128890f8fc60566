"""How fast does a broker serve records that only the remote tier holds?

Closed segments are in a local folder that plays the object store (Kafka: LocalTieredStorage,
Isotherm: the Aiven layout by obstore), and are gone from the broker's disk. Every round reads the
topic from its first offset to its last; the folder is in the page cache on both sides.

librdkafka turns records into messages, which takes longer than either broker's work.
`bench.fetch_client` only receives the bytes, so that the broker is measured. Its cases are fetches
of 10 MiB, fetches of 1 MiB as by the Java consumer's default, and four consumers of the same
history at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench import fetch_client, load
from bench.harness import Case, Question, main
from bench.servers import Server
from bench.topics import create_filled, delete
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

TIERED_CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": str(32 * 1024 * 1024),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
# record size, compression, bytes per round
POINTS = ((1024, "none", 400_000_000), (1024, "lz4", 400_000_000))
MIB = 1 << 20
# fetch size, consumers
FETCHES = ((10 * MIB, 1), (MIB, 1), (MIB, 4))
FETCH_RECORD_SIZE = 1024
FETCH_BYTES_MOVED = 800_000_000


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS and of FETCHES."""
    return [*_librdkafka_cases(scale), *_fetch_cases(scale)]


def _fetch_cases(scale: float) -> Sequence[Case]:
    cases = []
    records = int(FETCH_BYTES_MOVED * scale / FETCH_RECORD_SIZE / load.BATCH_RECORDS)
    records *= load.BATCH_RECORDS
    for fetch_bytes, consumers in FETCHES:
        topic = f"cold-fetch-{fetch_bytes}-{consumers}"
        cases.append(
            Case(
                name=f"fetch client x{consumers}, {fetch_bytes // MIB} MiB a fetch",
                parameters={
                    "client": "fetch_client",
                    "record_size": FETCH_RECORD_SIZE,
                    "compression": "none",
                    "records": records,
                    "segment_bytes": int(TIERED_CONFIG["segment.bytes"]),
                    "fetch_bytes": fetch_bytes,
                    "consumers": consumers,
                },
                bytes_moved=consumers * records * FETCH_RECORD_SIZE,
                is_quick=fetch_bytes > MIB,
                prepare=partial(
                    _prepare,
                    topic=topic,
                    records=records,
                    record_size=FETCH_RECORD_SIZE,
                    compression="none",
                ),
                measure=partial(
                    _fetch, topic=topic, records=records, fetch_bytes=fetch_bytes, count=consumers
                ),
                finish=partial(delete, topic=topic),
            )
        )
    return cases


def _fetch(
    server: Server, *, topic: str, records: int, fetch_bytes: int, count: int
) -> load.Metrics:
    return fetch_client.run(
        server.bootstrap_server, topic, records=records, fetch_bytes=fetch_bytes, consumers=count
    )


def _librdkafka_cases(scale: float) -> Sequence[Case]:
    cases = []
    for record_size, compression, size in POINTS:
        records = int(size * scale / record_size / load.BATCH_RECORDS) * load.BATCH_RECORDS
        topic = f"cold-{record_size}-{compression}"
        cases.append(
            Case(
                name=f"librdkafka {record_size} B {compression}",
                parameters={
                    "client": "librdkafka",
                    "record_size": record_size,
                    "compression": compression,
                    "records": records,
                    "segment_bytes": int(TIERED_CONFIG["segment.bytes"]),
                },
                bytes_moved=records * record_size,
                is_quick=compression == "none",
                prepare=partial(
                    _prepare,
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


def _prepare(
    server: Server, *, topic: str, records: int, record_size: int, compression: str
) -> None:
    create_filled(
        server,
        topic=topic,
        records=records,
        record_size=record_size,
        compression=compression,
        config=TIERED_CONFIG,
    )
    wait_until(lambda: fully_tiered(server.log_dir, topic, 1), f"the tiering of topic={topic}")


def _measure(server: Server, *, topic: str, records: int) -> load.Metrics:
    return load.consume(server.bootstrap_server, topic, records=records)


QUESTION = Question(
    "cold_consume",
    "How fast does a broker serve records that only the remote tier holds?",
    build_cases,
)

if __name__ == "__main__":
    main(QUESTION)
