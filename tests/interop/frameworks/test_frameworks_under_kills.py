"""Records pass exactly once and in order through frameworks that promise it, although the broker is
killed repeatedly while its history moves to the bucket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.frameworks.exactness import (
    STOP_TIMEOUT_S,
    check_copied,
    check_counted,
    check_counted_again,
    check_fed,
    copy,
    copy_by_spring,
    count_in_java,
    count_in_python,
)


@pytest.mark.nightly
def test_kafka_streams_counts_exactly_once(run: Any) -> None:
    count_in_java(run, "kafka", "StreamsCount", dies=True)
    check_fed(run)
    check_counted(run)


@pytest.mark.soak
def test_flink_counts_exactly_once(run: Any) -> None:
    count_in_java(run, "flink", "FlinkCount")
    check_fed(run)
    check_counted(run)


@pytest.mark.nightly
def test_spring_listener_copies_exactly_once(run: Any) -> None:
    copy_by_spring(run)
    check_fed(run)
    check_copied(run)


@pytest.mark.soak
def test_connect_source_and_sink_are_exact(run: Any, connect: Any) -> None:
    """A source writes the lines of a file to a topic, and a sink writes them to a file again."""
    run.create_topics("output", partitions=1)
    lines, sunk = run.folder / "lines.txt", run.folder / "sunk"
    lines.touch()
    connect.create(
        "lines",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "exactly.once.support": "required",
            "tasks.max": "1",
            "batch.size": "200",
            "file": str(lines),
            "topic": "output",
        },
    )
    connect.create(
        "sunk",
        {
            "connector.class": "ExactSink",
            "tasks.max": "1",
            "consumer.override.isolation.level": "read_committed",
            # The group waits for a member that was killed before it could leave.
            "consumer.override.session.timeout.ms": "6000",
            "topics": "output",
            "file": str(sunk),
        },
    )
    run.feed_and_kill(run.feed_file(lines), "output")
    run.await_committed("output", run.load.records)
    sunk_lines = sunk.with_name("sunk-0")
    run.await_progress(
        lambda: sunk_lines.exists() and sunk_lines.read_bytes().count(b"\n") >= run.load.records
    )
    connect.program.terminate(STOP_TIMEOUT_S)
    run.await_tiered("output", partitions=1)
    fed = lines.read_text().splitlines()
    assert len(fed) == run.load.records
    assert [value for _, value in run.committed("output")[0]] == fed
    assert [line.split(" ")[1] for line in sunk_lines.read_text().splitlines()] == fed


@pytest.mark.soak
def test_mirror_maker_copies_exactly_once(run: Any, connect: Any) -> None:
    run.create_topics("input", "source.input")
    connect.create(
        "mirror",
        {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "exactly.once.support": "required",
            "tasks.max": "2",
            "source.cluster.alias": "source",
            "target.cluster.alias": "target",
            "source.cluster.bootstrap.servers": run.broker.bootstrap_servers,
            "target.cluster.bootstrap.servers": run.broker.bootstrap_servers,
            "source.consumer.isolation.level": "read_committed",
            "topics": "input",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        },
    )
    copy(run, "source.input", lambda: connect.program.terminate(STOP_TIMEOUT_S))
    check_fed(run)
    check_copied(run, "source.input")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["quix", "faust"])
def test_python_framework_counts_exactly_once(run: Any, name: str) -> None:
    count_in_python(run, name)
    check_fed(run)
    check_counted(run)


@pytest.mark.soak
def test_bytewax_counts_exactly_once_and_writes_at_least_once(run: Any) -> None:
    """Bytewax's sink has no transactions, so values may come twice."""
    count_in_python(run, "bytewax")
    check_fed(run)
    check_counted_again(run)
