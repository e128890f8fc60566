"""Keys and certificates change while the broker runs: through AlterConfigs, and through files
read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from cryptography import x509
from kio.schema.errors import ErrorCode

from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import ask, read_answer, request_frame
from tests.support.certificates import Issued, issue
from tests.support.tls_connection import TIMEOUT_S, answers, certificate_of, connect

PREFIX = "listener.name.tls.ssl."
AUTHORITY = issue("authority")


class Running:
    """A broker with a plaintext listener for its administrator, and a TLS listener."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = folder / "server.pem"
        self.trust = folder / "trust.pem"
        self.trust.write_bytes(AUTHORITY.certificate_pem)
        self.first = self.write(self.location)
        self.settings = {
            "listeners": "ADMIN://127.0.0.1:0,TLS://localhost:0",
            "listener.security.protocol.map": "ADMIN:PLAINTEXT,TLS:SSL",
            "inter.broker.listener.name": "ADMIN",
            f"{PREFIX}keystore.type": "PEM",
            f"{PREFIX}keystore.location": str(self.location),
            f"{PREFIX}truststore.type": "PEM",
            f"{PREFIX}truststore.location": str(self.trust),
            f"{PREFIX}client.auth": "requested",
        }
        self.broker = EmbeddedBroker(folder / "broker", self.settings).start()

    def write(self, path: Path) -> Issued:
        issued = issue("localhost", AUTHORITY)
        path.write_bytes(issued.key_pem + issued.certificate_pem)
        return issued

    def alter(self, name: str, value: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def reload(self) -> None:
        """Reload the configuration as SIGHUP does."""
        reloading = self.broker.node.reload(self.broker.config)
        asyncio.run_coroutine_threadsafe(reloading, self.broker.loop).result(TIMEOUT_S)

    def connect(self, client: Issued | None = None) -> ssl.SSLSocket:
        own = client and client.write_pem(self.folder / "client.pem")
        port = next(
            endpoint.port
            for endpoint in self.broker.node.endpoints
            if endpoint.listener_name == "TLS"
        )
        return connect(port, AUTHORITY, own)

    def shown(self) -> x509.Certificate:
        with self.connect() as connection:
            return certificate_of(connection)

    def lets_in(self, client: Issued) -> bool:
        # In TLS 1.3 a client gets the refusal at its first read.
        try:
            with self.connect(client) as connection:
                return answers(connection)
        except (ssl.SSLError, OSError):
            return False


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    try:
        yield made
    finally:
        made.broker.stop()


def test_new_connections_get_the_key_that_was_set_and_others_go_on(running: Running) -> None:
    with running.connect() as before:
        assert answers(before)
        second = running.write(running.folder / "second.pem")
        running.alter(f"{PREFIX}keystore.location", str(running.folder / "second.pem"))
        assert running.shown() == second.certificate
        assert answers(before)
        assert certificate_of(before) == running.first.certificate
    running.broker.stop()
    running.broker = EmbeddedBroker(running.folder / "broker", running.settings).start()
    assert running.shown() == second.certificate


def test_same_file_with_another_content_is_read_when_it_is_set_again(running: Running) -> None:
    location = f"{PREFIX}keystore.location"
    running.alter(location, str(running.location))
    renewed = running.write(running.location)
    assert running.shown() == running.first.certificate
    running.alter(location, str(running.location))
    assert running.shown() == renewed.certificate


def test_files_are_read_again_with_the_configuration(running: Running) -> None:
    with running.connect() as before:
        renewed = running.write(running.location)
        running.reload()
        assert running.shown() == renewed.certificate
        assert answers(before)


@pytest.mark.parametrize("content", ["nothing", "no key", "another's key"])
def test_key_that_cannot_be_used_is_refused_and_the_earlier_one_stays(
    running: Running, content: str
) -> None:
    bad = running.folder / "bad.pem"
    if content == "no key":
        bad.write_bytes(running.first.certificate_pem)
    elif content == "another's key":
        bad.write_bytes(issue("localhost", AUTHORITY).key_pem + running.first.certificate_pem)
    with pytest.raises(KafkaException, match="INVALID_REQUEST"):
        running.alter(f"{PREFIX}keystore.location", str(bad))
    assert running.shown() == running.first.certificate
    running.location.write_bytes(bad.read_bytes() if bad.exists() else b"")
    with pytest.raises(ConfigError, match="TLS of a listener cannot be set up"):
        running.reload()
    assert running.shown() == running.first.certificate


def test_authorities_of_clients_change(running: Running) -> None:
    other = issue("other authority")
    of_first, of_other = issue("alice", AUTHORITY), issue("alice", other)
    assert (running.lets_in(of_first), running.lets_in(of_other)) == (True, False)
    with running.connect(of_first) as before:
        running.trust.write_bytes(other.certificate_pem)
        running.reload()
        assert (running.lets_in(of_first), running.lets_in(of_other)) == (False, True)
        assert answers(before)


def test_keys_are_those_of_one_listener_of_one_broker(running: Running) -> None:
    second = running.folder / "second.pem"
    running.write(second)
    for name in ("ssl.keystore.location", f"{PREFIX}client.auth"):
        with pytest.raises(KafkaException, match="INVALID_REQUEST"):
            running.alter(name, str(second))
    fields = {
        "resources": [
            {
                "resource_type": ResourceType.BROKER.value,
                "resource_name": "",
                "configs": [
                    {
                        "name": f"{PREFIX}keystore.location",
                        "config_operation": AlterConfigOpType.SET.value,
                        "value": str(second),
                    }
                ],
            }
        ]
    }
    frame = request_frame(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
    answer = ask(running.broker.bootstrap_servers, frame)
    assert isinstance(answer, bytes)
    (refused,) = read_answer(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, answer).responses
    assert refused.error_code is ErrorCode.invalid_request
    assert "at default cluster level, broker id must be specified" in refused.error_message
    assert running.shown() == running.first.certificate


def test_passwords_of_keys_are_not_described(running: Running) -> None:
    running.alter(f"{PREFIX}truststore.password", "s3cret")
    running.alter(f"{PREFIX}keystore.location", str(running.location))
    admin = AdminClient({"bootstrap.servers": running.broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    location = entries[f"{PREFIX}keystore.location"]
    assert location.value == str(running.location)
    assert ConfigSource(location.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert location.is_read_only  # as Kafka answers for keys of a listener
    assert entries[f"{PREFIX}truststore.password"].is_sensitive
    assert not any("s3cret" in (entry.value or "") for entry in entries.values())


def test_connections_that_come_during_renewals_are_all_served(running: Running) -> None:
    with contextlib.ExitStack() as open_ones:
        for _ in range(20):
            running.write(running.location)
            reloading = running.broker.node.reload(running.broker.config)
            pending = asyncio.run_coroutine_threadsafe(reloading, running.broker.loop)
            assert answers(open_ones.enter_context(running.connect()))
            pending.result(TIMEOUT_S)


def test_expired_certificate_is_warned_of(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.reload()
    assert "has expired" not in caplog.text
    ended = issue("localhost", AUTHORITY, ended=True)
    running.location.write_bytes(ended.key_pem + ended.certificate_pem)
    running.reload()
    when = ended.certificate.not_valid_after_utc.isoformat()
    assert f"has expired listener=TLS://localhost:0 ended={when}" in caplog.text
