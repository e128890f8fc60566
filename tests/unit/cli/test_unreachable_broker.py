"""Every command that needs a broker says in one line that it cannot be reached, and why."""

from __future__ import annotations

import sys
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from isotherm.cli.client import wait_for_all
from isotherm.cli.main import EXIT_FAILED, EXIT_USAGE, causes_of, main
from isotherm.errors import BrokerUnreachableError
from isotherm.testing.local_servers import free_ports
from tests.support.other_clients import without_other_clients
from tests.support.wait_notices import without_wait_notices

COMMANDS = [
    ["topics", "create", "flights"],
    ["topics", "list"],
    ["topics", "describe", "flights"],
    ["topics", "delete", "flights"],
    ["produce", "flights"],
    ["consume", "flights"],
    ["remote", "segments", "flights"],
    ["remote", "events"],
    ["remote", "migrate", "--check"],
    ["remote", "migrate", "--run"],
    # Refused before Spark starts.
    ["pipeline", "audit"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_broker_that_is_not_there_is_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    assert run([*command, "-b", address], monkeypatch) == EXIT_FAILED
    captured = capfd.readouterr()
    assert captured.out == ""
    expected = f"no broker is reachable at {address}: connection refused: nothing listens there"
    errors = without_wait_notices(without_other_clients(captured.err, address))
    assert errors == f"isotherm: {expected}\n"


def test_port_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "list", "-b", "localhost:80000"], monkeypatch) == EXIT_USAGE
    assert "a port is 1 to 65535" in capfd.readouterr().err


def test_address_of_a_web_page_is_none_of_a_broker(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "list", "-b", "http://localhost:9092"], monkeypatch) == EXIT_USAGE
    assert "hint='HOST:PORT'" in capfd.readouterr().err


def test_cause_that_says_the_same_is_left_out() -> None:
    error = BrokerUnreachableError("a topic exists topic='a b'")
    error.__cause__ = KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION, "a topic exists"))
    assert causes_of(error) == []
    error.__cause__ = KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION, "something else"))
    assert len(causes_of(error)) == 1


def test_topic_with_a_space_is_named_once() -> None:
    failed: Future[None] = Future()
    words = "a topic name has other characters topic='a b'"
    failed.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION, words)))
    with pytest.raises(BrokerUnreachableError) as refused:
        wait_for_all({"a b": failed})
    assert str(refused.value) == words


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "argv", ["isotherm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code
