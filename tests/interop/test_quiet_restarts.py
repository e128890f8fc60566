"""A rolling restart of three brokers, a kill and a return leave nothing in the logs that an
operator has to act on.

The short form is a kill and a return, in `test_cluster.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from oracle.cluster_members import IsothermMember
from oracle.mixed_cluster import MixedCluster
from oracle.topics import wait_until
from tests.support.cluster.quiet_logs import NewLines

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(1800)]

TIMEOUT_S = 300
TOPIC = "flights"
ALL = {1, 2, 3}
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "segment.bytes": "1048576",
    "file.delete.delay.ms": "100",
}


@contextmanager
def producing(servers: str) -> Iterator[None]:
    """Records and transactions without a pause, so that every coordinator and the tier have
    work.
    """
    ends = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": "quiet", "log_level": 0,
             "transaction.timeout.ms": TIMEOUT_S * 1000, "message.timeout.ms": TIMEOUT_S * 1000}
        )  # fmt: skip
        failed: list[KafkaError] = []
        try:
            producer.init_transactions(TIMEOUT_S)
            while not ends.is_set():
                producer.begin_transaction()
                for number in range(600):
                    producer.produce(
                        TOPIC,
                        bytes(1000),
                        partition=number % len(ASSIGNMENT),
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                producer.commit_transaction(TIMEOUT_S)
            assert failed == []
        except Exception as error:  # raised again below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    if failures:
        raise failures[0]


def await_all_in_sync(cluster: MixedCluster) -> None:
    for name in cluster.admin.list_topics(timeout=TIMEOUT_S).topics:
        for index in cluster.admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions:
            cluster.await_isr(name, ALL, index)


@pytest.mark.nightly
def test_rolling_restart_and_kill_are_nothing_for_an_operator(
    kafka_tools: Path, tmp_path: Path
) -> None:
    kinds = dict.fromkeys((1, 2, 3), IsothermMember)
    with MixedCluster(tmp_path / "cluster", kinds) as cluster:
        cluster.create(TOPIC, *ASSIGNMENT, **TIERED)
        logs = NewLines(cluster.members.values())
        with producing(cluster.servers):
            wait_until(lambda: any(cluster.bucket.rglob("*.log")), "a copied segment", TIMEOUT_S)
            for member in cluster.members.values():
                await_all_in_sync(cluster)
                member.stop()
                member.start()
            await_all_in_sync(cluster)
            cluster.members[2].kill()
            cluster.await_isr(TOPIC, ALL - {2})
            cluster.members[2].start()
            await_all_in_sync(cluster)
        assert logs.for_operators() == []
