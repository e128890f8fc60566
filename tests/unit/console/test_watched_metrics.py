"""Errors of the last hour, from real metrics endpoints: one needs a login, one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.console.watched_metrics import (
    TRAFFIC_WINDOW_MS,
    MetricsAddresses,
    WatchedMetrics,
    metrics_addresses,
)
from isotherm.errors import ConfigError
from isotherm.metrics.broker_topic_metrics import TopicGauge, TopicMeter
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.meter_counts import HOUR_MS
from isotherm.storage_view.traffic import Traffic
from isotherm.testing.sim_clock import SimClock
from tests.support.metrics_server import LOGIN, TOPIC, MetricsServer

INTERVAL_S = 5.0


@pytest.fixture
def broker() -> Iterator[MetricsServer]:
    running = MetricsServer()
    yield running
    running.close()


@pytest.fixture
def login(tmp_path: Path) -> str:
    path = tmp_path / "login"
    path.touch(0o600)
    path.write_bytes(LOGIN + b"\n")
    return str(path)


def test_errors_are_those_since_the_first_look(broker: MetricsServer, login: str) -> None:
    clock = SimClock()
    broker.topics.mark(TopicMeter.REMOTE_COPY_ERRORS, TOPIC, 5)
    gone = "http://127.0.0.1:1/metrics"
    watched = WatchedMetrics(metrics_addresses([broker.url, gone], login), clock, INTERVAL_S)
    began_ms = clock.now_ms()
    first = watched.look()
    assert first is not None
    errors = first.errors
    assert (errors["since_ms"], errors["total"], errors["rows"]) == (began_ms, 0, [])
    assert [each["url"] for each in errors["unanswered"]] == [gone]
    assert first.traffic is None
    broker.topics.mark(TopicMeter.REMOTE_COPY_ERRORS, TOPIC, 2)
    broker.topics.mark(TopicMeter.REMOTE_FETCH_REQUESTS, TOPIC, 10)
    broker.topics.mark(TopicMeter.REMOTE_FETCH_BYTES, TOPIC, 500)
    assert watched.look() == first  # the broker is not asked again so soon
    assert broker.asked == 1
    clock.advance(INTERVAL_S * 1000)
    found = watched.look()
    watched.close()
    assert found is not None
    assert (found.errors["since_ms"], found.errors["total"]) == (began_ms, 2)
    address = broker.url.removeprefix("http://").removesuffix("/metrics")
    assert found.errors["rows"] == [
        {"broker": address, "errors": "RemoteCopyErrors", "topic": TOPIC, "count": 2}
    ]
    read = Traffic(reads=10 / INTERVAL_S, read_bytes=500 / INTERVAL_S)
    assert found.traffic == found.hourly_traffic == {"": read, TOPIC: read}


def test_signs_of_copies_are_the_last_minutes_errors_and_the_lag(
    broker: MetricsServer, login: str
) -> None:
    clock = SimClock()
    broker.topics.set(TopicGauge.REMOTE_COPY_LAG_BYTES, TOPIC, 0, 700)
    watched = WatchedMetrics(metrics_addresses([broker.url], login), clock, INTERVAL_S)
    first = watched.look()
    assert first is not None
    assert first.copy_signs == {TOPIC: CopySigns(0, 700, 0)}
    broker.topics.mark(TopicMeter.REMOTE_COPY_ERRORS, TOPIC, 18)
    broker.topics.set(TopicGauge.COPY_HALTED_PARTITIONS, TOPIC, 0, 1)
    clock.advance(INTERVAL_S * 1000)
    second = watched.look()
    for _ in range(20):
        clock.advance(60_000)
        last = watched.look()
    watched.close()
    assert second is not None
    assert second.copy_signs == {TOPIC: CopySigns(18, 700, 1)}
    assert last is not None
    assert last.copy_signs == {TOPIC: CopySigns(0, 700, 1)}


def test_traffic_and_failures_of_a_broker_that_is_gone_end_with_their_windows(login: str) -> None:
    """Its last readings once counted as those of the last minutes for ever."""
    clock, broker = SimClock(), MetricsServer()
    watched = WatchedMetrics(metrics_addresses([broker.url], login), clock, INTERVAL_S)
    watched.look()
    broker.topics.mark(TopicMeter.REMOTE_COPY_ERRORS, TOPIC, 18)
    broker.topics.mark(TopicMeter.REMOTE_FETCH_BYTES, TOPIC, 500)
    clock.advance(INTERVAL_S * 1000)
    watched.look()
    broker.close()
    clock.advance(60_000)
    soon = watched.look()
    clock.advance(TRAFFIC_WINDOW_MS)
    later = watched.look()
    clock.advance(HOUR_MS)
    last = watched.look()
    watched.close()
    assert soon is not None
    assert (soon.copy_signs[TOPIC].failures, soon.errors["total"]) == (18, 18)
    assert later is not None
    assert (later.copy_signs, later.traffic, later.errors["total"]) == ({}, None, 18)
    assert last is not None
    assert (last.errors["total"], last.errors["rows"], last.hourly_traffic) == (0, [], None)


def test_lag_is_unknown_while_a_broker_is_silent(broker: MetricsServer, login: str) -> None:
    gone = "http://127.0.0.1:1/metrics"
    watched = WatchedMetrics(metrics_addresses([broker.url, gone], login), SimClock(), 0)
    found = watched.look()
    watched.close()
    assert found is not None
    assert found.copy_signs == {TOPIC: CopySigns(0, None, 0)}


def test_login_that_is_refused_is_a_reason_without_the_password(broker: MetricsServer) -> None:
    watched = WatchedMetrics(MetricsAddresses([broker.url], "Basic c2VjcmV0"), SimClock(), 0)
    found = watched.look()
    watched.close()
    assert found is not None
    assert found.since_ms is None
    assert found.errors["unanswered"] == [
        {"url": broker.url, "reason": "the answer is HTTP status 401"}
    ]


def test_without_addresses_nothing_is_shown() -> None:
    watched = WatchedMetrics(metrics_addresses([], None), SimClock(), 0)
    assert watched.look() is None
    watched.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("broker:9404", "expected http"),
        ("file:///etc/passwd", "expected http"),
        ("http://ann:secret@broker:9404/metrics", "an address must not contain a password"),
        ("http://:secret@/metrics", "an address must not contain a password"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        metrics_addresses([url], None)
    assert "secret" not in str(refused.value)


def test_file_of_several_logins_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "logins"
    path.touch(0o600)
    path.write_text("ann:one\nbob:two\n")
    with pytest.raises(ConfigError, match="one login is expected"):
        metrics_addresses([], str(path))
