"""`storage format --add-scram` makes the same credentials as kafka-storage.sh from the same
arguments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import CLUSTER_ID, dump_log_segments
from oracle.tools import STORAGE, run_tools_to_status

TIMEOUT_S = 300

# Given salts: otherwise each tool would draw its own.
CREDENTIALS = (
    "SCRAM-SHA-256=[name=alice,password=hers,salt=c2FsdA==]",
    'SCRAM-SHA-512=[name="bob, as it were",iterations=8192,salt="N3E=",password="his"]',
    "SCRAM-SHA-512=[name=bob,iterations=+8192,salt=N3E,password=h=i=s,]",
    "SCRAM-SHA-512=[name=carol,iterations=16384,salt=N3E=,saltedpassword=YCE=]",
)
READABLE = (CREDENTIALS[0], *CREDENTIALS[2:])
UNREADABLE = (
    CREDENTIALS[1],
    "SCRAM-SHA-256",
    "SCRAM-MD5=[name=a,password=b]",
    "SCRAM-SHA-256=name=a,password=b",
    "SCRAM-SHA-256=[name=a]",
    "SCRAM-SHA-256=[password=a]",
    "SCRAM-SHA-256=[name=a,saltedpassword=YCE=]",
    "SCRAM-SHA-256=[name=a,password=b,iterations=4095]",
    "SCRAM-SHA-256=[name=a,password=b,iterations=16385]",
    "SCRAM-SHA-256=[name=a,password=b,iterations=many]",
    "SCRAM-SHA-256=[name=a,password=b,salt=!]",
    "SCRAM-SHA-256=[name=a,password=b,other=c]",
)


def properties(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:9093\n"
        "controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        f"log.dirs={folder / 'log'}\n"
    )
    return path


def command(config: Path, *credentials: str) -> list[str]:
    arguments = [part for credential in credentials for part in ("--add-scram", credential)]
    return ["format", "--cluster-id", CLUSTER_ID, "--config", str(config), *arguments]


def isotherm(config: Path, *credentials: str) -> int:
    return CliRunner().invoke(app, ["storage", *command(config, *credentials)]).exit_code


def dumped(folder: Path) -> list[dict[str, Any]]:
    text = dump_log_segments(
        [folder / "log" / "bootstrap.checkpoint"], "--cluster-metadata-decoder"
    )
    payloads = [line.partition("payload: ")[2] for line in text.splitlines() if "payload: " in line]
    records = map(json.loads, payloads)
    return [
        record["data"] for record in records if record["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
    ]


@pytest.fixture(scope="module")
def kafkas(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that kafka-storage.sh formatted."""
    folder = tmp_path_factory.mktemp("formatted") / "kafka"
    ((status, printed),) = run_tools_to_status([STORAGE, *command(properties(folder), *READABLE)])
    assert status == 0, printed
    return folder


def test_credentials_are_those_of_kafkas_tool(kafkas: Path, tmp_path: Path) -> None:
    assert isotherm(properties(tmp_path / "own"), *READABLE) == 0
    found = dumped(tmp_path / "own")
    assert len(found) == len(READABLE)
    assert found == dumped(kafkas)


def test_the_same_arguments_are_refused(kafka_tools: Path, tmp_path: Path) -> None:
    commands, own = [], []
    for number, each in enumerate(UNREADABLE):
        config = properties(tmp_path / f"kafka-{number}")
        commands.append([STORAGE, *command(config, each)])
        own.append(isotherm(properties(tmp_path / f"own-{number}"), each) == 0)
    theirs = [status == 0 for status, _ in run_tools_to_status(*commands)]
    assert own == theirs == [False] * len(UNREADABLE)


def test_user_that_kafkas_tool_made_logs_in(kafkas: Path) -> None:
    settings = {
        "log.dirs": str(kafkas / "log"),
        "node.id": "1",
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    with EmbeddedBroker(kafkas, settings) as broker:
        client = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "hers",
        }
        assert AdminClient(client).list_topics(timeout=TIMEOUT_S).brokers
