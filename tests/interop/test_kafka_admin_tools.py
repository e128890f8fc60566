"""Kafka's own command-line tools administer an Isotherm broker, all in one run of a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.servers import IsothermServer
from oracle.tiered_topic import fill_tiered_topic
from oracle.tools import (
    CONFIGS,
    DELETE_RECORDS,
    FEATURES,
    GET_OFFSETS,
    LOG_DIRS,
    TOPICS,
    run_tools,
    run_tools_to_status,
)
from oracle.topics import wait_until

pytestmark = pytest.mark.oracle

RECORDS = 4000
DELETED_BELOW = 1500
TIMES = {
    "earliest": -2,
    "latest": -1,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}


@pytest.fixture(scope="module")
def server(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsothermServer]:
    started = IsothermServer(tmp_path_factory.mktemp("isotherm"))
    started.start()
    try:
        fill_tiered_topic(
            started.bootstrap_server, started.log_dir, "tiered", partitions=1, records=RECORDS
        )
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def printed(server: IsothermServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name of a run -> output of the tool."""
    broker = f"--bootstrap-server={server.bootstrap_server}"
    json_file = tmp_path_factory.mktemp("delete") / "offsets.json"
    partition = {"topic": "tiered", "partition": 0, "offset": DELETED_BELOW}
    json_file.write_text(json.dumps({"partitions": [partition], "version": 1}))

    topic = ["--entity-type=topics", "--entity-name=made"]
    client = ["--entity-type=clients", "--entity-name=greedy"]
    this_broker = ["--entity-type=brokers", "--entity-name=1"]
    commands = {
        "create": [TOPICS, broker, "--create", "--topic=made", "--partitions=2"],
        "grow": [TOPICS, broker, "--alter", "--topic=made", "--partitions=3"],
        "describe": [TOPICS, broker, "--describe", "--topic=made"],
        "list": [TOPICS, broker, "--list"],
        "set": [CONFIGS, broker, *topic, "--alter", "--add-config=retention.ms=7,segment.ms=8"],
        "unset": [CONFIGS, broker, *topic, "--alter", "--delete-config=segment.ms"],
        "topic-config": [CONFIGS, broker, *topic, "--describe"],
        "set-broker": [CONFIGS, broker, *this_broker, "--alter", "--add-config=log.retention.ms=9"],
        "broker-config": [CONFIGS, broker, *this_broker, "--describe"],
        "set-quota": [CONFIGS, broker, *client, "--alter", "--add-config=producer_byte_rate=1024"],
        "quota": [CONFIGS, broker, *client, "--describe"],
        "features": [FEATURES, broker, "describe"],
        "downgrade": [FEATURES, broker, "downgrade", "--feature=transaction.version=1"],
        "features after": [FEATURES, broker, "describe"],
        "upgrade": [FEATURES, broker, "upgrade", "--feature=transaction.version=2"],
        **{
            f"time {time}": [GET_OFFSETS, broker, "--topic=tiered", f"--time={time}"]
            for time in TIMES
        },
        **{
            f"time {number}": [GET_OFFSETS, broker, "--topic=tiered", f"--time={number}"]
            for number in TIMES.values()
        },
        "delete-records": [DELETE_RECORDS, broker, f"--offset-json-file={json_file}"],
        "time after": [GET_OFFSETS, broker, "--topic=tiered", "--time=earliest"],
        "delete": [TOPICS, broker, "--delete", "--topic=made"],
        "list after": [TOPICS, broker, "--list"],
    }
    return dict(zip(commands, run_tools(*commands.values()), strict=True))


def test_topics_are_made_grown_described_and_deleted(printed) -> None:
    assert "Created topic made" in printed["create"]
    assert "PartitionCount: 3" in printed["describe"]
    assert printed["describe"].count("Leader: 1") == 3
    assert {"made", "tiered"} <= set(printed["list"].split())
    assert "made" not in printed["list after"].split()


def test_configs_are_altered_and_described(printed) -> None:
    assert "retention.ms=7" in printed["topic-config"]
    assert "segment.ms=8" not in printed["topic-config"]
    assert "log.retention.ms=9" in printed["broker-config"]
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=9" in printed["broker-config"]


def test_quotas_are_altered_and_described(printed) -> None:
    assert "producer_byte_rate=1024.0" in printed["quota"]


def test_features_are_described(printed) -> None:
    assert "Feature: metadata.version" in printed["features"]


def test_features_are_downgraded_and_upgraded(printed) -> None:
    def level(output: str) -> str:
        (line,) = [each for each in output.splitlines() if "transaction.version" in each]
        return line.partition("FinalizedVersionLevel:")[2].split()[0]

    assert [level(printed[each]) for each in ("features", "features after")] == ["2", "1"]
    assert "transaction.version was upgraded to 2" in printed["upgrade"]


def test_feature_that_does_not_exist_is_refused_by_name(server: IsothermServer) -> None:
    broker = f"--bootstrap-server={server.bootstrap_server}"
    ((status, printed),) = run_tools_to_status([FEATURES, broker, "upgrade", "--feature=no.such=3"])
    assert (status, "feature=no.such" in printed) == (1, True)


def test_log_dirs_are_described(server: IsothermServer) -> None:
    def expected() -> dict[str, dict[str, int]]:
        """The current sizes: segments may still move."""
        return {
            str(server.log_dir): {"tiered-0": size_of_logs(server.log_dir / "tiered-0")},
            f"remote://{server.remote_dir}": {"tiered-0": size_of_logs(server.remote_dir)},
        }

    # The bytes in the bucket are counted by a periodic task.
    wait_until(lambda: described_log_dirs(server) == expected(), "the sizes of the directories")


def described_log_dirs(server: IsothermServer) -> dict[str, dict[str, int]]:
    broker = f"--bootstrap-server={server.bootstrap_server}"
    (output,) = run_tools([LOG_DIRS, broker, "--describe", "--topic-list=tiered"])
    line = next(line for line in output.splitlines() if line.startswith("{"))
    (described,) = json.loads(line)["brokers"]
    return {
        each["logDir"]: {each["partition"]: each["size"] for each in each["partitions"]}
        for each in described["logDirs"]
    }


def size_of_logs(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))


def test_offsets_of_every_special_time_are_found_by_name_and_number(printed, server) -> None:
    found = {
        time: int(printed[f"time {time}"].strip().splitlines()[-1].split(":")[-1]) for time in TIMES
    }
    for time, number in TIMES.items():
        assert printed[f"time {number}"].strip().splitlines()[-1].endswith(f":{found[time]}")
    (local,) = [int(path.name[:20]) for path in (server.log_dir / "tiered-0").glob("*.log")]
    assert local > DELETED_BELOW
    assert found == {
        "earliest": 0,
        "latest": RECORDS,
        "max-timestamp": found["max-timestamp"],
        "earliest-local": local,
        "latest-tiered": local - 1,
        "earliest-pending-upload": local,
    }
    assert 0 <= found["max-timestamp"] < RECORDS


def test_records_are_deleted(printed) -> None:
    assert f"low_watermark: {DELETED_BELOW}" in printed["delete-records"]
    assert printed["time after"].strip().endswith(f":{DELETED_BELOW}")
