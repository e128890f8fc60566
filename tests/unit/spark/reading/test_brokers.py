"""The Spark source's questions to brokers: retries, and errors that name the broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from isotherm.errors import BrokerUnreachableError, RequestTimedOutError
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading import brokers
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from isotherm.testing.local_servers import free_ports
from isotherm.testing.sim_clock import SimClock

BROKER = {"path": "s3://b", "subscribe": "a", "kafka.bootstrap.servers": "h:9092"}


class FailingAdmin:
    """An admin client that fails so many times before it answers."""

    def __init__(self, failures: int) -> None:
        self.asked = 0
        self._failures = failures

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.asked += 1
        if self.asked <= self._failures:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics={"a": None, "__consumer_offsets": None})


def asked_with(
    monkeypatch: pytest.MonkeyPatch, failures: int, **options: str
) -> tuple[KafkaBrokers, FailingAdmin, SimClock]:
    admin, clock = FailingAdmin(failures), SimClock(auto_advance=True)
    monkeypatch.setattr(brokers, "AdminClient", lambda _: admin)
    monkeypatch.setattr(brokers, "check_brokers", lambda _: None)
    parsed = parse_options(BROKER | options)
    settings = RequestSettings(
        retries=parsed.fetch_offset_retries,
        retry_interval_ms=parsed.fetch_offset_retry_interval_ms,
    )
    return KafkaBrokers(parsed.kafka_properties, clock, settings), admin, clock


def test_brokers_that_fail_are_asked_again_after_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, admin, clock = asked_with(monkeypatch, 3)
    assert asked.topic_names() == ["a"]
    assert (admin.asked, clock.monotonic_s()) == (4, 3.0)


def test_brokers_that_go_on_failing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "200"}
    asked, admin, clock = asked_with(monkeypatch, 99, **options)
    with pytest.raises(RequestTimedOutError, match="request=topics"):
        asked.topic_names()
    assert (admin.asked, clock.monotonic_s()) == (6, 1.0)


def test_broker_that_is_not_there_is_named_at_once() -> None:
    (port,) = free_ports(1)
    properties = {"bootstrap.servers": f"127.0.0.1:{port}"}
    with pytest.raises(BrokerUnreachableError, match=f"127.0.0.1:{port}: connection refused"):
        KafkaBrokers(properties, SimClock(), RequestSettings())


def test_answer_that_does_not_come_says_how_long_was_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, admin, _ = asked_with(monkeypatch, 0)

    def silent(timeout: float) -> SimpleNamespace:
        raise TimeoutError

    monkeypatch.setattr(admin, "list_topics", silent)
    with pytest.raises(RequestTimedOutError, match=r"in 60 s.*servers=h:9092"):
        asked.topic_names()
