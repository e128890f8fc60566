"""A single broker for a suite, of either kind, with the same settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.kafka import KafkaOracle

# What suites may expect; that of the oracle (oracle/pom.xml).
KAFKA_VERSION = "4.3.1"

SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "1000",
    # Records with times of years ago are there for as long as on a broker of Kafka's defaults.
    "log.retention.check.interval.ms": "300000",
}


@contextlib.contextmanager
def running(
    kind: str, directory: Path, settings: Mapping[str, str], listen: str, advertised: str
) -> Iterator[None]:
    """`kind` is isotherm or kafka; `listen` and `advertised` are host:port."""
    listeners = {
        "listeners": f"PLAINTEXT://{listen}",
        "advertised.listeners": f"PLAINTEXT://{advertised}",
    }
    texts = {**SETTINGS, **settings, **listeners}
    if kind == "isotherm":
        started = BrokerProcess(directory, {**texts, "node.id": "1"})
        try:
            yield
        finally:
            status = started.stop()
            directory.with_suffix(".log").write_text(started.log_text, encoding="utf-8")
            assert status == 0
        return
    controller = f"127.0.0.1:{free_ports(1)[0]}"
    for key, address in listeners.items():
        texts[key] = f"{address},CONTROLLER://{controller}"
    texts["controller.quorum.bootstrap.servers"] = controller
    oracle = KafkaOracle(directory, texts, java_options=["-XX:TieredStopAtLevel=1"])
    oracle.bootstrap_server = listen
    oracle.start()
    try:
        yield
    finally:
        oracle.stop()
