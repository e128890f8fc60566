"""Topic metrics under the names that the JMX exporter's usual rules give."""

from __future__ import annotations

from prometheus_client import generate_latest

from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicGauge, TopicMeter
from isotherm.metrics.registry import Metrics


def test_meter_counts_for_its_topic_and_for_the_broker() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)
    for topic in ("a", "b"):
        topics.follow(topic, 0)
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
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        topics.follow(topic, partition)
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


def samples(metrics: Metrics, topic: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("topic") == topic and not sample.name.endswith("_created")
    }


def test_reasons_are_there_while_a_partition_has_them() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)

    def shown() -> list[str]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        return sorted(line.partition("partitions")[2] for line in lines if line.startswith("iso"))

    def block(partition: int, reason: str | None) -> list[str]:
        topics.block("t", partition, reason)
        return [line for line in shown() if "reason=" in line]

    assert block(0, "full") == []
    for partition in (0, 1):
        topics.follow("t", partition)
    assert block(0, "full") == ['{reason="full",topic="t"} 1.0']
    assert block(1, "full") == ['{reason="full",topic="t"} 2.0']
    assert block(1, "away") == ['{reason="away",topic="t"} 1.0', '{reason="full",topic="t"} 1.0']
    assert block(1, None) == ['{reason="full",topic="t"} 1.0']
    topics.forget("t", 0)
    assert block(1, None) == []


def test_values_are_there_before_the_first_event_and_go_with_the_last_partition() -> None:
    metrics = Metrics()
    topics = BrokerTopicMetrics(metrics)
    every = len(TopicMeter) + len(TopicGauge)
    assert list(samples(metrics, "").values()) == [0.0] * every
    assert samples(metrics, "a") == {}
    for partition in (0, 1):
        topics.follow("a", partition)
    assert list(samples(metrics, "a").values()) == [0.0] * every
    topics.mark(TopicMeter.REMOTE_COPY_BYTES, "a", 5)
    topics.set(TopicGauge.REMOTE_LOG_SIZE_BYTES, "a", 0, 5)
    topics.follow("a", 0)
    topics.forget("a", 0)
    assert sum(samples(metrics, "a").values()) == 5
    topics.set(TopicGauge.REMOTE_LOG_SIZE_BYTES, "a", 0, 7)
    assert sum(samples(metrics, "a").values()) == 5
    topics.set(TopicGauge.REMOTE_LOG_SIZE_BYTES, "a", 1, 9)
    topics.forget("a", 1)
    topics.forget("a", 1)
    assert samples(metrics, "a") == {}
    topics.mark(TopicMeter.REMOTE_COPY_BYTES, "a", 6)
    topics.set(TopicGauge.REMOTE_LOG_SIZE_BYTES, "a", 1, 9)
    assert samples(metrics, "a") == {}
    assert sum(samples(metrics, "").values()) == 11
    topics.follow("a", 1)
    assert sum(samples(metrics, "a").values()) == 0


def test_metric_asked_for_twice_is_the_same() -> None:
    metrics = Metrics()
    metrics.counter("isotherm_things", "Things.").inc()
    metrics.counter("isotherm_things", "Things.").inc()
    metrics.gauge("isotherm_level", "Level.").set(3)
    assert metrics.value("isotherm_things_total") == 2
    assert metrics.value("isotherm_level") == 3
