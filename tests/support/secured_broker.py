"""A broker with listeners for TLS and logins, and the properties of clients that it accepts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from isotherm.config.client_security import librdkafka_properties
from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.certificates import issue
from tests.support.token_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    Provider,
    served,
)

TIMEOUT_S = 300
USER = "alice"
# Occurs in no other text: output that contains it has leaked it.
SECRET = "0pen-sesame-7731"
ONE_WAY, MUTUAL = "SSL", "mTLS"
TOKENS = "OAUTHBEARER"
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGINS = (*PASSWORDS, TOKENS)
KINDS = (ONE_WAY, MUTUAL, *LOGINS)
_LISTENERS = {ONE_WAY: "ONEWAY", MUTUAL: "MUTUAL"} | dict.fromkeys(LOGINS, "LOGIN")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"


def jaas(mechanism: str, secret: str = SECRET) -> str:
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    return f'{module} required username="{USER}" password="{secret}";'


class SecuredBroker:
    """`files` has ca.pem, other-ca.pem (of an authority that issued nothing) and alice.pem."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        authority = issue("authority")
        between = issue("between", authority, is_authority=True)
        (self.files / "ca.pem").write_bytes(authority.certificate_pem)
        (self.files / "other-ca.pem").write_bytes(issue("other").certificate_pem)
        issue(USER, between).write_pem(self.files / "alice.pem")
        server = issue("localhost", between).write_pem(self.files / "server.pem")
        self.provider = Provider()
        self._served = contextlib.ExitStack()
        (self.files / "keys.json").write_bytes(self.provider.key_set())
        self.token_url = ""
        self.embedded = EmbeddedBroker(
            folder / "broker",
            {
                "listeners": "ONEWAY://localhost:0,MUTUAL://localhost:0,LOGIN://localhost:0",
                "inter.broker.listener.name": "ONEWAY",
                "listener.security.protocol.map": "ONEWAY:SSL,MUTUAL:SSL,LOGIN:SASL_SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(server),
                "listener.name.mutual.ssl.truststore.type": "PEM",
                "listener.name.mutual.ssl.truststore.location": str(self.files / "ca.pem"),
                "listener.name.mutual.ssl.client.auth": "required",
                "listener.name.mutual.ssl.principal.mapping.rules": (
                    r"RULE:^CN=(\w+),O=Example$/$1/"
                ),
                "sasl.enabled.mechanisms": ",".join(LOGINS),
                "listener.name.login.plain.sasl.jaas.config": (
                    f'{_PLAIN} required user_{USER}="{SECRET}";'
                ),
                "listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (
                    f"file://{self.files}/keys.json"
                ),
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": f"User:{USER};User:ANONYMOUS",
                **(settings or {}),
            },
        )

    def __enter__(self) -> Self:
        self.embedded.start()
        provider = served({}, self.files / "server.pem", self.provider)
        self.token_url = f"{self._served.enter_context(provider)}/token"
        admin = AdminClient(librdkafka_properties(self.client("PLAIN")))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion(USER, credential, SECRET.encode())
            admin.alter_user_scram_credentials([change])[USER].result(TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._served.close()
        self.embedded.stop()

    def address(self, kind: str) -> str:
        name = _LISTENERS[kind]
        endpoint = next(each for each in self.embedded.node.endpoints if each.listener_name == name)
        return f"localhost:{endpoint.port}"

    def security(self, kind: str) -> dict[str, str]:
        """Kafka's properties of a client, without the brokers."""
        texts = {
            "security.protocol": "SASL_SSL" if kind in LOGINS else "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files / "ca.pem"),
        }
        if kind == MUTUAL:
            texts |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.files / "alice.pem"),
            }
        elif kind == TOKENS:
            texts |= self.token_security()
        elif kind in LOGINS:
            texts |= {"sasl.mechanism": kind, "sasl.jaas.config": jaas(kind)}
        return texts

    def token_security(self, secret: str = CLIENT_SECRET) -> dict[str, str]:
        store = f'ssl.truststore.type="PEM" ssl.truststore.location="{self.files / "ca.pem"}"'
        return {
            "sasl.mechanism": TOKENS,
            "sasl.jaas.config": f"{_OAUTH}Module required {store};",
            # Without it Kafka's client makes up an unsecured token.
            "sasl.login.callback.handler.class": f"{_OAUTH}CallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": secret,
        }

    def client(self, kind: str) -> dict[str, str]:
        return {"bootstrap.servers": self.address(kind), **self.security(kind)}


def write_properties(path: Path, texts: Mapping[str, str]) -> Path:
    """A file as Kafka's tools take it, readable by its owner alone."""
    path.touch(0o600)
    path.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    return path
