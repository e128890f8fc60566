"""The configured GSSAPI of listeners: the broker's key, and the mapping of principals to users.

`sasl_listeners` imports this module only for a broker with such a listener, because it needs the
library gssapi, which needs MIT's or Heimdal's Kerberos.

    listener.name.NAME.gssapi.sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required
        \\ useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab"
        principal="kafka/broker-1@EXAMPLE.COM";

krb5.conf defines the realms and the default realm. Source: Kafka SaslServerAuthenticator,
KerberosLogin.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from isotherm.broker.server.authentication.gssapi import (
    GSSAPI,
    GssapiExchange,
    SecurityContextError,
)
from isotherm.broker.server.authentication.kerberos_names import KerberosNames
from isotherm.broker.server.authentication.sasl_gate import NewExchange
from isotherm.config.broker import BrokerConfig
from isotherm.config.jaas import KERBEROS_MODULE, parse_login_module
from isotherm.config.listener import Listener
from isotherm.config.secret_files import warn_of_readers
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    import gssapi

logger = logging.getLogger(__name__)


def kerberos_exchanges(config: BrokerConfig, listener: Listener) -> NewExchange:
    """A factory of exchanges. Raises ConfigError if the library or the broker's key is missing, or
    a rule is malformed."""
    security = config.security_of(listener.name, mechanism=GSSAPI)
    place = f"key=listener.name.{listener.name.lower()}.gssapi.sasl.jaas.config"
    if security.sasl_jaas_config is None:
        raise ConfigError(
            "a listener with GSSAPI, the default of sasl.enabled.mechanisms, needs the key of the"
            f" broker's principal {place} listener={listener} mechanism={GSSAPI}"
            f" hint='{KERBEROS_MODULE} required useKeyTab=true keyTab=FILE principal=NAME;'"
        )
    module = parse_login_module(security.sasl_jaas_config, place)
    if module.name != KERBEROS_MODULE:
        raise ConfigError(f"another login module is expected {place} expected={KERBEROS_MODULE}")
    key_tab, principal = module.options.get("keyTab"), module.options.get("principal")
    if not key_tab or not principal:
        raise ConfigError(f"a login module lacks an option {place} needed=keyTab,principal")
    credentials = _credentials(key_tab, principal, listener)
    names = KerberosNames(security.sasl_kerberos_principal_to_local_rules, _default_realm())

    def log_refusal(reason: str) -> None:
        logger.info("ticket is refused listener=%s reason='%s'", listener.name, reason)

    return lambda: GssapiExchange(_LibraryContext(credentials), names.user_of, log_refusal)


def _credentials(key_tab: str, principal: str, listener: Listener) -> gssapi.Credentials:
    try:
        import gssapi
    except ImportError as error:
        raise ConfigError(
            f"GSSAPI needs a library that is not installed mechanism=GSSAPI listener={listener}"
            " hint=\"pip install 'isotherm[kerberos]', beside libkrb5-dev\""
        ) from error
    warn_of_readers(Path(key_tab))
    name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    try:
        credentials = gssapi.Credentials(
            name=name,
            # Without this the library also negotiates other mechanisms, by SPNEGO.
            mechs=[gssapi.MechType.kerberos],
            usage="accept",
            store={"keytab": f"FILE:{key_tab}"},
        )
    except gssapi.raw.misc.GSSError as error:
        raise ConfigError(
            f"the key of the broker's principal cannot be read listener={listener}"
            f" keyTab={key_tab} principal={principal} reason='{_reason(error)}'"
        ) from None
    return credentials


def _default_realm() -> str:
    """The realm that the library adds to a name without a realm; empty if krb5.conf has none."""
    import gssapi

    name = gssapi.Name("user", gssapi.NameType.user)
    try:
        completed = str(name.canonicalize(gssapi.MechType.kerberos))
    except gssapi.raw.misc.GSSError:
        return ""
    return completed.partition("@")[2]


class _LibraryContext:
    """Implements isotherm.broker.server.authentication.gssapi.SecurityContext."""

    def __init__(self, credentials: gssapi.Credentials) -> None:
        import gssapi

        self._error = gssapi.raw.misc.GSSError
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        # Otherwise a refusal first returns a token with a Kerberos error, and raises only at the
        # next step. The library's type stubs lack the attribute.
        setattr(self._context, "__DEFER_STEP_ERRORS__", False)  # noqa: B010

    def is_complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def principal(self) -> str:
        return str(self._context.initiator_name)

    def step(self, token: bytes) -> bytes:
        try:
            return self._context.step(token) or b""
        except self._error as error:
            raise SecurityContextError(_reason(error)) from error

    def wrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.wrap(message, False).message)
        except self._error as error:
            raise SecurityContextError(_reason(error)) from error

    def unwrap(self, token: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(token).message)
        except self._error as error:
            raise SecurityContextError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """The text of a GSSError in one line."""
    return " ".join(str(error).split()).replace("'", "")
