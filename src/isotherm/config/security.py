"""Configuration of authentication (SASL, TLS) and authorization (Kafka's authorizer).

A key of authentication applies to all listeners, or with the prefix `listener.name.NAME.` to one.
The key of a login module also has the mechanism as a prefix.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from isotherm.config.definition import (
    BOOLEAN,
    DISTINCT_LIST,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    Check,
    ConfigType,
    any_of,
    at_least,
    config_keys,
    key,
    one_of,
    optional,
)
from isotherm.config.token_login import TOKEN_HANDLER

LISTENER_PREFIX = "listener.name."
_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"
TOKEN_CALLBACK_HANDLER = f"{_OAUTHBEARER}.OAuthBearerValidatorCallbackHandler"
DEFAULT_JWT_VALIDATOR = f"{_OAUTHBEARER}.DefaultJwtValidator"
BROKER_JWT_VALIDATOR = f"{_OAUTHBEARER}.BrokerJwtValidator"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _parse_principals(text: str) -> tuple[str, ...]:
    principals = tuple(item for part in text.split(";") if (item := part.strip()))
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(
                f"expected a string in format principalType:principalName but got {principal}"
            )
    return principals


# Principals are separated by semicolons, because the distinguished name of a certificate has
# commas.
PRINCIPALS: ConfigType[tuple[str, ...]] = ConfigType("STRING", _parse_principals, ";".join)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Broker-level keys of authentication and authorization."""

    def for_listener(
        self, texts: Mapping[str, str], listener: str, mechanism: str | None = None
    ) -> SecurityConfig:
        """The configuration of one listener, or of one SASL mechanism of it. `texts` has all keys
        of the broker."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        prefixes = [prefix]
        if mechanism is not None:
            prefixes.append(f"{prefix}{mechanism.lower()}.")
        changed = {
            field_name: declared.parse(texts[prefix + name])
            for prefix in prefixes
            for name, (field_name, declared) in config_keys(SecurityConfig).items()
            if prefix + name in texts
        }
        return dataclasses.replace(self, **changed)

    authorizer_class_name: str = key(
        STRING,
        "",
        "Whether access is checked: the name of Kafka's StandardAuthorizer, for its rules. If not"
        " set, every client may do everything.",
        check=one_of("", STANDARD_AUTHORIZER),
    )
    super_users: tuple[str, ...] = key(
        PRINCIPALS,
        (),
        "Principals that may do everything, as User:NAME, with semicolons between them.",
    )
    allow_everyone_if_no_acl_found: bool = key(
        BOOLEAN, False, "Whether a resource without any ACL is open to everyone."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = key(
        DISTINCT_LIST,
        ("GSSAPI",),
        "Mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER,"
        " GSSAPI (with the extra kerberos).",
    )
    sasl_jaas_config: str | None = key(
        optional(PASSWORD),
        None,
        "Login module of a mechanism, as listener.name.NAME.MECHANISM.sasl.jaas.config. That of"
        " PLAIN has"
        ' the users, user_NAME="PASSWORD"; that of OAUTHBEARER may have ssl.truststore.* for the'
        " keys; that of"
        " GSSAPI has keyTab and principal.",
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = key(
        LIST,
        ("DEFAULT",),
        "How the principal of a client of GSSAPI becomes a user: rules as those of auth_to_local in"
        " krb5.conf, or DEFAULT, with commas between them; the first that fits.",
    )
    sasl_mechanism_inter_broker_protocol: str = key(
        STRING,
        "GSSAPI",
        "Mechanism by which this broker logs in to others: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
        " OAUTHBEARER. User and password, or clientId and clientSecret, are those of the listener's"
        " login module.",
    )
    sasl_mechanism_controller_protocol: str = key(
        STRING, "GSSAPI", "The same for logins to the controllers."
    )
    sasl_login_callback_handler_class: str | None = key(
        optional(STRING),
        None,
        "The class that fetches this broker's own tokens: Kafka's OAuthBearerLoginCallbackHandler,"
        " which is also used if the key is not set.",
        check=Check(lambda value: value in (None, TOKEN_HANDLER), TOKEN_HANDLER),
    )
    sasl_oauthbearer_token_endpoint_url: str | None = key(
        optional(STRING),
        None,
        "The URL of the tokens with which this broker logs in to others with OAUTHBEARER: https://...",
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = key(
        optional(STRING),
        None,
        "The id of this broker there; if not set, clientId of the login module.",
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = key(
        optional(PASSWORD),
        None,
        "Its secret there; if not set, clientSecret of the login module.",
    )
    sasl_oauthbearer_scope: str | None = key(
        optional(STRING), None, "The scope of the tokens that it asks for there."
    )
    sasl_server_max_receive_size: int = key(
        INT,
        524_288,
        "Largest request of a client that has not authenticated yet.",
        check=at_least(1),
    )
    sasl_server_callback_handler_class: str | None = key(
        optional(STRING),
        None,
        "The class that checks the tokens of OAUTHBEARER: Kafka's"
        " OAuthBearerValidatorCallbackHandler, which is also used if the key is not set. (Kafka's"
        " default accepts tokens without a signature.)",
        check=Check(lambda value: value in (None, TOKEN_CALLBACK_HANDLER), TOKEN_CALLBACK_HANDLER),
    )
    sasl_oauthbearer_jwt_validator_class: str = key(
        STRING,
        DEFAULT_JWT_VALIDATOR,
        "How a token of OAUTHBEARER is checked: by the rules of Kafka's BrokerJwtValidator, which"
        " is the default's, too.",
        check=one_of(DEFAULT_JWT_VALIDATOR, BROKER_JWT_VALIDATOR),
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = key(
        optional(STRING),
        None,
        "Where the public keys for the tokens of OAUTHBEARER are: https://... or file:///...",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = key(
        LONG, 3_600_000, "How often those keys are read again.", check=at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = key(
        LONG,
        100,
        "Wait after a failed read of those keys before the next one; it doubles each time.",
        check=at_least(1),
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = key(
        LONG, 10_000, "Longest wait after a failed read of those keys.", check=at_least(1)
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = key(
        LIST,
        (),
        "Audiences, one of which a token names. If not set, a token that names any is refused.",
    )
    sasl_oauthbearer_expected_issuer: str | None = key(
        optional(STRING), None, "The issuer that a token names. If not set, it may be any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = key(
        INT, 30, "How far the clocks of broker and issuer may differ.", check=at_least(0)
    )
    sasl_oauthbearer_scope_claim_name: str = key(
        STRING, "scope", "The claim of a token that has its scopes."
    )
    sasl_oauthbearer_sub_claim_name: str = key(
        STRING, "sub", "The claim of a token that has the user's name."
    )
    connections_max_reauth_ms: int = key(
        LONG,
        0,
        "How long a client may stay connected before it authenticates again; for ever if not"
        " positive.",
    )
    connection_failed_authentication_delay_ms: int = key(
        INT,
        100,
        "How long the answer to a failed login waits.",
        check=at_least(0),
    )
    ssl_keystore_type: str = key(
        STRING,
        "JKS",
        "Type of the key store: PEM, PKCS12 or JKS. The last two read either format, as in Java.",
    )
    ssl_keystore_location: str | None = key(
        optional(STRING), None, "File with the private key and the chain of certificates."
    )
    ssl_keystore_password: str | None = key(
        optional(PASSWORD), None, "Password of a PKCS12 or JKS key store."
    )
    ssl_key_password: str | None = key(
        optional(PASSWORD), None, "Password of the key in a PEM or JKS store."
    )
    ssl_keystore_key: str | None = key(
        optional(PASSWORD), None, "The private key itself, in PEM, in place of a file."
    )
    ssl_keystore_certificate_chain: str | None = key(
        optional(PASSWORD), None, "The chain of certificates itself, in PEM."
    )
    ssl_truststore_type: str = key(
        STRING, "JKS", "Type of the trust store, as that of the key store."
    )
    ssl_truststore_location: str | None = key(
        optional(STRING),
        None,
        "File with the certificates that clients' certificates are checked by.",
    )
    ssl_truststore_password: str | None = key(
        optional(PASSWORD), None, "Password of a PKCS12 or JKS trust store."
    )
    ssl_truststore_certificates: str | None = key(
        optional(PASSWORD), None, "Those certificates themselves, in PEM."
    )
    ssl_endpoint_identification_algorithm: str = key(
        STRING,
        "https",
        "Whether this broker checks the host name in the certificate of a server: https, or"
        " nothing.",
        check=one_of("https", ""),
    )
    ssl_client_auth: str = key(
        STRING,
        "none",
        "Whether clients show certificates of their own. For a SASL_SSL listener only with its"
        " prefix.",
        check=one_of("none", "requested", "required"),
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        DISTINCT_LIST,
        ("TLSv1.2", "TLSv1.3"),
        "Versions of TLS that are offered.",
        check=any_of("TLSv1.2", "TLSv1.3"),
    )
    ssl_cipher_suites: tuple[str, ...] = key(
        LIST,
        (),
        "Cipher suites that are offered, by IANA's names; if not set, OpenSSL's choice. Of TLS 1.3"
        " name all three or none.",
    )
    ssl_principal_mapping_rules: str = key(
        STRING,
        "DEFAULT",
        "How the name in a client's certificate becomes that of the principal: RULE:PATTERN/NAME/"
        " with L or U behind it, or DEFAULT, with commas between them; the first that fits.",
    )


_OF_LISTENER = re.compile(
    r"listener\.name\.[^.]+\.(?:[^.]+\.)?(?P<key>(?:sasl|ssl|connections?)\..+)"
)


def is_listener_key(name: str) -> bool:
    """Whether the key is one of SecurityConfig, for one listener or for one mechanism of it."""
    match = _OF_LISTENER.fullmatch(name)
    return match is not None and match["key"] in config_keys(SecurityConfig)


_BEFORE_KEY = re.compile(
    r"(?P<listener>listener\.name\.[^.]+\.(?:(?:plain|scram-sha-(?:256|512)|oauthbearer|gssapi)\.)?)(?P<key>.+)"
)


def split_listener(name: str) -> tuple[str, str]:
    """Split a name into the prefix of one listener, or of one mechanism of it, and the key. The
    prefix is empty if the key holds for all."""
    match = _BEFORE_KEY.fullmatch(name)
    return ("", name) if match is None else (match["listener"], match["key"])


# The keys that can be changed for one listener of a running broker. Source: Kafka
# SslConfigs.RECONFIGURABLE_CONFIGS.
KEY_MATERIAL = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    }
)
_KEY_OF_LISTENER = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<key>.+)")


def split_key_material(name: str) -> tuple[str, str] | None:
    """The listener, in lower case, and the key.

    None for a name that is not a listener's key material.
    """
    return split_listener_key(name, KEY_MATERIAL)


def split_listener_key(name: str, keys: Container[str]) -> tuple[str, str] | None:
    """The listener, in lower case, and the key, which is in `keys`. None for any other name."""
    match = _KEY_OF_LISTENER.fullmatch(name)
    if match is None or match["key"] not in keys:
        return None
    return match["listener"], match["key"]


_SECRET_ENDINGS = (
    "password",
    "jaas.config",
    "secret",
    "secret.key",
    "keystore.key",
    "access.key",
    "account.key",
    "session.token",
    "sas.token",
    "key.pem",
)


def is_secret(name: str) -> bool:
    """Whether the value of a key is never shown. The end of the name decides, so that keys of
    plug-ins are hidden too."""
    return name.endswith(_SECRET_ENDINGS)


LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")


def split_listener_limit(name: str) -> tuple[str, str] | None:
    """The listener, in lower case, and the key. None for a name that is not a listener's limit.

    Without the prefix `listener.name.NAME.` a limit is the whole broker's, and that of each
    listener without its own. Source: KIP-306, KIP-612; Kafka DynamicBrokerConfig, ConnectionQuotas.
    """
    return split_listener_key(name, LISTENER_LIMITS)
