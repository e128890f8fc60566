"""The configured OAUTHBEARER of listeners: the provider whose tokens are accepted.

`sasl_listeners` imports this module only for a broker with such a listener.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from isotherm.broker.server.authentication.access_token import TokenSettings, TokenVerifier
from isotherm.broker.server.authentication.key_set import (
    RefreshingKeys,
    check_key_url,
    read_key_text,
)
from isotherm.broker.server.authentication.oauthbearer import OAUTHBEARER, OAuthBearerExchange
from isotherm.client.tls_contexts import https_context
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import config_keys
from isotherm.config.jaas import OAUTHBEARER_MODULE, parse_login_module
from isotherm.config.listener import Listener
from isotherm.config.listener_tls import trusted_certificates
from isotherm.config.security import SecurityConfig
from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)

_TRUST_STORE = "ssl.truststore."


class TokenListener(NamedTuple):
    """The token verification of one listener. The broker starts and stops `keys`."""

    name: str
    keys: RefreshingKeys
    verifier: TokenVerifier

    def new_exchange(self) -> OAuthBearerExchange:
        return OAuthBearerExchange(self.verifier.verify, self._log_refusal)

    def _log_refusal(self, reason: str) -> None:
        logger.info("token is refused listener=%s reason='%s'", self.name, reason)


def token_listener(config: BrokerConfig, listener: Listener, clock: Clock) -> TokenListener:
    """The token verification of a listener, without network access. Raises ConfigError if tokens
    cannot be verified."""
    security = config.security_of(listener.name, mechanism=OAUTHBEARER)
    url = security.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        # Kafka would fall back to a validator that requires no signature.
        raise ConfigError(
            "a listener with OAUTHBEARER needs the keys that tokens are signed by: tokens without a"
            " signature are not accepted key=sasl.oauthbearer.jwks.endpoint.url"
            f" listener={listener}"
        )
    check_key_url(url)
    context = _trust(security, listener)
    keys = RefreshingKeys(
        url,
        partial(read_key_text, url, context),
        clock,
        refresh_s=security.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        retry_s=security.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
        retry_s_max=security.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
    )
    settings = TokenSettings(
        security.sasl_oauthbearer_expected_audience,
        security.sasl_oauthbearer_expected_issuer,
        security.sasl_oauthbearer_clock_skew_seconds,
        security.sasl_oauthbearer_scope_claim_name,
        security.sasl_oauthbearer_sub_claim_name,
    )
    for what, key in ((settings.audiences, "audience"), (settings.issuer, "issuer")):
        if not what:
            logger.warning(
                "tokens are not bound to this cluster listener=%s key=sasl.oauthbearer.expected.%s",
                listener.name,
                key,
            )
    return TokenListener(listener.name, keys, TokenVerifier(settings, keys, clock))


def _trust(security: SecurityConfig, listener: Listener) -> ssl.SSLContext:
    """The TLS context for the keys' URL.

    It trusts the system's authorities, or those in the login module.
    """
    if security.sasl_jaas_config is None:
        return https_context()
    place = f"key=listener.name.{listener.name.lower()}.oauthbearer.sasl.jaas.config"
    module = parse_login_module(security.sasl_jaas_config, place)
    if module.name != OAUTHBEARER_MODULE:
        raise ConfigError(f"another login module is expected {place} expected={OAUTHBEARER_MODULE}")
    texts = {name: text for name, text in module.options.items() if name.startswith(_TRUST_STORE)}
    if not texts:
        return https_context()
    try:
        return https_context(pem=trusted_certificates(_parsed(texts)).decode("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the trust store of a login module cannot be read listener={listener} reason='{error}'"
        ) from error


def _parsed(texts: Mapping[str, str]) -> SecurityConfig:
    declared = config_keys(SecurityConfig)
    unknown = sorted(set(texts) - set(declared))
    if unknown:
        raise ConfigError(f"a login module has unknown options names={','.join(unknown)}")
    return SecurityConfig(
        **{declared[name][0]: declared[name][1].parse(text) for name, text in texts.items()}
    )
