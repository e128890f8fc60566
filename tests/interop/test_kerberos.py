"""Clients log in by GSSAPI, with tickets of a real KDC:

Kafka's Java clients, librdkafka, and hostile ones.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.config.jaas import KERBEROS_MODULE
from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.broker_process import BrokerDiedError, BrokerProcess
from oracle.raw_requests import read_answer, receive_frame, request_frame
from oracle.tools import ACLS, CONSOLE_CONSUMER, TOPICS, run_tools, run_tools_to_status
from tests.support.kerberos_realm import REALM, KerberosRealm

SERVICE = "kafka/localhost"
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    running = KerberosRealm(tmp_path_factory.mktemp("kerberos") / "realm")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in running.client_environment().items():
            patched.setenv(name, value)
        yield running
    running.close()


@pytest.fixture(scope="module")
def key_tables(realm: KerberosRealm) -> dict[str, Path]:
    return {name: realm.add(name) for name in (SERVICE, "alice", "eve", "ops/desk")}


def settings(key_table: Path) -> dict[str, str]:
    return {
        "listeners": "CLIENTS://localhost:0",
        "inter.broker.listener.name": "CLIENTS",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.principal.to.local.rules": (
            "RULE:[2:$1-$2](ops-.*)s/ops-.*/operator/,DEFAULT"
        ),
        "listener.name.clients.gssapi.sasl.jaas.config": module(key_table, SERVICE),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:operator",
    }


def module(key_table: Path, principal: str) -> str:
    return (
        f"{KERBEROS_MODULE} required useKeyTab=true storeKey=true"
        f' keyTab="{key_table}" principal="{principal}@{REALM}";'
    )


@pytest.fixture(scope="module")
def broker(
    key_tables: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path_factory.mktemp("broker"), settings(key_tables[SERVICE]))
    yield running
    running.stop()


def login_file(folder: Path, key_table: Path, principal: str) -> str:
    path = folder / f"{principal.replace('/', '-')}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\n"
        "sasl.kerberos.service.name=kafka\n"
        f"sasl.jaas.config={module(key_table, principal)}\n"
    )
    return str(path)


def kcat(
    broker: BrokerProcess, key_table: Path, principal: str, *arguments: str, stdin: str = ""
) -> str:
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap_servers, "-X", "security.protocol=SASL_PLAINTEXT",
         "-X", "sasl.mechanism=GSSAPI", "-X", "sasl.kerberos.service.name=kafka",
         "-X", f"sasl.kerberos.keytab={key_table}",
         "-X", f"sasl.kerberos.principal={principal}@{REALM}", *arguments],
        input=stdin, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.slow
@pytest.mark.oracle
def test_java_clients_and_librdkafka_log_in(
    kafka_tools: Path, broker: BrokerProcess, key_tables: dict[str, Path], tmp_path: Path
) -> None:
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    files = {name: login_file(tmp_path, key_tables[name], name) for name in ("alice", "ops/desk")}
    operator = f"--command-config={files['ops/desk']}"
    run_tools(
        [TOPICS, server, operator, "--create", "--topic=topic"],
        [ACLS, server, operator, "--add", "--allow-principal=User:alice", "--operation=All",
         "--topic=topic"],
        [ACLS, server, operator, "--add", "--allow-principal=User:alice", "--operation=All",
         "--group=*"],
    )  # fmt: skip
    kcat(broker, key_tables["alice"], "alice", "-P", "-t", "topic", stdin="by librdkafka\n")
    (read,) = run_tools(
        [CONSOLE_CONSUMER, server, f"--command-config={files['alice']}", "--topic=topic",
         "--from-beginning", "--max-messages=1"],
    )  # fmt: skip
    assert "by librdkafka" in read
    eve = login_file(tmp_path, key_tables["eve"], "eve")
    ((_, denied),) = run_tools_to_status(
        [CONSOLE_CONSUMER, server, f"--command-config={eve}", "--topic=topic", "--max-messages=1"]
    )
    assert "TopicAuthorizationException" in denied


class Client:
    """A client of the GSSAPI library on its own connection, with a login begun."""

    def __init__(self, broker: BrokerProcess, key_table: Path) -> None:
        import gssapi

        user = gssapi.Name(f"alice@{REALM}", gssapi.NameType.kerberos_principal)
        store = {"client_keytab": str(key_table), "ccache": "MEMORY:alice"}
        self.context = gssapi.SecurityContext(
            name=gssapi.Name(f"{SERVICE}@{REALM}", gssapi.NameType.kerberos_principal),
            creds=gssapi.Credentials(name=user, usage="initiate", store=store),
            flags=gssapi.RequirementFlag.mutual_authentication,
            usage="initiate",
        )
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})

    def send(self, token: bytes) -> bytes | None:
        """Send a token; return the broker's, or None if it refuses the login."""
        answer = self._ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token.hex()})
        assert answer.error_code in (ErrorCode.none, ErrorCode.sasl_authentication_failed)
        return answer.auth_bytes if answer.error_code is ErrorCode.none else None

    def is_logged_in(self) -> bool:
        try:
            self._ask(ApiKey.METADATA, 9, {})
        except ConnectionError:
            return False
        return True

    def _ask(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        frame = request_frame(api_key, version, fields)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        return read_answer(api_key, version, receive_frame(self._socket))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def client(broker: BrokerProcess, key_tables: dict[str, Path]) -> Iterator[Client]:
    made = Client(broker, key_tables["alice"])
    yield made
    made.close()


def offered(client: Client) -> bytes:
    """The security layers that the broker offers, once the context is established."""
    answer = client.send(client.context.step())
    assert answer is not None
    assert client.context.step(answer) is None
    offer = client.send(b"")
    assert offer is not None
    return bytes(client.context.unwrap(offer).message)


def test_no_security_layer_is_offered_and_a_client_that_takes_none_is_in(client: Client) -> None:
    assert offered(client) == b"\1\0\0\0"
    assert client.send(client.context.wrap(b"\1\0\0\0", False).message) == b""
    assert client.is_logged_in()


@pytest.mark.parametrize("choice", [b"\2\0\0\0", b"\4\1\0\0alice", b"\1\0\0", b""])
def test_other_layers_and_cut_choices_are_refused(client: Client, choice: bytes) -> None:
    offered(client)
    assert client.send(client.context.wrap(choice, False).message) is None
    assert not client.is_logged_in()


def test_choice_of_another_context_is_refused(
    broker: BrokerProcess, client: Client, key_tables: dict[str, Path]
) -> None:
    other = Client(broker, key_tables["alice"])
    offered(other)
    offered(client)
    assert client.send(other.context.wrap(b"\1\0\0\0", False).message) is None
    other.close()


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_cut_tickets_are_refused(client: Client, cut: int) -> None:
    assert client.send(client.context.step()[:cut]) is None
    assert not client.is_logged_in()


def test_ticket_that_was_shown_before_is_refused(
    broker: BrokerProcess, client: Client, key_tables: dict[str, Path]
) -> None:
    shown = client.context.step()
    assert client.send(shown) is not None
    thief = Client(broker, key_tables["alice"])
    assert thief.send(shown) is None
    assert not thief.is_logged_in()
    thief.close()


def test_key_that_cannot_be_read_ends_the_start_in_one_line(
    realm: KerberosRealm, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.keytab"
    with pytest.raises(BrokerDiedError) as died:
        BrokerProcess(tmp_path / "data", settings(missing))
    (line,) = died.value.log_lines
    assert f"keyTab={missing}".encode() in line
