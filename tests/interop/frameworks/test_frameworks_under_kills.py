"""What goes through a framework that promises exactly once arrives once, and in its order, although
the broker is killed again and again while its history moves to the bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

STOP_TIMEOUT_S = 120


def by_key(records: dict[int, list[tuple[str, str]]]) -> dict[str, list[str]]:
    """Values of each key in their order; a key lies in one partition."""
    found: dict[str, list[str]] = {}
    for partition in records.values():
        own: dict[str, list[str]] = defaultdict(list)
        for key, value in partition:
            own[key].append(value)
        assert not own.keys() & found.keys()
        found |= own
    return found


def counted(values: dict[str, list[str]]) -> dict[str, list[str]]:
    """As a program leaves them that adds to each how many of its key there have been."""
    return {
        key: [f"{value} {count}" for count, value in enumerate(each, start=1)]
        for key, each in values.items()
    }


def check_counting(run: Any, pom: str, main: str, *, dies: bool = False) -> None:
    run.create_topics("input", "output")
    state = str(run.folder / "state")
    program = run.start_program(pom, f"{main}.java", main, run.broker.bootstrap_servers, state)
    run.feed_and_kill(run.feed_topic("input"), "output", program if dies else None)
    run.await_committed("output", run.load.records)
    program.end_input(STOP_TIMEOUT_S)
    run.await_tiered("input", "output")
    assert by_key(run.committed("input")) == run.fed()
    assert by_key(run.committed("output")) == counted(run.fed())


def check_copying(run: Any, output: str, stop: Callable[[], None], dies: Any = None) -> None:
    run.feed_and_kill(run.feed_topic("input"), output, dies)
    run.await_committed(output, run.load.records)
    stop()
    run.await_tiered("input", output)
    assert by_key(run.committed("input")) == run.fed()
    assert run.committed(output) == run.committed("input")


def test_kafka_streams_counts_exactly_once(run: Any) -> None:
    check_counting(run, "kafka", "StreamsCount", dies=True)


@pytest.mark.soak
def test_flink_counts_exactly_once(run: Any) -> None:
    check_counting(run, "flink", "FlinkCount")


def test_spring_listener_copies_exactly_once(run: Any) -> None:
    run.create_topics("input", "output")
    program = run.start_program(
        "spring", "SpringCopy.java", "SpringCopy", run.broker.bootstrap_servers
    )
    check_copying(run, "output", lambda: program.end_input(STOP_TIMEOUT_S), program)


@pytest.mark.soak
def test_connect_source_and_sink_are_exact(run: Any, connect: Any) -> None:
    """Lines of a file, by a source into a topic and by a sink into a file again."""
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
            # A member that could not leave is waited for.
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
    check_copying(run, "source.input", lambda: connect.program.terminate(STOP_TIMEOUT_S))
