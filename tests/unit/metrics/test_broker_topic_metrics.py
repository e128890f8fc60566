"""Names as the JMX exporter's usual rules give them."""

from __future__ import annotations

from prometheus_client import generate_latest

from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicGauge, TopicMeter
from isotherm.metrics.registry import Metrics


def test_meter_counts_for_its_topic_and_for_the_broker() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)
    topics.mark(TopicMeter.REMOTE_FETCH_BYTES, "a", 5)
    topics.mark(TopicMeter.REMOTE_FETCH_BYTES, "b", 7)
    text = generate_latest(metrics.registry).decode()
    name = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
    assert f'{name}{{topic="a"}} 5.0' in text
    assert f'{name}{{topic="b"}} 7.0' in text
    assert f'{name}{{topic=""}} 12.0' in text


def test_gauge_sums_over_partitions_and_topics_and_forgets() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)
    gauge = TopicGauge.REMOTE_COPY_LAG_BYTES
    topics.set(gauge, "a", 0, 10)
    topics.set(gauge, "a", 1, 5)
    topics.set(gauge, "b", 0, 100)
    topics.set(gauge, "a", 0, 20)
    name = "kafka_server_brokertopicmetrics_remotecopylagbytes"
    assert metrics.value(name, topic="a") == 25
    assert metrics.value(name, topic="") == 125
    topics.forget("a", 0)
    assert metrics.value(name, topic="a") == 5
    assert metrics.value(name, topic="") == 105
    assert metrics.value(name, topic="unknown") == 0


def test_metric_asked_for_twice_is_the_same() -> None:
    metrics = Metrics()
    metrics.counter("isotherm_things", "Things.").inc()
    metrics.counter("isotherm_things", "Things.").inc()
    metrics.gauge("isotherm_level", "Level.").set(3)
    assert metrics.value("isotherm_things_total") == 2
    assert metrics.value("isotherm_level") == 3
