"""Connections between nodes over TLS and with a login, to a broker's real listeners."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from isotherm.client.listener_security import controller_security, inter_broker_security
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import PLAINTEXT, node_security
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError, PeerDisconnectedError
from tests.support.conditions import paced, wait_until
from tests.support.secured_broker import KINDS, SECRET, SecuredBroker, jaas

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    # Short sessions keep the test of their end short. The last part of one, in which its client
    # asks no more, outlasts the pauses of a busy machine.
    settings = {"listener.name.login.connections.max.reauth.ms": "4000"}
    with SecuredBroker(tmp_path_factory.mktemp("secured"), settings) as running:
        yield running


def connection(broker: SecuredBroker, kind: str, **changes: str | None) -> NodeConnection:
    texts = {**broker.security(kind), **{k.replace("_", "."): v for k, v in changes.items()}}
    host, _, port = broker.address(kind).rpartition(":")
    return NodeConnection(
        NodeAddress(host, int(port)),
        client_id="test",
        connect_timeout_s=TIMEOUT_S,
        request_timeout_s=TIMEOUT_S,
        response_bytes_max=10_000_000,
        security=node_security({k: v for k, v in texts.items() if v is not None}),
    )


def asked(peer: NodeConnection) -> int:
    """The number of brokers in the metadata."""
    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    response = peer.send(request)
    return len(response.brokers)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_answered(broker: SecuredBroker, kind: str) -> None:
    peer = connection(broker, kind)
    assert [asked(peer), asked(peer)] == [1, 1]
    peer.close()
    with pytest.raises(PeerDisconnectedError):
        asked(peer)


def test_session_that_ends_is_replaced(broker: SecuredBroker) -> None:
    """The broker closes a connection with an expired session, so without a new login each
    request would fail.
    """
    peer = connection(broker, "SCRAM-SHA-256")
    for _ in paced(0.05, for_s=6):
        assert asked(peer) == 1
    # On a slow machine one request may take longer than the session.
    assert asked(peer) == 1
    peer.close()


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("PLAIN", {"sasl_jaas_config": jaas("PLAIN", "wrong")}, "Invalid username or password"),
        ("SCRAM-SHA-256", {"sasl_jaas_config": jaas("SCRAM-SHA-256", "wrong")}, "login is refused"),
        ("SSL", {"ssl_truststore_location": None, "ssl_truststore_type": None}, "certificate"),
        ("mTLS", {"ssl_keystore_location": None, "ssl_keystore_type": None}, "peer="),
    ],
)
def test_refusal_names_peer_and_reason(
    broker: SecuredBroker, kind: str, changes: dict[str, str | None], reason: str
) -> None:
    peer = connection(broker, kind, **changes)
    with pytest.raises(PeerDisconnectedError) as refused:
        asked(peer)
    assert reason in str(refused.value)
    assert broker.address(kind) in str(refused.value)
    assert SECRET not in str(refused.value)
    peer.close()


def test_wait_for_an_answer_is_ended_by_close(broker: SecuredBroker) -> None:
    """`close` also works when TLS has wrapped the socket."""
    peer = connection(broker, "SSL")
    assert asked(peer) == 1
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            # No answer comes: the request is never sent.
            with peer._in_use():
                assert peer._opened is not None
                peer._opened.socket.settimeout(TIMEOUT_S)
                # 0: the stream has ended.
                assert peer._opened.stream.recv_into(memoryview(bytearray(4))) == 0
                raise ConnectionError("it was closed")
        except (PeerDisconnectedError, OSError) as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: peer._is_in_use)
    peer.close()
    waiting.join(TIMEOUT_S)
    assert len(ended) == 1


# ---- keys


def member(**texts: str) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "INSIDE://localhost:9092",
        "inter.broker.listener.name": "INSIDE",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "log.dirs": "/tmp/never",
        **texts,
    }


def test_keys_of_the_dialled_listener_are_used() -> None:
    config = parse_broker_config(
        member(
            **{
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.inside.scram-sha-512.sasl.jaas.config": jaas("SCRAM-SHA-512"),
                "listener.name.controller.plain.sasl.jaas.config": jaas("PLAIN", "other"),
            }
        )
    )
    to_brokers, to_controllers = inter_broker_security(config), controller_security(config)
    assert to_brokers.login == ("SCRAM-SHA-512", "alice", SECRET)
    assert to_controllers.login == ("PLAIN", "alice", "other")
    assert SECRET not in repr(to_brokers)
    assert to_brokers.tls is None


def test_plaintext_needs_no_keys() -> None:
    config = parse_broker_config(
        member(**{"listener.security.protocol.map": "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"})
    )
    assert inter_broker_security(config) == controller_security(config) == PLAINTEXT


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "gssapi.sasl.jaas.config"),
        (
            {"sasl.mechanism.controller.protocol": "PLAIN"},
            "listener.name.controller.plain.sasl.jaas.config",
        ),
        (
            {
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": jaas("SCRAM-SHA-512"),
            },
            "listener=CONTROLLER",
        ),
    ],
)
def test_login_without_user_is_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        controller_security(parse_broker_config(member(**changes)))
    assert named in str(refused.value)
    assert SECRET not in str(refused.value)


def test_store_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    changes = {
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,CONTROLLER:SSL",
        "listener.name.controller.ssl.truststore.location": str(tmp_path / "none.jks"),
    }
    with pytest.raises(ConfigError, match=r"none\.jks.* key=ssl\.truststore\.location"):
        controller_security(parse_broker_config(member(**changes)))
