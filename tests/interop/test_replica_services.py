"""The read replica of compose.yaml and the unit of systemd start as these files say: with their
command lines and environments, in which addresses and paths alone are replaced."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.consumed_records import consume_all
from tests.support.conditions import wait_until
from tests.support.s3_server import S3Server, find_versitygw

PACKAGING = Path(__file__).parents[2] / "packaging"
ISOTHERM = (sys.executable, "-m", "isotherm.cli.main")
TOPIC, RECORDS = "history", 20
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path_factory.mktemp("s3") / "buckets") as running:
        yield running


@pytest.fixture(scope="module")
def cluster(store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The broker of compose.yaml, with a topic of which all but the last record is tiered."""
    settings = {f"rsm.config.{key}": text for key, text in store.config.items()}
    settings["rsm.config.url"] += "/tier"
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        config = {
            "remote.storage.enable": "true",
            "segment.index.bytes": "12",
            "index.interval.bytes": "1",
            "local.retention.bytes": "1",
        }
        new = NewTopic(TOPIC, 1, 1, config=config)
        admin = AdminClient(client)
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        producer = Producer({**client, "linger.ms": 0})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        log = broker.node.services.replica_manager.find_partition(TOPIC, None, 0).log
        wait_until(lambda: log.local_log_start_offset > RECORDS // 2, "the tiering")
        yield broker


@contextmanager
def service(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], health: str
) -> Iterator[None]:
    """`isotherm` with these arguments, from when the program `health` succeeds."""
    every = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    log = folder / "service.log"

    def is_healthy() -> bool:
        assert process.poll() is None, log.read_text()
        check = [sys.executable, "-c", health]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    with log.open("wb") as output:
        process = subprocess.Popen(
            [*ISOTHERM, *arguments], env=every, cwd=folder, stdout=output, stderr=output
        )
    try:
        wait_until(is_healthy, lambda: log.read_text())
        yield
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def expect_history(server: str) -> None:
    records = consume_all(server, TOPIC)
    assert [each.value for each in records] == [b"%d" % number for number in range(RECORDS)]


def replaced(text: str, places: Mapping[str, str]) -> str:
    for place, here in places.items():
        text = text.replace(place, here)
    return text


def test_replica_of_the_compose_file_serves_the_brokers_history(
    store: S3Server, cluster: EmbeddedBroker, tmp_path: Path
) -> None:
    services: Mapping[str, Any] = yaml.safe_load((PACKAGING / "compose.yaml").read_text())[
        "services"
    ]
    replica, broker = services["replica"], services["broker"]["environment"]
    assert broker["KAFKA_RSM_CONFIG_URL"] in replica["command"]
    (port,) = free_ports(1)
    (volume,) = replica["volumes"]
    acls, _, inside = volume.removesuffix(":ro").partition(":")
    places = {
        "broker:29092": cluster.bootstrap_servers,
        "http://s3:7070": store.config["s3.endpoint.url"],
        inside: str(PACKAGING / acls),
        "/tmp/kernels": str(tmp_path / "kernels"),
        ":9192": f":{port}",
    }
    *program, health = replica["healthcheck"]["test"]
    assert program == ["CMD", "python", "-c"]
    arguments = [replaced(word, places) for word in replica["command"]]
    environment = {name: replaced(text, places) for name, text in replica["environment"].items()}
    with service(tmp_path, arguments, environment, replaced(health, places)):
        expect_history(f"localhost:{port}")


def test_replica_of_the_systemd_unit_serves_the_brokers_history(
    store: S3Server, cluster: EmbeddedBroker, tmp_path: Path
) -> None:
    lines = (PACKAGING / "isotherm-replica.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    (port,) = free_ports(1)
    # What the head of the unit says that its two files have.
    (tmp_path / "client.properties").touch()
    options = ["--listener", f"PLAINTEXT://localhost:{port}"]
    options += ["-o", f"rsm.config.s3.endpoint.url={store.config['s3.endpoint.url']}"]
    options += ["-o", f"rsm.config.s3.region={store.config['s3.region']}"]
    files = {
        "REPLICA_PATH": f"{store.config['url']}/tier",
        "REPLICA_UPSTREAM": cluster.bootstrap_servers,
        "REPLICA_OPTIONS": shlex.join(options),
        "AWS_ACCESS_KEY_ID": store.config["aws.access.key.id"],
        "AWS_SECRET_ACCESS_KEY": store.config["aws.secret.access.key"],
    }
    cache = {"/var/cache/isotherm-replica": str(tmp_path)}
    environment = dict(
        replaced(each, cache).split("=", 1) for each in shlex.split(unit["Environment"])
    )
    program, *words = unit["ExecStart"].split()
    assert Path(program).name == "isotherm"
    arguments: list[str] = []
    for word in words:
        if word.startswith("$") and not word.startswith("${"):
            # systemd splits it into words.
            arguments += shlex.split(files[word[1:]])
        else:
            named = {f"${{{name}}}": text for name, text in files.items()}
            arguments.append(replaced(word, {**named, "%d": str(tmp_path)}))
    health = (
        "from isotherm.client.broker_probe import check_brokers;"
        f" check_brokers({{'bootstrap.servers': 'localhost:{port}'}})"
    )
    with service(tmp_path, arguments, {**files, **environment}, health):
        expect_history(f"localhost:{port}")
