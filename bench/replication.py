"""What do three replicas cost, and how long is a partition away when its leader goes?

Run: python -m bench.replication [--quick] [--rounds N] [--only SIDE] [--case TEXT]

A cluster of three Isotherm brokers beside one of three Apache Kafka brokers, each with a controller
of Apache Kafka, in turn (A B A B ...) after a round that does not count:

    produce          MB/s with acks=all, 3 replicas, min.insync.replicas=2
    latency          milliseconds until acks=all is answered, at a fixed rate
    memory           of one broker on average, at rest before and after all of that
    new follower     of a topic with 2 GB in the bucket: the seconds from the reassignment until the
                     follower is in the ISR, and its local bytes then
    leader killed    the longest time without an acknowledgement when the leader gets SIGKILL
    leader stopped   the same with SIGTERM: a controlled shutdown

bench/clusters.py has the settings, bench/ack_gaps.py the producer of the last two.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import load, memory, open_loop
from bench.ack_gaps import AckGaps
from bench.clusters import NODE_IDS, SIDES, BrokersUsage, Cluster, running_clusters
from bench.harness import Question, describe, keep, ratio_ranges, ratios, summarize
from bench.load import Metrics
from oracle.topics import wait_until

ROUNDS = 3
RECORD_SIZE = 1024
PRODUCED_BYTES = 150_000_000
RECORDS_PER_S = 4_000
SECONDS = 8.0
SETTLE_S = 3.0

HISTORY_BYTES = 2_000_000_000
SEGMENT_BYTES = 16 * 1024 * 1024
LOCAL_BYTES = 50_000_000
HISTORY = "history"

GAP = "gap"
BEFORE_S = 1.0
AFTER_S = 3.0
POLL_S = 0.01
TIMEOUT_S = 180.0


class Case(NamedTuple):
    """A case that both clusters run.

    `prepare` and `finish` run once for each side, `measure` once a round, or once if `is_once`.
    Without `warms_up` the first round counts. `bytes_written` are those of a round, to files of all
    brokers.
    """

    name: str
    measure: Callable[[Cluster], Metrics]
    prepare: Callable[[Cluster], None] = lambda cluster: None
    finish: Callable[[Cluster], None] = lambda cluster: None
    is_once: bool = False
    warms_up: bool = True
    bytes_written: int = 0


def build_cases(scale: float) -> Sequence[Case]:
    """The cases in an order in which only the last two kill brokers."""
    seconds = max(2.0, SECONDS * scale)
    return (
        Case("memory, at rest", _at_rest, is_once=True),
        _produce_case("librdkafka", 6, int(PRODUCED_BYTES * scale)),
        _produce_case("librdkafka", 1, int(PRODUCED_BYTES * scale)),
        _produce_case("java", 6, int(PRODUCED_BYTES * scale)),
        Case(
            f"latency at {RECORDS_PER_S * RECORD_SIZE / 1e6:.0f} MB/s",
            partial(_latency, seconds=seconds),
            prepare=lambda cluster: cluster.create("latency"),
            finish=lambda cluster: cluster.delete("latency"),
            bytes_written=int(3 * RECORDS_PER_S * RECORD_SIZE * seconds),
        ),
        Case("memory, after the load", _at_rest, is_once=True),
        Case(
            "new follower",
            _new_follower,
            prepare=partial(_fill_history, size=int(HISTORY_BYTES * scale)),
            finish=lambda cluster: cluster.delete(HISTORY),
        ),
        Case(
            "leader killed",
            partial(_without_leader, signal_number=signal.SIGKILL),
            prepare=lambda cluster: cluster.create(GAP),
            finish=lambda cluster: cluster.delete(GAP),
            warms_up=False,
        ),
        Case(
            "leader stopped",
            partial(_without_leader, signal_number=signal.SIGTERM),
            prepare=lambda cluster: cluster.create(GAP),
            finish=lambda cluster: cluster.delete(GAP),
            warms_up=False,
        ),
    )


def _produce_case(client: str, partitions: int, size: int) -> Case:
    batches = max(1, size // RECORD_SIZE // load.BATCH_RECORDS)
    plural = "s" if partitions > 1 else ""
    return Case(
        f"produce, {client}, {partitions} partition{plural}",
        partial(
            _produce, client=client, partitions=partitions, records=batches * load.BATCH_RECORDS
        ),
        bytes_written=3 * size,
    )


_numbers = itertools.count()


def _produce(cluster: Cluster, *, client: str, partitions: int, records: int) -> Metrics:
    """Produce to a new topic, and wait until its files are deleted: they must not slow the next
    round.
    """
    topic = f"produce-{next(_numbers)}"
    cluster.create(topic, partitions=partitions)
    usage = BrokersUsage(cluster)
    sizes = {"records": records, "record_size": RECORD_SIZE}
    if client == "java":  # it spreads its records by itself
        metrics = load.java_produce(cluster.bootstrap_server, topic, **sizes)
    else:
        metrics = load.produce(cluster.bootstrap_server, topic, partitions=partitions, **sizes)
    metrics["server_cpu_s_per_gb"] = usage.cpu_s() / (records * RECORD_SIZE / 1e9)
    cluster.delete(topic)
    return metrics


def _latency(cluster: Cluster, *, seconds: float) -> Metrics:
    usage = BrokersUsage(cluster)
    metrics = open_loop.run(
        cluster.bootstrap_server,
        "latency",
        records_per_s=RECORDS_PER_S,
        record_size=RECORD_SIZE,
        seconds=seconds,
        receives=False,
    )
    del metrics["mb_per_s"]  # the plan's
    return metrics | {"server_cpu_s": usage.cpu_s()}


def _at_rest(cluster: Cluster) -> Metrics:
    time.sleep(SETTLE_S)
    usage = BrokersUsage(cluster)
    return {"resident_mb": usage.resident_mb(), "proportional_mb": usage.proportional_mb()}


def _fill_history(cluster: Cluster, *, size: int) -> None:
    """Fill a topic on two brokers with `size` bytes; at most LOCAL_BYTES of it are not in the
    bucket.
    """
    cluster.create(
        HISTORY,
        replicas=NODE_IDS[:2],
        config={
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": str(LOCAL_BYTES - SEGMENT_BYTES),
        },
    )
    records = size // RECORD_SIZE // load.BATCH_RECORDS * load.BATCH_RECORDS
    load.produce(cluster.bootstrap_server, HISTORY, records=records, record_size=RECORD_SIZE)
    wait_until(
        lambda: all(
            cluster.local_bytes(node_id, HISTORY) <= LOCAL_BYTES for node_id in NODE_IDS[:2]
        ),
        "the history to be in the bucket alone",
        TIMEOUT_S,
    )


def _new_follower(cluster: Cluster) -> Metrics:
    """Add broker 3 as a replica, measure it, and remove it again."""
    new = NODE_IDS[2]
    usage = BrokersUsage(cluster)
    began_s = time.monotonic()
    cluster.reassign(HISTORY, NODE_IDS)
    while new not in cluster.in_sync(HISTORY):
        assert time.monotonic() - began_s < TIMEOUT_S, cluster.in_sync(HISTORY)
        time.sleep(POLL_S)
    metrics = {
        "joined_s": time.monotonic() - began_s,
        "copied_mb": cluster.local_bytes(new, HISTORY) / 1e6,
        "leader_local_mb": cluster.local_bytes(NODE_IDS[0], HISTORY) / 1e6,
        "server_cpu_s": usage.cpu_s(),
    }
    cluster.await_isr(HISTORY, set(NODE_IDS))
    cluster.reassign(HISTORY, NODE_IDS[:2])
    wait_until(
        lambda: not any(cluster.log_dir(new).glob(f"{HISTORY}-0*")),
        "the replica to be deleted",
        TIMEOUT_S,
    )
    return metrics


def _without_leader(cluster: Cluster, *, signal_number: signal.Signals) -> Metrics:
    """End the current leader, start it again, and wait until it is back in the ISR."""
    member = cluster.members[cluster.leader(GAP)]
    with AckGaps(cluster.bootstrap_server, GAP) as acks:
        acks.await_ack_after(time.monotonic() + BEFORE_S)
        ended_s = time.monotonic()
        if signal_number is signal.SIGKILL:
            os.kill(member.pid, signal_number)
            member.kill()
        else:
            member.stop()
        stop_s = time.monotonic() - ended_s
        acks.await_ack_after(time.monotonic() + AFTER_S)
        metrics = {"unavailable_s": acks.longest_s(ended_s)}
    if signal_number is not signal.SIGKILL:
        metrics["stop_s"] = stop_s
    began_s = time.monotonic()
    member.start()
    cluster.await_isr(GAP, set(NODE_IDS))
    metrics["back_in_sync_s"] = time.monotonic() - began_s
    return metrics


def run_case(case: Case, clusters: Sequence[Cluster], rounds: int) -> dict[str, Any]:
    measured: dict[str, list[Metrics]] = {cluster.name: [] for cluster in clusters}
    for cluster in clusters:
        case.prepare(cluster)
    for round_number in [1] if case.is_once else range(not case.warms_up, rounds + 1):
        for cluster in clusters:
            memory.make_ready(case.bytes_written)
            metrics = case.measure(cluster)
            if round_number:
                measured[cluster.name].append(metrics)
            figures = " ".join(f"{key}={value:.3f}" for key, value in metrics.items())
            mark = "" if round_number else "warms up: "
            print(f"{case.name:<34} {cluster.name:<9} {mark}{figures}", file=sys.stderr, flush=True)
    for cluster in clusters:
        case.finish(cluster)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": case.name,
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


QUESTION = Question(
    "replication",
    "What do three replicas cost, and how long is a partition away when its leader goes?",
    lambda scale: (),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=SIDES, help="measure one side alone")
    parser.add_argument("--case", help="measure the cases whose name contains this")
    options = parser.parse_args()
    names = [options.only] if options.only else SIDES
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    cases = [
        case
        for case in build_cases(0.125 if options.quick else 1.0)
        if options.case is None or options.case in case.name
    ]
    document = describe(QUESTION, rounds)
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
        running_clusters(names, Path(directory)) as clusters,
    ):
        document["results"] = []
        for case in cases:
            document["results"].append(run_case(case, clusters, rounds))
            keep(document, is_whole=False)
    keep(document, is_whole=not (options.quick or options.only or options.case))


if __name__ == "__main__":
    main()
