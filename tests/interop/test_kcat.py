"""kcat, as Debian ships it: librdkafka 2.0, which asks for older versions than confluent-kafka."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat"
)

TIMEOUT_S = 300
_numbers = itertools.count()


@pytest.fixture
def kcat(broker: EmbeddedBroker) -> Callable[..., str]:
    """Runs kcat against the broker; returns its output."""

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["kcat", "-b", broker.bootstrap_servers, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"kcat-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(name, 2, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[name].result(TIMEOUT_S)
    return name


def test_metadata_names_broker_topic_and_partitions(
    kcat: Callable[..., str], topic: str, broker: EmbeddedBroker
) -> None:
    metadata = json.loads(kcat("-L", "-J", "-t", topic))
    assert [each["name"] for each in metadata["brokers"]] == [broker.bootstrap_servers]
    [found] = metadata["topics"]
    assert found["topic"] == topic
    assert [each["partition"] for each in found["partitions"]] == [0, 1]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_come_back(kcat: Callable[..., str], topic: str, codec: str) -> None:
    lines = [f"key-{number}:value-{number} " + "x" * 200 for number in range(200)]
    kcat("-P", "-t", topic, "-p", "1", "-K:", "-z", codec, stdin="\n".join(lines))
    printed = kcat("-C", "-t", topic, "-p", "1", "-o", "beginning", "-e", "-q", "-f", "%o %k:%s\n")
    assert printed.splitlines() == [f"{offset} {line}" for offset, line in enumerate(lines)]


def test_headers_and_tombstones_come_back(kcat: Callable[..., str], topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-Z", "-H", "where=here", stdin="gone:\n")
    printed = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    record = json.loads(printed)
    assert record["key"] == "gone"
    assert record["payload"] is None
    assert record["headers"] == ["where", "here"]


def test_consumer_starts_at_a_relative_offset(kcat: Callable[..., str], topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", stdin="a\nb\nc\nd\n")
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "-2", "-e", "-q").split() == ["c", "d"]
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "1", "-c", "1", "-q").split() == ["b"]


def test_query_finds_offsets_by_time(kcat: Callable[..., str], topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", stdin="a\nb\n")
    for timestamp, offset in (("-2", 0), ("-1", 2), ("0", 0)):
        assert kcat("-Q", "-t", f"{topic}:0:{timestamp}").split() == [
            topic,
            "[0]",
            "offset",
            str(offset),
        ]


def test_group_reads_what_is_new_to_it(kcat: Callable[..., str], topic: str) -> None:
    group = ["-G", f"group-of-{topic}", "-q", "-e", "-X", "auto.offset.reset=earliest", topic]
    kcat("-P", "-t", topic, stdin="a\nb\n")
    assert sorted(kcat(*group).split()) == ["a", "b"]
    kcat("-P", "-t", topic, stdin="c\n")
    assert kcat(*group).split() == ["c"]


def test_producer_with_a_transactional_id_commits_at_the_end(
    kcat: Callable[..., str], topic: str
) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-X", f"transactional.id=of-{topic}", stdin="a\nb\n")
    committed = ["-X", "isolation.level=read_committed"]
    assert kcat("-C", "-t", topic, "-p", "0", "-e", "-q", *committed).split() == ["a", "b"]
