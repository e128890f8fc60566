"""What does moving closed segments to the remote tier cost, and how fast does it go?

A producer sends by a schedule (bench/open_loop.py) at half of the highest rate that Apache Kafka
accepts: first to a topic that is not tiered, then to a tiered one. The events in the metadata topic
give two times. From COPY_SEGMENT_STARTED to COPY_SEGMENT_FINISHED is the time of a copy. From the
newest record of a segment, which rolled it, to COPY_SEGMENT_FINISHED is the copy lag.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from bench import open_loop
from bench.cold_consume import TIERED_CONFIG
from bench.harness import Case, Question, main
from bench.latency import RECORD_SIZE, kafkas_capacity_mb_per_s
from bench.load import Metrics
from bench.servers import Server
from bench.topics import create, delete
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.wire.events import decode_record, iterate_records
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

SECONDS = 8.0
SHARE = 0.5
# Events of a deleted topic stay for a while: each round has topics of its own.
TOPICS = (f"tiering-{number}" for number in itertools.count())


class Copy(NamedTuple):
    size: int
    rolled_ms: int
    started_ms: int
    finished_ms: int


def copies(server: Server, topic: str) -> Iterator[Copy]:
    """The finished copies of a topic's segments, from the server's metadata topic."""
    started: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    with closing(KafkaMetadataTopic({"bootstrap.servers": server.bootstrap_server})) as metadata:
        for number in range(metadata.partition_count):
            for record in iterate_records(metadata, number):
                _, event = decode_record(record)
                if not isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
                    continue
                if event.segment_id.topic_id_partition.topic != topic:
                    continue
                if event.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                    assert isinstance(event, RemoteLogSegmentMetadata)
                    started[event.segment_id] = event
                elif event.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    first = started[event.segment_id]
                    yield Copy(
                        first.segment_size_in_bytes,
                        first.max_timestamp_ms,
                        first.event_timestamp_ms,
                        event.event_timestamp_ms,
                    )


def build_cases(scale: float) -> Sequence[Case]:
    records_per_s = SHARE * kafkas_capacity_mb_per_s() * 1e6 / RECORD_SIZE
    seconds = max(2.0, SECONDS * scale)
    size = int(2 * records_per_s * RECORD_SIZE * seconds)
    return [
        Case(
            name=f"{SHARE:.0%} of Kafka's capacity",
            parameters={
                "record_size": RECORD_SIZE,
                "records_per_s": round(records_per_s),
                "seconds": seconds,
                "segment_bytes": int(TIERED_CONFIG["segment.bytes"]),
            },
            bytes_moved=size,
            bytes_written=size * 3 // 2,  # half of it is copied to the bucket too
            measure=partial(_measure, records_per_s=records_per_s, seconds=seconds),
        )
    ]


def _measure(server: Server, *, records_per_s: float, seconds: float) -> Metrics:
    def send(topic: str) -> Metrics:
        return open_loop.run(
            server.bootstrap_server,
            topic,
            records_per_s=records_per_s,
            record_size=RECORD_SIZE,
            seconds=seconds,
            receives=False,
        )

    plain, tiered = next(TOPICS), next(TOPICS)
    create(server, topic=plain)
    quiet = send(plain)
    delete(server, topic=plain)
    create(server, topic=tiered, config=TIERED_CONFIG)
    busy = send(tiered)
    wait_until(lambda: fully_tiered(server.log_dir, tiered, 1), f"the tiering of topic={tiered}")
    copied = list(copies(server, tiered))
    delete(server, topic=tiered)
    copying_s = sum(copy.finished_ms - copy.started_ms for copy in copied) / 1000
    behind_s = [(copy.finished_ms - copy.rolled_ms) / 1000 for copy in copied]
    return busy | {
        "quiet_publish_p99_ms": quiet["publish_p99_ms"],
        "publish_p99_times_quiet": busy["publish_p99_ms"] / quiet["publish_p99_ms"],
        "copied_mb_per_s": sum(copy.size for copy in copied) / 1e6 / copying_s,
        "roll_to_finished_p50_s": statistics.median(behind_s),
        "roll_to_finished_max_s": max(behind_s),
    }


QUESTION = Question(
    "tiering",
    "What does moving closed segments to the remote tier cost, and how fast does it go?",
    build_cases,
)

if __name__ == "__main__":
    main(QUESTION)
