"""What the console says about a fault that was injected into a real broker's remote tier."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.clock import SystemClock
from isotherm.console.topic_answers import storage_problems, topic_answers
from isotherm.console.watched_metrics import MetricsLook, WatchedMetrics, metrics_addresses
from isotherm.storage_view.cluster_storage import ClusterStorage, StorageReader
from isotherm.storage_view.prices import price_list
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker

TURNS_MAX = 6000
TOPIC = "events"
pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", {"prometheus.listener": "127.0.0.1:0"}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        both = {**TIERED_TOPIC, "local.retention.bytes": "-2"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=both)])[TOPIC].result()
        yield running


@pytest.fixture
def metrics(broker: EmbeddedBroker) -> Iterator[WatchedMetrics]:
    url = f"http://127.0.0.1:{broker.node.metrics_port}/metrics"
    watched = WatchedMetrics(metrics_addresses([url], None), SystemClock(), 0)
    watched.look()
    yield watched
    watched.close()


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[StorageReader]:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    with StorageReader(properties, SystemClock()) as opened:
        yield opened


def produce(broker: EmbeddedBroker, records: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 20_000})
    for _ in range(records):
        producer.produce(TOPIC, os.urandom(1000), partition=0)
        producer.poll(0)
    producer.flush()


def wait_until(
    reader: StorageReader,
    metrics: WatchedMetrics,
    is_reached: Callable[[ClusterStorage, MetricsLook], bool],
) -> tuple[ClusterStorage, MetricsLook]:
    pause = threading.Event()
    for _ in range(TURNS_MAX):
        storage, look = reader.read(), metrics.look()
        assert look is not None
        if is_reached(storage, look):
            return storage, look
        pause.wait(0.05)
    raise AssertionError(f"not reached: {topic_of(storage, look)}")


def topic_of(storage: ClusterStorage, look: MetricsLook) -> dict[str, Any]:
    answers = topic_answers(storage, price_list("1"), "", look.copy_signs)
    found: dict[str, Any] = next(each for each in answers["topics"] if each["topic"] == TOPIC)
    return found


def failures(look: MetricsLook) -> int:
    signs = look.copy_signs.get(TOPIC)
    return 0 if signs is None else signs.failures


def local_logs(broker: EmbeddedBroker) -> list[Path]:
    return sorted((broker.directory / "log" / f"{TOPIC}-0").glob("*.log"))


def test_bucket_that_is_gone_and_comes_back(
    broker: EmbeddedBroker, metrics: WatchedMetrics, reader: StorageReader
) -> None:
    bucket, away = broker.directory / "bucket", broker.directory / "away"
    bucket.rename(away)
    bucket.write_text("no folder: nothing can be stored in it")
    produce(broker, 4000)
    storage, look = wait_until(reader, metrics, lambda _, look: failures(look) >= 2)
    (problem,) = storage_problems(storage, look.copy_signs)
    *closed, active = [each.stat().st_size for each in local_logs(broker)]
    assert (problem["topic"], problem["cause"], problem["bytes"]) == (
        TOPIC,
        "copies fail",
        sum(closed),
    )
    causes = [(hold["cause"], hold["bytes"]) for hold in topic_of(storage, look)["holds"]]
    assert causes == [("copies fail", sum(closed)), ("active segment", active)]
    # The failed copies left nothing behind. Without metrics the page says that it cannot tell.
    (without,) = topic_answers(storage, price_list("1"), "", {})["topics"][:1]
    waits = next(each for each in without["holds"] if each["cause"] == "copying is behind")
    assert "or each copy fails" in waits["remedy"]

    bucket.unlink()
    away.rename(bucket)
    storage, look = wait_until(
        reader,
        metrics,
        lambda storage, look: (
            storage.topics[TOPIC].sums.overlap_bytes == sum(closed)
            and look.copy_signs[TOPIC].lag_bytes == 0
        ),
    )
    # The failures are a moment old, but nothing is late any more.
    assert storage_problems(storage, look.copy_signs) == []
    assert storage.topics[TOPIC].sums.copy_lag_bytes == 0


def test_topic_without_traffic_lags_in_nothing(
    broker: EmbeddedBroker, metrics: WatchedMetrics, reader: StorageReader
) -> None:
    produce(broker, 500)
    storage, look = wait_until(
        reader, metrics, lambda storage, _: storage.topics[TOPIC].sums.local_bytes > 0
    )
    sums = storage.topics[TOPIC].sums
    assert (sums.copy_lag_bytes, sums.copy_lag_offsets, sums.copy_lag_s) == (0, 0, 0)
    assert [hold["cause"] for hold in topic_of(storage, look)["holds"]] == ["active segment"]
