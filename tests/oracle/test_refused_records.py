"""Invalid records are reported to their producer as Apache Kafka reports them (KIP-467).

Both brokers get the same raw Produce requests. Their whole answers must be equal, except for the
times in messages.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import CompressionType, NewRecord, TimestampType, build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import KafkaOracle
from oracle.raw_requests import ask, read_answer, request_frame
from oracle.topics import create_topic

VERSION = 9
HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact"}
RECENT = {
    "message.timestamp.before.max.ms": str(HOUR_MS),
    "message.timestamp.after.max.ms": str(HOUR_MS),
}
TOPICS: Mapping[str, dict[str, str]] = {
    "plain": {},
    "compacted": COMPACTED,
    "recent": RECENT,
    "compacted-recent": {**COMPACTED, **RECENT},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted-stamped": {**COMPACTED, "message.timestamp.type": "LogAppendTime"},
    "repacked": {**COMPACTED, "compression.type": "gzip"},
}


class Case(NamedTuple):
    """`without_key`, `early` and `late` are indexes of 100 records."""

    topic: str
    without_key: range = range(0)
    early: range = range(0)
    late: range = range(0)
    codec: CompressionType = CompressionType.NONE
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    def frame(self, now_ms: int) -> bytes:
        def timestamp(index: int) -> int:
            return now_ms + 2 * HOUR_MS * ((index in self.late) - (index in self.early))

        records = [
            NewRecord(timestamp(index), None if index in self.without_key else b"key", b"v" * 7)
            for index in range(100)
        ]
        batch = build_batch(
            records,
            compression=self.codec,
            timestamp_type=self.timestamp_type,
            max_timestamp=now_ms if self.timestamp_type is TimestampType.LOG_APPEND_TIME else None,
        )
        topic = {"name": self.topic, "partition_data": [{"index": 0, "records": batch.hex()}]}
        fields: dict[str, Any] = {"acks": -1, "timeout": 10_000, "topic_data": [topic]}
        return request_frame(ApiKey.PRODUCE, VERSION, fields)


TEN = range(5, 100, 10)
CASES = [
    Case("plain"),
    Case("plain", without_key=TEN),
    Case("plain", late=TEN),
    *(Case("compacted", without_key=TEN, codec=codec) for codec in CompressionType),
    Case("compacted", without_key=range(100)),
    Case("compacted", without_key=range(99, 100)),
    Case("compacted"),
    Case("recent", early=TEN),
    Case("recent", late=TEN, codec=CompressionType.LZ4),
    Case("recent", early=range(1), late=range(99, 100)),
    Case("compacted-recent", without_key=TEN, early=range(4, 8)),
    Case("compacted-recent", without_key=TEN, late=TEN),
    Case("stamped", early=TEN, late=range(1)),
    Case("stamped", timestamp_type=TimestampType.LOG_APPEND_TIME),
    Case("compacted-stamped", without_key=TEN, timestamp_type=TimestampType.LOG_APPEND_TIME),
    Case("repacked", without_key=TEN),
    Case("repacked", without_key=TEN, codec=CompressionType.GZIP),
]


@pytest.fixture(scope="module")
def servers(kafka: KafkaOracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Isotherm and Kafka, with the same topics."""
    with EmbeddedBroker(tmp_path_factory.mktemp("isotherm")) as isotherm:
        both = [isotherm.bootstrap_servers, kafka.bootstrap_server]
        for server in both:
            for name, config in TOPICS.items():
                create_topic(server, name, 1, config)
        yield both


def answered(server: str, case: Case) -> Any:
    payload = ask(server, case.frame(int(time.time() * 1000)))
    assert isinstance(payload, bytes)
    (topic,) = read_answer(ApiKey.PRODUCE, VERSION, payload).responses
    (partition,) = topic.partition_responses
    return partition


def without_times(answer: Any) -> str:
    return re.sub(
        r"-?\b(1\d{12}|9223\d{15})\b",
        "<time>",
        re.sub("log_append_time=[^,]+,.*?, log", "log", repr(answer)),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_records_at_fault_are_named_as_kafka_names_them(servers: list[str], case: Case) -> None:
    ours, theirs = (answered(server, case) for server in servers)
    assert without_times(ours) == without_times(theirs)
    assert bool(ours.record_errors) == (ours.error_code != 0)
