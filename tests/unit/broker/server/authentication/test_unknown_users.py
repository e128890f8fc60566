"""What SCRAM shows of users that do not exist: nothing that tells them from the others."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.scram_changes import (
    Refused,
    ScramUpsertion,
    plan_credentials,
)
from isotherm.broker.metadata.access.scram_credential import ScramMechanism
from isotherm.broker.metadata.image import ScramUser
from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.broker.node import BrokerNode
from isotherm.broker.server.authentication import sasl_listeners
from isotherm.broker.server.authentication.sasl_listeners import Credentials, sasl_settings
from isotherm.broker.server.authentication.unknown_users import (
    SECRET_USER,
    keep_secret,
    new_secret,
    secret_of,
)
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import PeerTimeoutError

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


def recorded() -> dict[ScramUser, UserScramCredentialRecord]:
    """What the cluster's metadata has of a new secret."""
    upsertion = new_secret()
    (record,) = plan_credentials((), (upsertion,), {}).records
    assert isinstance(record, UserScramCredentialRecord)
    return {ScramUser(record.mechanism, record.name): record}


def broker_of_cluster(credentials: Mapping[ScramUser, UserScramCredentialRecord]) -> Listener:
    """A start of any broker of the cluster."""
    listener = Listener()
    listener.image = SimpleNamespace(scram_credentials=dict(credentials))
    return listener


def test_all_brokers_and_starts_of_a_cluster_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = {
        **recorded(),
        **stored((SHA_256, KAFKAS_SALT, 8192), (SHA_512, OTHER_SALT, 5000)),
    }
    shown = []
    for secret_of_process in (b"first start", b"second broker"):
        monkeypatch.setattr(sasl_listeners, "_SECRET", secret_of_process)
        broker = broker_of_cluster(credentials)
        shown.append([broker.shown(user, each) for user in UNKNOWN for each in (SHA_256, SHA_512)])
    assert shown[0] == shown[1]
    # Credentials of another shape, or the removal of one, change nothing of the secret.
    monkeypatch.setattr(sasl_listeners, "_SECRET", b"third")
    del credentials[ScramUser(SHA_512, "user 1")]
    later = broker_of_cluster(credentials)
    assert [later.shown(user) for user in UNKNOWN] == shown[0][::2]


def test_another_cluster_shows_something_else() -> None:
    """The record alone differs, whose random keys no API shows: nothing else of a cluster is an
    input.
    """
    one, other = broker_of_cluster(recorded()), broker_of_cluster(recorded())
    assert all(one.shown(user) != other.shown(user) for user in UNKNOWN)


def test_the_keys_of_the_secret_are_of_a_password_that_is_not_kept() -> None:
    upsertion = new_secret()
    (record,) = plan_credentials((), (upsertion,), {}).records
    secret = secret_of({ScramUser(upsertion.mechanism, SECRET_USER): record})  # type: ignore[dict-item]
    assert secret is not None
    assert len(secret) == 2 * 64
    assert upsertion.salted_password not in (secret[:64], secret[64:])
    assert repr(secret) not in repr(upsertion)


def test_mechanisms_have_salts_of_their_own() -> None:
    broker = broker_of_cluster(recorded())
    assert all(broker.shown(user)[0] != broker.shown(user, SHA_512)[0] for user in UNKNOWN)


def test_a_new_shape_moves_few_users_alone() -> None:
    """An administrator's change must not tell which users are unknown by moving all of them."""
    secret, users = recorded(), [f"unknown {number}" for number in range(400)]
    before = broker_of_cluster(
        {**secret, **stored(*[(SHA_256, KAFKAS_SALT, 4096 + number) for number in range(3)])}
    )
    after = broker_of_cluster(
        {**secret, **stored(*[(SHA_256, KAFKAS_SALT, 4096 + number) for number in range(4)])}
    )
    moved = [user for user in users if before.shown(user) != after.shown(user)]
    assert 0 < len(moved) < len(users) / 2
    assert {after.shown(user)[1] for user in moved} == {4096 + 3}


def test_the_user_of_the_secret_looks_as_any_unknown_one() -> None:
    secret = recorded()
    broker = broker_of_cluster({**secret, **stored((SHA_512, OTHER_SALT, 16384))})
    salt, iterations = broker.shown(SECRET_USER, SHA_512)
    assert (len(salt), iterations) == (len(OTHER_SALT), 16384)
    assert salt != next(iter(secret.values())).salt


def keep(credentials: Mapping[ScramUser, UserScramCredentialRecord], answer: Any) -> list[str]:
    """The names of the users that are recorded."""
    names = []

    async def record(upsertion: ScramUpsertion) -> Refused | None:
        names.append(upsertion.name)
        if isinstance(answer, Exception):
            raise answer
        result: Refused | None = answer
        return result

    asyncio.run(keep_secret(credentials, record))
    return names


def test_a_secret_is_recorded_once(caplog: pytest.LogCaptureFixture) -> None:
    assert keep({}, None) == [SECRET_USER]
    assert keep(recorded(), AssertionError("not asked")) == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (PeerTimeoutError("no controller has answered"), "reason='no controller has answered'"),
        (
            Refused(ErrorCode.cluster_authorization_failed, "denied"),
            "reason='CLUSTER_AUTHORIZATION_FAILED denied'",
        ),
    ],
)
def test_a_start_goes_on_without_the_secret_and_says_so(
    caplog: pytest.LogCaptureFixture, answer: Any, reason: str
) -> None:
    with caplog.at_level(logging.WARNING):
        keep({}, answer)
    (message,) = caplog.messages
    assert reason in message


def shown_by_start(folder: Path) -> tuple[list[tuple[bytes, int]], list[str]]:
    """What a start of the broker in this folder shows, and the names of users that it describes."""
    config = parse_broker_config(
        {
            **embedded_defaults(folder, {}),
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        }
    )

    async def scenario() -> Mapping[ScramUser, UserScramCredentialRecord]:
        node = BrokerNode(config)
        await node.start()
        try:
            return node.services.metadata.image.scram_credentials
        finally:
            await node.stop()

    credentials = asyncio.run(scenario())
    broker = broker_of_cluster(credentials)
    return [broker.shown(user) for user in UNKNOWN], [user.name for user in credentials]


def test_a_restarted_broker_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown_by_start(tmp_path)
    monkeypatch.setattr(sasl_listeners, "_SECRET", b"of the second process")
    assert shown_by_start(tmp_path) == first
    assert first[1] == [SECRET_USER]
