"""Errors of the last hour, from counters that restart with the broker."""

from __future__ import annotations

import random

import pytest
from prometheus_client import generate_latest

from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicGauge, TopicMeter
from isotherm.metrics.registry import Metrics
from isotherm.storage_view.meter_counts import (
    HOUR_MS,
    MeterHistory,
    read_meter_counts,
)

COPY = ("RemoteCopyErrors", "t")
MINUTE_MS = 60_000


def test_counters_of_a_broker_are_read() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)
    for topic in ('with "quotes"', "u"):
        topics.follow(topic, 0)
    topics.mark(TopicMeter.REMOTE_COPY_ERRORS, 'with "quotes"', 3)
    topics.mark(TopicMeter.REMOTE_COPY_BYTES, "u", 3)
    topics.mark(TopicMeter.REMOTE_DELETE_ERRORS, "u", 1)
    topics.set(TopicGauge.REMOTE_COPY_LAG_BYTES, "u", 0, 7)
    text = generate_latest(metrics.registry)
    assert read_meter_counts(text) == {
        ("RemoteCopyErrors", 'with "quotes"'): 3,
        ("RemoteCopyErrors", ""): 3,
        ("RemoteCopyBytes", "u"): 3,
        ("RemoteCopyBytes", ""): 3,
        ("RemoteDeleteErrors", "u"): 1,
        ("RemoteDeleteErrors", ""): 1,
    }


def test_counters_of_a_jmx_exporter_are_read() -> None:
    """Apache Kafka with the agent's usual rules: the sum of all topics has no label."""
    text = b"""# HELP kafka_server_brokertopicmetrics_failedfetchrequests_total x
# TYPE kafka_server_brokertopicmetrics_failedfetchrequests_total counter
kafka_server_brokertopicmetrics_failedfetchrequests_total 2.0
kafka_server_brokertopicmetrics_failedfetchrequests_total{topic="t",} 2.0
jvm_threads_current 40
"""
    assert read_meter_counts(text) == {
        ("FailedFetchRequests", ""): 2,
        ("FailedFetchRequests", "t"): 2,
    }
    with pytest.raises(ValueError, match="no metrics of a broker"):
        read_meter_counts(b"jvm_threads_current 40\n")


def test_the_first_reading_is_only_compared_with() -> None:
    history = MeterHistory()
    assert history.seen() is None
    history.note({COPY: 70}, 5)
    seen = history.seen()
    assert seen is not None
    assert (seen.since_ms, seen.counts) == (5, {})


def test_a_counter_that_goes_back_is_of_a_broker_that_was_started_again() -> None:
    history = MeterHistory()
    for minute, count in enumerate((70, 75, 2, 2, 3)):
        history.note({COPY: count}, minute * MINUTE_MS)
    seen = history.seen()
    assert seen is not None
    assert seen.counts == {COPY: 5 + 3}


def test_errors_of_the_last_hour_are_those_of_a_model() -> None:
    """For any rhythm of readings: the counts since the newest reading that is at least an hour old,
    or since the first."""
    rng = random.Random(1)
    for _ in range(200):
        history, now_ms, counts = MeterHistory(), 0, dict.fromkeys(("a", "b", ""), 0)
        readings: list[tuple[int, dict[str, int]]] = []
        for _ in range(rng.randrange(1, 300)):
            now_ms += rng.choice([1_000, 5_000, 5_000, 61_000, 20 * MINUTE_MS, 3 * HOUR_MS // 2])
            for topic in counts:
                counts[topic] += rng.choice([0, 0, 0, 1, 9])
            readings.append((now_ms, dict(counts)))
            history.note({("m", topic): count for topic, count in counts.items()}, now_ms)
        seen = history.seen()
        assert seen is not None
        # Readings are kept a minute apart, so the reading compared with may be older by that much.
        since_ms = seen.since_ms
        old_enough = [at_ms for at_ms, _ in readings if at_ms <= now_ms - HOUR_MS]
        if old_enough:
            assert since_ms <= max(old_enough)
            assert since_ms > max(old_enough) - 2 * MINUTE_MS or since_ms == max(old_enough)
        else:
            assert since_ms == readings[0][0]
        before = dict(readings)[since_ms]
        assert seen.counts == {
            ("m", topic): counts[topic] - before[topic]
            for topic in counts
            if counts[topic] > before[topic]
        }
        assert len(history._readings) <= HOUR_MS // MINUTE_MS + 3


def test_shorter_window_has_the_newest_readings() -> None:
    history = MeterHistory()
    for minute in range(20):
        history.note({COPY: minute}, minute * MINUTE_MS)
    seen = history.seen(5 * MINUTE_MS)
    assert seen is not None
    assert (seen.until_ms - seen.since_ms, seen.counts) == (5 * MINUTE_MS, {COPY: 5})
