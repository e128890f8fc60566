"""Isotherm's own clients fetch tokens from a provider and log in with them, given Kafka's
properties."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.metadata.v12.request import MetadataRequest

from isotherm.client.broker_probe import check_brokers
from isotherm.client.listener_security import inter_broker_security
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import NodeSecurity, node_security
from isotherm.config.client_security import librdkafka_properties
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError, PeerDisconnectedError, SaslAuthenticationError
from tests.support.secured_broker import TIMEOUT_S, TOKENS, SecuredBroker
from tests.support.token_provider import CLIENT_SECRET, Provider, served

WRONG = "wr0ng-t0ken-4417"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    # A session ends with its token, after an hour.
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def wrong(broker: SecuredBroker) -> dict[str, str]:
    return broker.client(TOKENS) | broker.token_security(WRONG)


def test_librdkafka_fetches_its_token(broker: SecuredBroker) -> None:
    admin = AdminClient(librdkafka_properties(broker.client(TOKENS)))
    assert admin.list_topics(timeout=TIMEOUT_S).brokers


def test_probe_logs_in_and_names_what_fails(broker: SecuredBroker) -> None:
    check_brokers(broker.client(TOKENS), timeout_s=TIMEOUT_S)
    with pytest.raises(SaslAuthenticationError) as refused:
        check_brokers(wrong(broker), timeout_s=TIMEOUT_S)
    assert f"user=alice url={broker.token_url} reason='the answer is HTTP status 401'" in str(
        refused.value
    )
    assert WRONG not in str(refused.value)


def test_token_that_the_broker_does_not_accept_is_named(broker: SecuredBroker) -> None:
    with served({}, broker.files / "server.pem", Provider()) as other:
        properties = broker.client(TOKENS) | {
            "sasl.oauthbearer.token.endpoint.url": f"{other}/token"
        }
        with pytest.raises(SaslAuthenticationError, match="invalid_token") as refused:
            check_brokers(properties, timeout_s=TIMEOUT_S)
    assert CLIENT_SECRET not in str(refused.value)


def peer(broker: SecuredBroker, security: NodeSecurity) -> NodeConnection:
    host, _, port = broker.address(TOKENS).rpartition(":")
    return NodeConnection(
        NodeAddress(host, int(port)),
        client_id="test",
        connect_timeout_s=TIMEOUT_S,
        request_timeout_s=TIMEOUT_S,
        response_bytes_max=10_000_000,
        security=security,
    )


REQUEST = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


def test_broker_logs_in_with_the_keys_of_the_listener(broker: SecuredBroker) -> None:
    own = broker.token_security()
    del own["sasl.mechanism"]
    texts = {
        "listeners": "INSIDE://localhost:9092",
        "listener.security.protocol.map": "INSIDE:SASL_SSL",
        "inter.broker.listener.name": "INSIDE",
        "sasl.mechanism.inter.broker.protocol": TOKENS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(broker.files / "ca.pem"),
        **{f"listener.name.inside.oauthbearer.{name}": text for name, text in own.items()},
    }
    security = inter_broker_security(parse_broker_config(texts))
    connection = peer(broker, security)
    assert len(connection.send(REQUEST).brokers) == 1
    connection.close()
    assert CLIENT_SECRET not in repr(security)
    url = "listener.name.inside.oauthbearer.sasl.oauthbearer.token.endpoint.url"
    with pytest.raises(ConfigError, match=r"token\.endpoint\.url listener=INSIDE"):
        inter_broker_security(
            parse_broker_config({name: each for name, each in texts.items() if name != url})
        )


def test_connection_without_a_token_names_peer_and_provider(broker: SecuredBroker) -> None:
    connection = peer(broker, node_security(wrong(broker)))
    with pytest.raises(PeerDisconnectedError) as refused:
        connection.send(REQUEST)
    assert broker.address(TOKENS) in str(refused.value)
    assert broker.token_url in str(refused.value)
    assert WRONG not in str(refused.value)
    connection.close()


def test_source_that_librdkafka_alone_has_is_left_to_it() -> None:
    properties = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": TOKENS,
        "sasl.oauthbearer.method": "default",
    }
    with pytest.raises(ConfigError, match=r"key=sasl\.oauthbearer\.method expected=oidc"):
        node_security(properties)
