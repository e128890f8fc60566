"""The commands of the client side against a broker, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import IsothermError, NotLeaderOrFollowerError, RejectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import NewRecord, build_batch
from isotherm.testing.broker_process import ISOTHERM
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.raw_client import RawClient
from tests.support.raw_header_names import RawName
from tests.support.wait_notices import without_wait_notices

_TIMES_MS = [1_767_225_600_000 + hour * 3_600_000 for hour in range(6)]  # from 2026-01-01T00:00Z


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedBroker:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        invoke(running, "topics", "create", "events", "--partitions", "2",
               "--config", "retention.ms=-1")  # fmt: skip
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number, time_ms in enumerate(_TIMES_MS):
            producer.produce("events", f"v{number}", partition=number % 2, timestamp=time_ms)
        producer.flush()
        yield running


def run(broker: EmbeddedBroker, *arguments: str, lines: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments, "-b", broker.bootstrap_servers], input=lines)


def process(broker: EmbeddedBroker, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *ISOTHERM, *arguments, "-b", broker.bootstrap_servers],
        stderr=subprocess.PIPE,
        **pipes,
    )


def invoke(broker: EmbeddedBroker, *arguments: str) -> list[dict[str, Any]]:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("at", [str(_TIMES_MS[3]), "2026-01-01T03:00", "2026-01-01T04:00+01:00"])
def test_records_are_consumed_from_a_time_on(broker: EmbeddedBroker, at: str) -> None:
    rows = invoke(broker, "consume", "events", "-o", f"@{at}", "--json")
    assert sorted(row["value"] for row in rows) == ["v3", "v4", "v5"]


def test_partition_without_the_offset_is_named_and_the_others_are_read(
    broker: EmbeddedBroker,
) -> None:
    invoke(broker, "topics", "create", "uneven", "--partitions", "2")
    for partition, count in enumerate((100, 5)):
        lines = b"".join(b"%d\n" % number for number in range(count))
        run(broker, "produce", "uneven", "-p", str(partition), lines=lines)
    result = run(broker, "consume", "uneven", "-o", "50")
    assert result.exit_code == 0
    assert sorted(map(int, result.stdout.split())) == list(range(50, 100))
    assert "topic=uneven partition=1 offset=50 log_start=0 end=5" in result.stderr
    assert "partition=0" not in result.stderr


def test_time_after_the_last_record_is_the_end(broker: EmbeddedBroker) -> None:
    assert invoke(broker, "consume", "events", "-o", "@2027-01-01", "--json") == []


def test_header_whose_name_is_not_utf8_has_replacement_characters(broker: EmbeddedBroker) -> None:
    invoke(broker, "topics", "create", "odd", "--partitions", "1", "--config", "retention.ms=-1")
    headers = [(RawName(b"h\xff\xfe"), b"1"), (RawName(b"ok"), None)]
    # The interpreter checks a call's result differently after some calls of the same place.
    sound = [NewRecord(_TIMES_MS[0], None, b"v", [(RawName(b"a"), b"")])] * 100
    records = bytes(
        build_batch([*sound, *[NewRecord(_TIMES_MS[0], None, b"v", headers)] * 100, *sound])
    )
    with RawClient(broker.bootstrap_servers) as client:
        partition = {"index": 0, "records": records.hex()}
        data = [{"name": "odd", "partition_data": [partition]}]
        fields = {"acks": 1, "timeout": 5000, "topic_data": data}
        answer = client.ask(ApiKey.PRODUCE, 9, **fields)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none, answer
    rows = invoke(broker, "consume", "odd", "--json")
    shown = [
        {"key": "h\ufffd\ufffd", "value": "1", "encoding": "utf-8"},
        {"key": "ok", "value": None, "encoding": None},
    ]
    usual = [{"key": "a", "value": "", "encoding": "utf-8"}]
    assert [row["headers"] for row in rows] == [usual] * 100 + [shown] * 100 + [usual] * 100


@pytest.mark.parametrize("offset", ["@noon", "half"])
def test_offset_that_is_none_is_refused(broker: EmbeddedBroker, offset: str) -> None:
    assert run(broker, "consume", "events", "-o", offset).exit_code == 2


def test_topic_is_altered(broker: EmbeddedBroker) -> None:
    invoke(broker, "topics", "create", "grows", "--partitions", "1",
           "--config", "retention.ms=5000", "--config", "segment.ms=7000")  # fmt: skip
    invoke(broker, "topics", "alter", "grows", "--partitions", "3",
           "--config", "retention.ms=6000", "--delete-config", "segment.ms")  # fmt: skip
    shown = run(broker, "topics", "describe", "grows").stdout
    assert "retention.ms=6000" in shown
    assert "segment.ms" not in shown
    assert len(invoke(broker, "topics", "describe", "grows", "--json")) == 3


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("missing", "--config", "retention.ms=1"), IsothermError),
        (("events", "--partitions", "1"), IsothermError),
        (("events",), SystemExit),
    ],
)
def test_alteration_that_cannot_be_is_refused(
    broker: EmbeddedBroker, arguments: tuple[str, ...], kind: type[BaseException]
) -> None:
    result = run(broker, "topics", "alter", *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, kind)


def test_delay_of_a_first_rebalance_is_described_as_set_at_the_start(
    broker: EmbeddedBroker,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(300)
    entry = entries["group.initial.rebalance.delay.ms"]
    assert (entry.value, entry.source) == ("0", ConfigSource.STATIC_BROKER_CONFIG.value)


def test_groups_are_listed_with_their_lag(broker: EmbeddedBroker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("events", 0, 1)], asynchronous=False)
    consumer.close()
    listed = invoke(broker, "groups", "list", "--json")
    assert {"group": "readers", "state": "empty", "type": "classic"} in listed
    (row,) = invoke(broker, "groups", "describe", "readers", "--json")
    assert (row["topic"], row["partition"], row["committed_offset"]) == ("events", 0, 1)
    assert (row["end_offset"], row["lag"], row["client_id"]) == (3, 2, None)


def test_commit_beyond_the_end_is_a_negative_lag(broker: EmbeddedBroker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ahead"})
    consumer.commit(offsets=[TopicPartition("events", 0, 10)], asynchronous=False)
    consumer.close()
    (row,) = invoke(broker, "groups", "describe", "ahead", "--json")
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (10, 3, -7)


def test_lines_around_one_that_is_too_large_are_stored(broker: EmbeddedBroker) -> None:
    invoke(broker, "topics", "create", "large")
    lines = [b"%d" % number for number in range(3000)] + [b"a" * 3_000_000, b"last"]
    result = run(broker, "produce", "large", lines=b"\n".join(lines))
    assert isinstance(result.exception, RejectedError)
    assert "lines=3002 acknowledged=3001 not_acknowledged=1" in str(result.exception)
    assert "not acknowledged line=3001 reason='MSG_SIZE_TOO_LARGE" in result.stderr.replace(
        '"', "'"
    )
    stored = run(broker, "consume", "large").stdout.split()
    assert stored == [*map(str, range(3000)), "last"]


def test_lines_whose_batch_is_too_large_are_stored(broker: EmbeddedBroker) -> None:
    """Kafka's producer splits such a batch."""
    invoke(broker, "topics", "create", "small", "--config", "max.message.bytes=500")
    lines = [b"%d" % number for number in range(300)] + [b"a" * 1000, b"", b"last"]
    result = run(broker, "produce", "small", lines=b"\n".join(lines))
    assert "acknowledged=302 not_acknowledged=1" in str(result.exception)
    assert "not acknowledged line=301 reason='MSG_SIZE_TOO_LARGE" in result.stderr
    stored = run(broker, "consume", "small").stdout.splitlines()
    assert sorted(stored) == sorted([*map(str, range(300)), "", "last"])


@pytest.mark.parametrize(
    ("topic", "arguments", "reason"),
    [
        ("no:topic", (), "TOPIC_EXCEPTION"),
        ("compacted", (), "INVALID_RECORD"),
        ("events", ("-p", "7"), "_UNKNOWN_PARTITION"),
        ("events", ("-K", ":"), "no key separator"),
    ],
)
def test_lines_that_are_refused_are_named(
    broker: EmbeddedBroker, topic: str, arguments: tuple[str, ...], reason: str
) -> None:
    if topic == "compacted":
        invoke(broker, "topics", "create", topic, "--config", "cleanup.policy=compact")
    result = run(broker, "produce", topic, *arguments, lines=b"a\nb\n")
    assert isinstance(result.exception, RejectedError)
    assert "lines=2 acknowledged=0 not_acknowledged=2" in str(result.exception)
    named = re.findall(r"not acknowledged lines?=(\S+) reason=(.*)", result.stderr)
    # Refusals that come a second apart are printed apart.
    assert [place for place, _ in named] in (["1-2"], ["1", "2"])
    assert all(reason in text for _, text in named)


def test_interrupted_production_counts_what_is_acknowledged(broker: EmbeddedBroker) -> None:
    invoke(broker, "topics", "create", "endless")
    with process(
        broker, "produce", "endless", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as producing:
        assert producing.stdin is not None
        sent = 0
        while not _end(broker, "endless"):
            producing.stdin.write(b"%d\n" % sent)
            producing.stdin.flush()
            sent += 1
        producing.send_signal(signal.SIGINT)
        # Standard input stays open: the signal ends the wait for a line.
        assert producing.wait() == 130
        assert producing.stderr is not None
        (line,) = said(producing.stderr.read())
    counts = dict(part.split("=") for part in line.decode().split() if "=" in part)
    assert line.startswith(b"isotherm: interrupted ")
    assert int(counts["acknowledged"]) == _end(broker, "endless")
    assert int(counts["lines"]) == int(counts["acknowledged"]) + int(counts["not_acknowledged"])


def said(stderr: bytes) -> list[bytes]:
    return without_wait_notices(stderr.decode()).encode().splitlines()


def _end(broker: EmbeddedBroker, topic: str) -> int:
    client = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ends"})
    _, end = client.get_watermark_offsets(TopicPartition(topic, 0))
    client.close()
    return int(end)


def test_interrupted_consumption_says_nothing(broker: EmbeddedBroker) -> None:
    with process(broker, "consume", "events", "-f", stdout=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline().startswith(b"v")
        consuming.send_signal(signal.SIGINT)
        assert consuming.wait() == 130
        assert consuming.stderr is not None
        assert said(consuming.stderr.read()) == []


@pytest.mark.parametrize(
    "arguments", ["consume events --json", "topics list", "topics list --json"]
)
def test_reader_of_a_pipe_may_leave(broker: EmbeddedBroker, arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with process(broker, *arguments.split(), stdout=writing) as printing:
        os.close(writing)
        assert printing.stderr is not None
        assert (printing.wait(), said(printing.stderr.read())) == (0, [])


def test_group_that_does_not_exist_is_an_error(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert isinstance(run(broker, "groups", "describe", "nobody").exception, IsothermError)


def test_partition_that_is_offline_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    """It has no leader to ask for its end. The other partition is read."""
    with EmbeddedBroker(tmp_path) as broker:
        invoke(broker, "topics", "create", "half", "--partitions", "2")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for partition in range(2):
            producer.produce("half", f"of {partition}", partition=partition)
        producer.flush()
        committing = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"}
        )
        offsets = [TopicPartition("half", partition, 0) for partition in range(2)]
        committing.commit(offsets=offsets, asynchronous=False)
        committing.close()
    (log,) = (tmp_path / "log" / "half-1").glob("*.log")
    log.write_bytes(bytes(log.stat().st_size))
    with EmbeddedBroker(tmp_path) as broker:
        shown = {}
        for command in (
            *("consume half", "topics describe half", "groups describe readers"),
            "remote segments half",
        ):
            refused = run(broker, *command.split(), "--json")
            assert isinstance(refused.exception, NotLeaderOrFollowerError), refused.output
            assert "no broker leads them topic=half partitions=[1]" in str(refused.exception)
            shown[command] = [json.loads(line) for line in refused.stdout.splitlines()]
        (row,) = invoke(broker, "consume", "half", "--partition", "0", "--json")
    assert row["value"] == "of 0"
    fields = ("leader", "replicas", "earliest_offset", "latest_offset", "records_at_most")
    assert [[row[field] for field in fields] for row in shown["topics describe half"]] == [
        [1, [1], 0, 1, 1],
        [None, [1], None, None, None],
    ]
    assert [
        (row["committed_offset"], row["end_offset"], row["lag"])
        for row in shown["groups describe readers"]
    ] == [(0, 1, 1), (0, None, None)]
    assert [(row["partition"], row["tier"]) for row in shown["remote segments half"]] == [
        (0, "local")
    ]


def test_description_has_leader_replicas_and_isr(broker: EmbeddedBroker) -> None:
    """The oracle is the client's metadata."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    expected = [
        (number, found.leader, list(found.replicas), list(found.isrs))
        for number, found in admin.list_topics("events").topics["events"].partitions.items()
    ]
    rows = invoke(broker, "topics", "describe", "events", "--json")
    shown = [(row["partition"], row["leader"], row["replicas"], row["isr"]) for row in rows]
    assert shown == expected


@pytest.mark.parametrize(
    ("is_tiered", "words"),
    [
        ("false", "the topic is not tiered: remote.storage.enable=false"),
        ("true", "the next copy is due in "),
    ],
)
def test_topic_without_remote_segments_says_why(
    broker: EmbeddedBroker, is_tiered: str, words: str
) -> None:
    name = f"tiered-{is_tiered}"
    config = f"remote.storage.enable={is_tiered}"
    invoke(broker, "topics", "create", name, "--config", config)
    assert words in run(broker, "remote", "segments", name).stdout
    assert invoke(broker, "remote", "segments", name, "--json") == []


def test_singular_of_a_command_is_understood(broker: EmbeddedBroker) -> None:
    for noun in ("topic", "topics"):
        rows = invoke(broker, noun, "list", "--json")
        assert "events" in {row["topic"] for row in rows}
    assert "Did you mean 'topics'" in run(broker, "topcs", "list").output
    assert "--bootstrap-server" in run(broker, "topics", "list", "--bootstrap", "a:1").output
