"""The broker's counters of traffic by topic, and of requests by version and kind."""

from __future__ import annotations

from prometheus_client import generate_latest

from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.metrics.registry import Metrics
from isotherm.metrics.request_metrics import RequestMetrics

MESSAGES_IN = "kafka_server_brokertopicmetrics_messagesin_total"


def test_topics_are_counted_apart_and_together() -> None:
    metrics, traffic = Metrics(), BrokerTraffic()
    metrics.registry.register(traffic)
    traffic.topics["a"].messages_in += 3
    traffic.topics["b"].messages_in += 4
    traffic.topics["a"].failed_fetch_requests += 1
    text = generate_latest(metrics.registry).decode()
    assert f'{MESSAGES_IN}{{topic="a"}} 3.0' in text
    assert f'{MESSAGES_IN}{{topic="b"}} 4.0' in text
    assert f'{MESSAGES_IN}{{topic=""}} 7.0' in text
    assert 'brokertopicmetrics_failedfetchrequests_total{topic="a"} 1.0' in text
    assert "Kafka's MessagesInPerSec." in text


def test_deleted_topic_stays_in_the_sum_alone() -> None:
    metrics, traffic = Metrics(), BrokerTraffic()
    metrics.registry.register(traffic)
    traffic.topics["a"].messages_in += 3
    traffic.forget("a")
    traffic.forget("a")
    traffic.topics["b"].messages_in += 1
    assert traffic.existing(["a", "b", "b"]) == [traffic.topics["b"]]
    text = generate_latest(metrics.registry).decode()
    assert 'topic="a"' not in text
    assert f'{MESSAGES_IN}{{topic=""}} 4.0' in text


def test_requests_are_counted_by_version_and_timed_by_kind() -> None:
    metrics, requests = Metrics(), RequestMetrics({0: "Produce", 1: "Fetch"})
    metrics.registry.register(requests)
    requests.mark(0, 11, 0.4)
    requests.mark(0, 12, 2000.0)
    text = generate_latest(metrics.registry).decode()
    name = "kafka_network_requestmetrics"
    assert f'{name}_requests_total{{request="Produce",version="11"}} 1.0' in text
    assert f'{name}_requests_total{{request="Produce",version="12"}} 1.0' in text
    assert f'{name}_totaltimems_bucket{{le="0.25",request="Produce"}} 0.0' in text
    assert f'{name}_totaltimems_bucket{{le="0.5",request="Produce"}} 1.0' in text
    assert f'{name}_totaltimems_bucket{{le="1000.0",request="Produce"}} 1.0' in text
    assert f'{name}_totaltimems_bucket{{le="+Inf",request="Produce"}} 2.0' in text
    assert f'{name}_totaltimems_sum{{request="Produce"}} 2000.4' in text
    assert "Fetch" not in text
