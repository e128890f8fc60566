"""The TLS versions and suites that Kafka and Isotherm offer by default: docs/security.md has the
table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.testing.local_servers import free_ports
from oracle.kafka import running_kafka
from oracle.tls_offers import VERSIONS, offered
from tests.support.certificates import issue
from tests.support.tls_table import KEYS, offers_of_page

pytestmark = pytest.mark.oracle


def test_page_has_what_kafka_offers(kafka_tools: Path, tmp_path: Path) -> None:
    """Another Java may offer less, but nothing that the page does not list."""
    broker, controller, *ports = free_ports(2 + len(KEYS))
    listeners = f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}"
    settings = {"ssl.keystore.type": "PEM"}
    for name, port in zip(KEYS, ports, strict=True):
        listeners += f",{name}://127.0.0.1:{port}"
        path = issue("localhost", with_rsa=name == "RSA").write_pem(tmp_path / f"{name}.pem")
        settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(path)
    settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EC:SSL,RSA:SSL"
        ),
    }
    with running_kafka(tmp_path / "kafka", settings):
        for name, port in zip(KEYS, ports, strict=True):
            found = offered(f"127.0.0.1:{port}")
            assert {each for each in found if each in VERSIONS} == {"TLSv1.2", "TLSv1.3"}
            assert set(found) <= offers_of_page("Kafka", name)
