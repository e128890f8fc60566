"""Both sides with additional listeners for clients that log in, and the properties of these
clients.

The listeners have the names of their protocols, SASL_PLAINTEXT and SASL_SSL. Logins use PLAIN: the
work of SCRAM is done once per connection, and most of it by the client. Keys are elliptic curves
(P-256).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.servers import IsothermServer, KafkaServer, NewServer, Server
from isotherm.testing.local_servers import free_ports
from tests.support.certificates import issue

USER, PASSWORD = "bench", "open-sesame"
PLAINTEXT, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"
LOGINS = (SASL_PLAINTEXT, SASL_SSL)
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def secured_isotherm(directory: Path, settings: Mapping[str, str] | None = None) -> IsothermServer:
    """`settings` override those that the listeners need."""
    return IsothermServer(directory, {**_security(directory), **(settings or {})}, _listeners())


def secured_kafka(directory: Path, settings: Mapping[str, str] | None = None) -> KafkaServer:
    protocols = ",".join(f"{protocol}:{protocol}" for protocol in (PLAINTEXT, *LOGINS))
    security = {
        **_security(directory),
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
    }
    return KafkaServer(directory, {**security, **(settings or {})}, _listeners())


NEW_SERVERS: Mapping[str, NewServer] = {"isotherm": secured_isotherm, "kafka": secured_kafka}


def _listeners() -> dict[str, str]:
    ports = free_ports(len(LOGINS))
    return {name: f"127.0.0.1:{port}" for name, port in zip(LOGINS, ports, strict=True)}


def _security(directory: Path) -> dict[str, str]:
    store = authority_of(directory).with_name("server.pem")
    authority = issue("authority")
    authority_of(directory).write_bytes(authority.certificate_pem)
    issue("localhost", authority).write_pem(store)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "sasl.enabled.mechanisms": "PLAIN",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": (
                f'{_MODULE} required user_{USER}="{PASSWORD}";'
            )
            for name in LOGINS
        },
    }


def authority_of(directory: Path) -> Path:
    """The certificate that clients of the server in `directory` trust."""
    return directory / "authority.pem"


def client_properties(server: Server, protocol: str) -> dict[str, str]:
    """librdkafka's properties for the login, without the address."""
    if protocol == PLAINTEXT:
        return {}
    return {
        "security.protocol": protocol,
        "ssl.ca.location": str(authority_of(server.directory)),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def java_client_config(server: Server, protocol: str) -> Path | None:
    """A file with the same properties for Kafka's own clients; None for PLAINTEXT."""
    if protocol == PLAINTEXT:
        return None
    path = server.directory / f"{protocol}.properties"
    path.write_text(
        f"security.protocol={protocol}\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_MODULE} required username="{USER}" password="{PASSWORD}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority_of(server.directory)}\n"
    )
    return path
