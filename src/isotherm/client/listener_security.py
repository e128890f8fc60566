"""The TLS and login settings of a broker's own connections, from the settings of the listener that
it dials.

As in Kafka, a broker that dials a listener uses its own settings for a listener of that name: the
key store for its certificate, the trust store, and `username` and `password` of the login module in
`listener.name.NAME.MECHANISM.sasl.jaas.config`. The controllers' listener has such settings too,
although a member does not open it. Source: Kafka ChannelBuilders.clientChannelBuilder, JaasContext.
"""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.client.node_security import NodeSecurity, node_security
from isotherm.config.broker import BrokerConfig
from isotherm.config.client_security import ClientProperties
from isotherm.config.listener import SecurityProtocol
from isotherm.config.security import SecurityConfig
from isotherm.config.token_login import OAUTHBEARER
from isotherm.errors import ConfigError

_STORE_KEYS = (
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_TOKEN_KEYS = (
    "sasl.login.callback.handler.class",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)
_WITH_TLS = (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
_WITH_SASL = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def inter_broker_security(config: BrokerConfig) -> NodeSecurity:
    """The security of connections to other brokers.

    Raises ConfigError, whose text has no secret.
    """
    layout = config.listener_layout
    protocol = next(
        broker.protocol for broker in layout.brokers if broker.name == layout.inter_broker
    )
    mechanism = config.security.sasl_mechanism_inter_broker_protocol
    return _dialling(config, layout.inter_broker, protocol, mechanism)


def controller_security(config: BrokerConfig) -> NodeSecurity:
    """The security of connections to the controllers.

    Raises ConfigError, whose text has no secret.
    """
    protocol = config.listener_layout.controller_protocol
    assert protocol is not None, "there are controllers elsewhere"
    name = config.controller_listener_names[0]
    return _dialling(config, name, protocol, config.security.sasl_mechanism_controller_protocol)


def _dialling(
    config: BrokerConfig, listener: str, protocol: SecurityProtocol, mechanism: str
) -> NodeSecurity:
    texts: dict[str, str] = {"security.protocol": protocol.name}
    if protocol in _WITH_TLS:
        texts |= _texts(config.security_of(listener), _STORE_KEYS)
    if protocol in _WITH_SASL:
        prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}."
        security = config.security_of(listener, mechanism)
        if security.sasl_jaas_config is None:
            raise ConfigError(
                f"a login to other brokers needs a user and a password key={prefix}sasl.jaas.config"
            )
        texts |= {"sasl.mechanism": mechanism, "sasl.jaas.config": security.sasl_jaas_config}
        if mechanism == OAUTHBEARER:
            texts |= _texts(security, _TOKEN_KEYS)
    return node_security(ClientProperties(texts, f"listener={listener}"))


def _texts(security: SecurityConfig, keys: Sequence[str]) -> dict[str, str]:
    values = ((key, getattr(security, key.replace(".", "_"))) for key in keys)
    return {key: value for key, value in values if value is not None}
