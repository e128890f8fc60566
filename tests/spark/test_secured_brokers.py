"""The source over a broker with TLS and a login, and a bucket with a certificate of a private
authority: history and tail are read, and the password leaks nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import ConfigError, RemoteStorageError
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata.remote_metadata_log import TopicMetadataLog
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.tail import consumer_properties
from isotherm.testing.embedded_broker import TIERED_TOPIC
from tests.support.certificates import issue
from tests.support.conditions import wait_until
from tests.support.s3_server import SECRET_KEY, S3Server, find_versitygw
from tests.support.secured_broker import (
    MUTUAL,
    SECRET,
    TIMEOUT_S,
    SecuredBroker,
    jaas,
    write_properties,
)
from tests.support.spark_classes import java_options

COUNT = 3000
WRONG = "wr0ng-sesame-7731"
SCRIPT = Path(__file__).with_name("secured_reading.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A bucket on a server that requires its access key and has a certificate that no system
    trusts.
    """
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    folder = tmp_path_factory.mktemp("secured-bucket")
    authority = issue("Bucket authority")
    key = issue("bucket", authority).write_pem(folder / "bucket.pem")
    (folder / "authority.pem").write_bytes(authority.certificate_pem)
    with S3Server(binary, folder / "buckets", certificate=key) as server:
        yield server.config | {"ca.certificates.path": str(folder / "authority.pem")}


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, bucket: dict[str, str]
) -> Iterator[SecuredBroker]:
    settings = {f"rsm.config.{name}": text for name, text in bucket.items()}
    with SecuredBroker(tmp_path_factory.mktemp("secured"), settings) as running:
        _fill(running)
        yield running


def _fill(running: SecuredBroker) -> None:
    client = librdkafka_properties(running.client(MUTUAL))
    topic = NewTopic("events", 1, 1, config=TIERED_TOPIC)
    admin = AdminClient(client)
    admin.create_topics([topic])["events"].result(TIMEOUT_S)
    producer = Producer({**client, "linger.ms": 20, "batch.size": 65536})
    for number in range(COUNT):
        producer.produce("events", b"%d-" % number + bytes(1000))
    assert producer.flush(TIMEOUT_S) == 0
    logs = running.embedded.directory / "log"
    wait_until(lambda: len(list(logs.glob("events-0/*.log"))) <= 1, "the topic's tiering")


def options(broker: SecuredBroker, kind: str, **changes: str) -> dict[str, str]:
    kafka = {f"kafka.{name}": text for name, text in broker.client(kind).items()}
    storage = {
        name.removeprefix("rsm.config."): text
        for name, text in broker.embedded.config.explicit.items()
        if name.startswith(("rsm.config.s3.", "rsm.config.aws.", "rsm.config.ca."))
    }
    path = broker.embedded.config.explicit["rsm.config.url"]
    return {"path": path, "subscribe": "events", **storage, **kafka, **changes}


def test_history_and_tail_are_read_and_the_password_is_nowhere(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    kind = "SCRAM-SHA-512"
    given = {
        "options": options(broker, kind),
        "wrong": options(broker, kind, **{"kafka.sasl.jaas.config": jaas(kind, WRONG)}),
        "folder": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(given)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]),
            "SPARK_SUBMIT_OPTS": java_options(),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed[-3000:].replace(SECRET, "[the secret]")
    result = json.loads(ran.stdout.rpartition("RESULT ")[2])
    assert (result["records"], result["values"], result["streamed"]) == (COUNT, COUNT, COUNT)
    assert "the login is refused user=alice mechanism=SCRAM-SHA-512" in result["refusal"]
    assert broker.address(kind) in result["refusal"]
    # The plans, the log at INFO, the event log of Spark's UI, the checkpoint and the files.
    assert "== Physical Plan ==" in printed
    assert "SparkListenerSQLExecutionStart" in _texts(tmp_path / "events")
    kept = {"output": printed} | {
        str(path.relative_to(tmp_path)): path.read_bytes().decode("latin-1")
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert any(name.startswith("checkpoint/offsets") for name in kept)
    # Spark shows options: the password is not there because it hides this one.
    assert any("kafka.sasl.jaas.config=*********(redacted)" in text for text in kept.values())
    private_key = (broker.files / "server.pem").read_text().splitlines()[1]
    for secret in (SECRET, WRONG, private_key, SECRET_KEY):
        assert [name for name, text in kept.items() if secret in text] == []


def _texts(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_stores_are_read_where_the_consumer_runs(broker: SecuredBroker) -> None:
    """Executors get the names of the files, not the key."""
    parsed = parse_options(options(broker, MUTUAL))
    assert "PRIVATE KEY" not in str(dict(parsed.kafka_properties))
    assert "PRIVATE KEY" in consumer_properties(parsed.kafka_properties, "g", "x")["ssl.key.pem"]


def test_bucket_of_an_authority_that_is_not_named_is_refused(
    bucket: dict[str, str], tmp_path: Path
) -> None:
    def listed(**changes: str) -> list[str]:
        settings = ObjectStoreSettings.from_config({**bucket, "retries": "0", **changes})
        return open_for_reading(settings).list_directories("")

    listed()
    other = tmp_path / "other.pem"
    other.write_bytes(issue("Another authority").certificate_pem)
    with pytest.raises(
        RemoteStorageError, match=r"reason='certificate not trusted: ca\.certificates"
    ):
        listed(**{"ca.certificates.path": str(other)})
    other.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"key=ca\.certificates\.path value=.*other\.pem"):
        listed(**{"ca.certificates.path": str(other)})


@pytest.mark.parametrize("key", ["ssl.keystore.key", "ssl.key.pem"])
def test_private_key_as_text_is_refused(broker: SecuredBroker, key: str) -> None:
    """Spark would not hide it."""
    with pytest.raises(ConfigError, match=rf"'{key}' is not supported.*ssl\.keystore\.location"):
        parse_options(options(broker, MUTUAL, **{f"kafka.{key}": "PRIVATE KEY"}))


def test_key_of_a_storage_account_is_refused(broker: SecuredBroker) -> None:
    """Spark would not hide it either."""
    with pytest.raises(ConfigError, match=r"'azure\.account\.key' is not supported") as refused:
        parse_options(options(broker, MUTUAL, **{"azure.account.key": SECRET}))
    assert SECRET not in str(refused.value)


def test_password_is_in_no_text_of_a_metadata_log(broker: SecuredBroker) -> None:
    assert SECRET not in repr(TopicMetadataLog(broker.client("PLAIN")))
    assert SECRET not in repr(parse_options(options(broker, "PLAIN")))


def test_job_reads_a_secured_clusters_metadata(broker: SecuredBroker, tmp_path: Path) -> None:
    config = write_properties(tmp_path / "client.properties", broker.security("SCRAM-SHA-256"))
    place = ["-b", broker.address("SCRAM-SHA-256"), "--command-config", str(config)]
    result = CliRunner().invoke(app, ["pipeline", "replay", *place, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert '"topic": "events"' in result.stdout or '"events"' in result.stdout
    assert SECRET not in result.output
