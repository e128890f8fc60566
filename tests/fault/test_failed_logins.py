"""Under floods of failed logins each login fails, and authorized clients are served meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import CLOSED
from tests.support.raw_client import RawClient

LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ATTACKERS = 8
FAILURES = 1000
SETTINGS = {
    "listeners": "LOGIN://127.0.0.1:0",
    "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
    "inter.broker.listener.name": "LOGIN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": f'{LOGIN_MODULE} user_alice="hers";',
    "connection.failed.authentication.delay.ms": "10",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:alice",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def fail_by_plain(client: RawClient, number: int) -> ErrorCode:
    answer = client.log_in_plain("alice" if number % 2 else f"user-{number}", "wrong")
    code: ErrorCode = answer.error_code
    return code


def fail_by_scram(client: RawClient, number: int) -> ErrorCode:
    """Fail by SCRAM. No user has a credential; the broker asks for a proof all the same."""
    client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-512")
    nonce = f"nonce{number}"
    first = client.ask(
        ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=f"n,,n=alice,r={nonce}".encode().hex()
    )
    assert first.error_code is ErrorCode.none
    theirs = first.auth_bytes.decode().partition(",")[0].removeprefix("r=")
    last = f"c=biws,r={theirs},p={'A' * 86}=="
    code: ErrorCode = client.ask(
        ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=last.encode().hex()
    ).error_code
    return code


def served(client: RawClient) -> bool:
    return client.ask(ApiKey.METADATA, 1, topics=()) != CLOSED


@contextlib.contextmanager
def logged_in(address: str) -> Iterator[RawClient]:
    with RawClient(address) as client:
        assert client.log_in_plain("alice", "hers").error_code is ErrorCode.none
        yield client


def test_flood_of_failed_logins_leaves_others_served(broker: EmbeddedBroker) -> None:
    address = broker.bootstrap_servers
    ended = threading.Event()
    outcomes: list[ErrorCode | BaseException] = []

    def attack(start: int) -> None:
        number = start
        while not ended.is_set():
            number += ATTACKERS
            try:
                with RawClient(address) as client:
                    fail = fail_by_plain if number % 4 else fail_by_scram
                    outcomes.append(fail(client, number))
                    assert client.is_closed()
            except BaseException as error:
                outcomes.append(error)
                raise

    attackers = [threading.Thread(target=attack, args=(number,)) for number in range(ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    try:
        rounds = 0
        with logged_in(address) as before:
            while len(outcomes) < FAILURES and all(attacker.is_alive() for attacker in attackers):
                assert served(before)
                with logged_in(address) as meanwhile:
                    assert served(meanwhile)
                rounds += 1
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    assert set(outcomes) == {ErrorCode.sasl_authentication_failed}
    assert len(outcomes) >= FAILURES
    assert rounds
    with logged_in(address) as afterwards:
        assert served(afterwards)
