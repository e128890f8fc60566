"""A broker in a cluster with Kafka's controller gets a new key and certificate while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from cryptography import x509

from isotherm.testing.local_servers import free_ports
from oracle.cluster_members import IsothermMember
from oracle.kafka_cluster import ControllerOracle
from tests.support.certificates import Issued, issue
from tests.support.conditions import wait_until
from tests.support.tls_connection import TIMEOUT_S, answers, certificate_of, connect

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

AUTHORITY = issue("authority")
LOCATION = "listener.name.tls.ssl.keystore.location"


class Running:
    def __init__(self, folder: Path, controller: ControllerOracle) -> None:
        self.store = folder / "store.pem"
        plain, self.port = free_ports(2)
        listeners = f"PLAINTEXT://127.0.0.1:{plain},TLS://localhost:{self.port}"
        (folder / "bucket").mkdir()
        self.member = IsothermMember(
            folder / "broker",
            controller,
            1,
            folder / "bucket",
            {
                "listeners": listeners,
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT"
                ),
                "inter.broker.listener.name": "PLAINTEXT",
                "listener.name.tls.ssl.keystore.type": "PEM",
                LOCATION: str(self.store),
            },
        )

    def write(self, path: Path) -> Issued:
        issued = issue("localhost", AUTHORITY)
        issued.write_pem(path)
        return issued

    def alter(self, location: Path) -> None:
        entry = ConfigEntry(LOCATION, str(location), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.member.bootstrap_server})
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def await_shown(self, certificate: x509.Certificate) -> None:
        def is_shown() -> bool:
            with connect(self.port, AUTHORITY) as connection:
                return certificate_of(connection) == certificate

        wait_until(is_shown, timeout_s=TIMEOUT_S)


@pytest.fixture
def running(kafka_tools: Path, tmp_path: Path) -> Iterator[Running]:
    controller = ControllerOracle(tmp_path / "controller")
    controller.start()
    made = Running(tmp_path, controller)
    try:
        yield made
    finally:
        made.member.kill()
        controller.kill()


@pytest.mark.nightly
def test_key_is_renewed_by_a_signal_and_by_the_controller_and_connections_go_on(
    running: Running, tmp_path: Path
) -> None:
    first = running.write(running.store)
    running.member.start()
    with connect(running.port, AUTHORITY) as from_first:
        assert certificate_of(from_first) == first.certificate
        second = running.write(running.store)
        running.member.reload()
        running.await_shown(second.certificate)
        with connect(running.port, AUTHORITY) as from_second:
            third = running.write(tmp_path / "third.pem")
            running.alter(tmp_path / "third.pem")
            running.await_shown(third.certificate)
            fourth = running.write(tmp_path / "third.pem")
            running.alter(tmp_path / "third.pem")
            running.await_shown(fourth.certificate)
            assert answers(from_second)
            assert certificate_of(from_second) == second.certificate
        assert answers(from_first)
        assert certificate_of(from_first) == first.certificate
    running.member.kill()
    running.member.start()
    running.await_shown(fourth.certificate)
