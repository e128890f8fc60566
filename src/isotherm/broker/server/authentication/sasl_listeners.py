"""The configured SASL mechanisms of a listener."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from isotherm.broker.metadata.access.scram_credential import ScramCredential, ScramMechanism
from isotherm.broker.metadata.image import MetadataImage, ScramUser
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.broker.server.authentication.gssapi import GSSAPI
from isotherm.broker.server.authentication.oauthbearer import OAUTHBEARER
from isotherm.broker.server.authentication.plain import PlainExchange
from isotherm.broker.server.authentication.sasl_gate import NewExchange, SaslSettings
from isotherm.broker.server.authentication.scram import CredentialShape, ScramExchange, shape_of
from isotherm.broker.server.authentication.unknown_users import SECRET_USER, secret_of
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.jaas import plain_passwords
from isotherm.config.listener import Listener, SecurityProtocol
from isotherm.config.security import SecurityConfig
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.broker.server.authentication.oauth_listeners import TokenListener

PLAIN = "PLAIN"
_SCRAM = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}
SERVED_MECHANISMS = (PLAIN, *_SCRAM, OAUTHBEARER, GSSAPI)

# In place of the cluster's secret of `unknown_users`, before it is recorded.
_SECRET = secrets.token_bytes(32)
_NONCE_SIZE = 20
_WITH_SASL = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Credentials(Protocol):
    """The cluster's metadata. Credentials are looked up at each exchange, so that changes apply to
    the next login."""

    @property
    def image(self) -> MetadataImage: ...


def sasl_settings(
    config: BrokerConfig,
    listener: Listener,
    credentials: Credentials,
    tokens: Mapping[str, TokenListener],
) -> SaslSettings | None:
    """The SASL settings of a listener; None without SASL. `tokens` come from `token_listeners`.

    Raises ConfigError if a mechanism is not supported or has no users.
    """
    if listener.protocol not in _WITH_SASL:
        return None
    security = config.security_of(listener.name)
    return SaslSettings(
        mechanisms={
            name: tokens[listener.name].new_exchange
            if name == OAUTHBEARER
            else _new_exchange(config, listener, name, credentials)
            for name in security.sasl_enabled_mechanisms
        },
        max_receive_size=security.sasl_server_max_receive_size,
        max_reauth_ms=security.connections_max_reauth_ms,
        failure_delay_ms=security.connection_failed_authentication_delay_ms,
    )


def serves_scram(config: BrokerConfig) -> bool:
    """Whether a listener has a mechanism whose users are in the metadata."""
    return any(
        listener.protocol in _WITH_SASL
        and not _SCRAM.keys().isdisjoint(config.security_of(listener.name).sasl_enabled_mechanisms)
        for listener in config.listener_layout.brokers
    )


def token_listeners(config: BrokerConfig, clock: Clock) -> Mapping[str, TokenListener]:
    """The listeners with OAUTHBEARER, by name. The caller starts their keys.

    Raises ConfigError, which names a listener whose tokens cannot be verified.
    """
    listeners = [
        listener
        for listener in config.listener_layout.brokers
        if listener.protocol in _WITH_SASL
        and OAUTHBEARER in config.security_of(listener.name).sasl_enabled_mechanisms
    ]
    if not listeners:
        return {}
    # Imported only here, since most brokers do not need the library.
    from isotherm.broker.server.authentication.oauth_listeners import token_listener

    return {listener.name: token_listener(config, listener, clock) for listener in listeners}


def check_sasl(config: BrokerConfig, clock: Clock) -> Mapping[str, TokenListener]:
    """Check the mechanisms of all listeners before any is opened; returns `token_listeners`.

    Raises ConfigError, which names the listener whose mechanisms cannot be served.
    """
    tokens = token_listeners(config, clock)
    for listener in config.listener_layout.brokers:
        sasl_settings(config, listener, _NoCredentialsYet(), tokens)
    return tokens


class _NoCredentialsYet:
    @property
    def image(self) -> MetadataImage:
        raise AssertionError("no client is served yet, so nothing may look up credentials")


def _new_exchange(
    config: BrokerConfig, listener: Listener, name: str, credentials: Credentials
) -> NewExchange:
    if name == PLAIN:
        security: SecurityConfig = config.security_of(listener.name, mechanism=name)
        return partial(PlainExchange, plain_passwords(security.sasl_jaas_config, listener.name))
    if name in _SCRAM:
        mechanism = _SCRAM[name]
        shapes = _Shapes(credentials, mechanism)
        return lambda: ScramExchange(
            mechanism,
            lambda user: _find(credentials, mechanism, user),
            shapes.find,
            new_nonce=lambda: secrets.token_urlsafe(_NONCE_SIZE),
            secret=secret_of(credentials.image.scram_credentials) or _SECRET,
        )
    if name == GSSAPI:
        # Imported only here, since few machines have the library.
        from isotherm.broker.server.authentication.kerberos_listeners import kerberos_exchanges

        return kerberos_exchanges(config, listener)
    raise ConfigError(
        "SASL mechanism is not supported key=sasl.enabled.mechanisms"
        f" listener={listener} mechanism={name} served={','.join(SERVED_MECHANISMS)}"
    )


class _Shapes:
    """The distinct shapes of a mechanism's credentials, in a fixed order."""

    def __init__(self, credentials: Credentials, mechanism: ScramMechanism) -> None:
        self._credentials = credentials
        self._mechanism = mechanism
        self._stored: Mapping[ScramUser, UserScramCredentialRecord] | None = None
        self._shapes: Sequence[CredentialShape] = ()

    def find(self) -> Sequence[CredentialShape]:
        stored = self._credentials.image.scram_credentials
        # Once for each change, as any client may ask for users that do not exist.
        if stored is not self._stored:
            own = (
                shape
                for user, shape in stored.items()
                if user.mechanism == self._mechanism and user.name != SECRET_USER
            )
            self._shapes = sorted(
                {shape_of(credential.salt, credential.iterations) for credential in own}, key=str
            )
            self._stored = stored
        return self._shapes


def _find(credentials: Credentials, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    record = credentials.image.scram_credentials.get(ScramUser(mechanism, user))
    if record is None or user == SECRET_USER:
        return None
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
