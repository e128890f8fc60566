"""What SCRAM shows of users that do not exist: nothing that tells them from the others."""

from __future__ import annotations

import base64
import re
from types import SimpleNamespace

import pytest

from isotherm.broker.authentication import sasl_listeners
from isotherm.broker.authentication.sasl_listeners import Credentials, sasl_settings
from isotherm.broker.authentication.scram import ScramMechanism
from isotherm.broker.metadata.image import ScramUser
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.config.server_properties import parse_broker_config

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
# As kafka-configs.sh makes it, and as other clients may.
KAFKAS_SALT, OTHER_SALT = b"1v8xk2q0f7w5c3j9z6n4m1t8ab", bytes(range(64))
UNKNOWN = [f"unknown {number}" for number in range(40)]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_listeners, "_SECRET", b"the same in each run")


def stored(
    *credentials: tuple[ScramMechanism, bytes, int],
) -> dict[ScramUser, UserScramCredentialRecord]:
    found = {}
    for number, (mechanism, salt, iterations) in enumerate(credentials):
        found[ScramUser(mechanism, f"user {number}")] = UserScramCredentialRecord(
            name=f"user {number}",
            mechanism=mechanism,
            salt=salt,
            stored_key=b"stored",
            server_key=b"server",
            iterations=iterations,
        )
    return found


class Listener:
    """A listener with both mechanisms, and credentials that a test replaces."""

    def __init__(self, *credentials: tuple[ScramMechanism, bytes, int]) -> None:
        config = parse_broker_config(
            {
                "listeners": "SASL_PLAINTEXT://localhost:0",
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            }
        )
        self.image = SimpleNamespace(scram_credentials=stored(*credentials))
        metadata: Credentials = self
        found = sasl_settings(config, config.listener_layout.brokers[0], metadata, {})
        assert found is not None
        self._mechanisms = found.mechanisms

    def shown(self, user: str, mechanism: ScramMechanism = SHA_256) -> tuple[bytes, int]:
        """The salt and the iterations that a client sees."""
        exchange = self._mechanisms[mechanism.sasl_name]()
        text = exchange.respond(f"n,,n={user},r=nonce".encode()).decode()
        found = re.fullmatch(r"r=[^,]*,s=([^,]*),i=(\d+)", text)
        assert found is not None
        salt, iterations = found.groups()
        return base64.b64decode(salt), int(iterations)


def test_salt_and_iterations_look_like_those_of_other_users() -> None:
    listener = Listener(
        (SHA_256, KAFKAS_SALT, 8192), (SHA_256, OTHER_SALT, 4096), (SHA_512, b"short", 16384)
    )
    shown = [listener.shown(user) for user in UNKNOWN]
    like_kafkas = [salt for salt, iterations in shown if iterations == 8192]
    assert all(re.fullmatch(rb"1?[0-9a-z]{24,25}", salt) for salt in like_kafkas)
    like_other = [salt for salt, iterations in shown if iterations == 4096]
    assert {len(salt) for salt in like_other} == {len(OTHER_SALT)}
    assert len(like_kafkas) + len(like_other) == len(UNKNOWN)
    assert like_kafkas
    # No two have one salt, and none changes at the next try.
    assert len({salt for salt, _ in shown}) == len(UNKNOWN)
    assert [listener.shown(user) for user in UNKNOWN] == shown
    assert {len(listener.shown(user, SHA_512)[0]) for user in UNKNOWN} == {len(b"short")}


def test_changed_credentials_are_followed() -> None:
    listener = Listener()
    assert {iterations for _, iterations in map(listener.shown, UNKNOWN)} == {4096}
    listener.image = SimpleNamespace(scram_credentials=stored((SHA_256, OTHER_SALT, 16384)))
    assert {iterations for _, iterations in map(listener.shown, UNKNOWN)} == {16384}
