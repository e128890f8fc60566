"""The file of names and passwords, and the login of an HTTP request."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from isotherm.config.http_credentials import (
    ADDRESSES_MAX,
    DELAY_S_MAX,
    FAILURES_FORGOTTEN_S,
    FAILURES_FREE,
    FAILURES_OVER_ALL_BURST,
    FAILURES_OVER_ALL_PER_S,
    HttpLogins,
    LoginResult,
    is_known,
    read_credentials,
)
from isotherm.errors import ConfigError
from isotherm.testing.sim_clock import SimClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "credentials"
    made.touch(0o600)
    return made


def test_passwords_may_have_colons_and_lines_may_be_empty(file: Path) -> None:
    file.write_text("reader:a:b\n\nother:c\n")
    assert read_credentials(str(file), "key") == {b"reader": b"a:b", b"other": b"c"}


@pytest.mark.parametrize("content", ["", "\n", "reader", ":secret", "reader:"])
def test_file_without_credentials_is_refused_and_not_shown(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"key=some\.key") as refused:
        read_credentials(str(file), "some.key")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "known"),
    [("reader:a", True), ("reader:b", False), ("other:a", False), ("other:", False), ("", False)],
)
def test_request_is_known_by_name_and_password(text: str, known: bool) -> None:
    assert is_known(base64.b64encode(text.encode()), {b"reader": b"a"}) is known


def test_what_is_not_base64_is_not_known() -> None:
    assert not is_known(b"***", {b"reader": b"a"})


CREDENTIALS = {b"reader": b"right"}
RIGHT, WRONG = base64.b64encode(b"reader:right"), base64.b64encode(b"reader:wrong")
GRANTED, REFUSED = LoginResult(is_granted=True), LoginResult(is_granted=False)


class Logins:
    def __init__(self) -> None:
        self.clock = SimClock()
        self._logins = HttpLogins(self.clock)

    def attempt(self, token: bytes, address: str = "10.0.0.1") -> LoginResult:
        return self._logins.attempt(token, CREDENTIALS, address)

    def tries_in(self, seconds: int, *, addresses: int = 1) -> int:
        """The number of wrong passwords that are looked at, if each address tries 10 times a
        second.
        """
        count = 0
        for _ in range(seconds):
            for number in range(addresses):
                tries = (
                    self.attempt(WRONG, f"10.1.{number >> 8}.{number & 255}") for _ in range(10)
                )
                count += sum(each == REFUSED for each in tries)
            self.clock.advance(1000)
        return count


def test_an_address_waits_twice_as_long_after_each_failure() -> None:
    logins = Logins()
    assert [logins.attempt(WRONG) for _ in range(FAILURES_FREE + 1)] == [REFUSED] * (
        FAILURES_FREE + 1
    )
    waits = []
    for _ in range(8):
        result = logins.attempt(RIGHT)
        assert not result.is_granted
        waits.append(result.wait_s)
        logins.clock.advance(result.wait_s * 1000)
        assert logins.attempt(WRONG) == REFUSED
    assert waits == [1, 2, 4, 8, 16, 32, 32, 32]
    assert logins.attempt(RIGHT, "10.0.0.2") == GRANTED
    logins.clock.advance(int(FAILURES_FORGOTTEN_S + 1) * 1000)
    assert [logins.attempt(WRONG) for _ in range(FAILURES_FREE)] == [REFUSED] * FAILURES_FREE
    assert logins.attempt(RIGHT) == GRANTED


def test_tries_of_an_hour_are_few() -> None:
    assert Logins().tries_in(3600) <= FAILURES_FREE + 8 + 3600 / DELAY_S_MAX


def test_tries_over_all_addresses_are_bounded_and_lock_out_no_known_one() -> None:
    logins = Logins()
    assert logins.attempt(RIGHT) == GRANTED
    bound = FAILURES_OVER_ALL_BURST + 60 * FAILURES_OVER_ALL_PER_S
    assert logins.tries_in(60, addresses=200) <= bound
    assert logins.attempt(WRONG, "10.9.9.9") == REFUSED
    assert logins.attempt(RIGHT, "10.9.9.9").wait_s == 1
    assert logins.attempt(RIGHT) == GRANTED


def test_an_own_login_brings_no_further_tries() -> None:
    logins = Logins()
    results = [logins.attempt(token) for _ in range(FAILURES_FREE + 1) for token in (RIGHT, WRONG)]
    assert results == [GRANTED, REFUSED] * (FAILURES_FREE + 1)
    assert logins.attempt(WRONG).wait_s == 1


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_of_one_network_are_one(address: str, other: str, is_same: bool) -> None:
    logins = Logins()
    for _ in range(FAILURES_FREE + 1):
        logins.attempt(WRONG, address)
    assert (logins.attempt(RIGHT, other) == GRANTED) is not is_same


def test_addresses_are_bounded() -> None:
    logins = Logins()
    for number in range(ADDRESSES_MAX + 100):
        assert logins.attempt(RIGHT, f"10.{number >> 8}.{number & 255}.1") == GRANTED
    assert len(logins._logins._addresses) == ADDRESSES_MAX
