"""The correctness run over a cluster: three brokers and a controller of Apache Kafka.

    python -m tests.support.cluster.run --cluster isotherm mixed --seconds 1800

The clients and the checks are those of `tests.support.correctness`. Topics have three replicas
and `min.insync.replicas=2`, producers acks=all. A round is a new cluster in an empty folder.
Brokers are killed, paused and stopped, and their network is split in one direction (`nemesis`,
`links`); then all of it is mended, the replicas catch up, everything is read again, and the
replicas are compared (`replicas`). With Isotherm's brokers alone random records of one topic are
erased meanwhile, and afterwards no file of any broker and of the bucket may hold one.

A call of a client that does not return ends a round without a result: the stacks are printed, and
another round takes its place. Exit status: 0 none found · 1 anomalies: the round's folder is kept,
with the logs of brokers and clients · 2 clients hang in HANGS_MAX rounds.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from isotherm.clock import Clock, SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from tests.support.bucket_scrub import AIVEN, LOCAL_TIERED_STORAGE
from tests.support.cluster.links import Links
from tests.support.cluster.members import KINDS, LinkedCluster
from tests.support.cluster.nemesis import WEIGHTS, ClusterFault, ClusterNemesis
from tests.support.cluster.replicas import (
    await_equal_replicas,
    await_in_sync,
    await_published,
    await_quiet,
    check_tier,
    vanished_reads,
)
from tests.support.correctness.checker import check, check_copies
from tests.support.correctness.consuming import read_to_the_end
from tests.support.correctness.copying import copy_the_rest
from tests.support.correctness.erasing import Erased, Eraser, unerased
from tests.support.correctness.history import Isolation
from tests.support.correctness.profile import Profile
from tests.support.correctness.report import Report
from tests.support.correctness.workers import COPIER_IDS, workers
from tests.support.correctness.workload import (
    COPIES,
    EVENTS,
    FORGETTING,
    PATIENCE_S,
    Workload,
    logging_to,
)

ROUND_S: Final = 120.0
ERASING_SETTINGS: Final = {
    "rsm.config.layout": "aiven",
    "rlmm.config.remote.log.rewrite.check.interval.ms": "300",
}
"""Kafka's own plug-in for tests, whose layout the other rounds have, cannot stage segments."""
LOCAL_RETENTION_OF_ERASED_BYTES: Final = 1 << 20
"""Some segments, so that replicas have local copies to drop."""
HANGS_MAX: Final = 3
"""The number of rounds that a hanging client may end without a result."""
FROZEN_S: Final = 3 * PATIENCE_S
"""A round that has not ended this long after its work is frozen: a client keeps the interpreter
lock. Then the stacks are printed, and the process ends without its brokers."""
CLUSTERS: Final = {
    "isotherm": ("III",),
    "mixed": ("IKI", "KIK"),
    "kafka": ("KKK",),
}
"""The brokers of the rounds, in turn: I is Isotherm, K Apache Kafka."""
PROFILE: Final = Profile(level=0, write_pause_s=0.05, task_interval_ms=500, moves_leaders=True)
LOCAL_RETENTION_WITH_KAFKA_BYTES: Final = 4 << 20
"""More than a partition gets while a broker is away. A follower of Kafka 4.3 that starts from the
tier loses its producers and their open transactions (docs/cluster.md). Once it leads, consumers
read aborted records, which is no finding about Isotherm."""


class ClientHangsError(Exception):
    """A client's call has not returned long after its own timeout.

    librdkafka 2.16's send_offsets_to_transaction can do that. Its effect is unknown, so no history
    can be checked.
    """


def run(
    *,
    seed: int,
    seconds: float,
    round_s: float = ROUND_S,
    kinds: Sequence[str],
    directory: Path,
    clock: Clock,
    say: Callable[[str], None],
    weights: Mapping[ClusterFault, float] = WEIGHTS,
    local_retention_bytes: int | None = None,
) -> tuple[Report, Counter[ClusterFault], int]:
    """Run rounds for about `seconds` of work, over the kinds of clusters in turn.

    The first anomaly ends the run and keeps that round's folder. The third result is the number of
    rounds that a hanging client ended: the report does not count them, and their threads still
    wait. ClientHangsError after HANGS_MAX of them.
    """
    report, faults, hangs = Report(), Counter[ClusterFault](), 0
    left_s = seconds
    for number in itertools.count(1):
        if report.anomalies or left_s <= 0:
            break
        kind = kinds[(number - 1) % len(kinds)]
        rng = random.Random(f"{seed}/{number}")
        folder = directory / f"round{number}-{kind}"
        profile = _profile(kind, local_retention_bytes)
        say(f"seed={seed} round={number} brokers={kind}")
        work_s = min(round_s, left_s)
        faulthandler.dump_traceback_later(work_s + FROZEN_S, exit=True)
        try:
            faults += run_round(report, rng, folder, kind, clock, work_s, say, weights, profile)
        except ClientHangsError as error:
            hangs += 1
            faulthandler.dump_traceback()
            say(f"seed={seed} round={number} brokers={kind} shows nothing: {error}")
            if hangs == HANGS_MAX:
                raise
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        report.rounds += 1
        left_s -= round_s
        say(f"seed={seed} round={number} brokers={kind} anomalies={len(report.anomalies)}")
        if not report.anomalies:
            shutil.rmtree(folder)
    return report, faults, hangs


def _profile(kinds: str, local_retention_bytes: int | None) -> Profile:
    if local_retention_bytes is None:
        local_retention_bytes = LOCAL_RETENTION_WITH_KAFKA_BYTES if "K" in kinds else 1
    return replace(PROFILE, local_retention_bytes=local_retention_bytes, erases="K" not in kinds)


def run_round(
    report: Report,
    rng: random.Random,
    directory: Path,
    kinds: str,
    clock: Clock,
    seconds: float,
    say: Callable[[str], None],
    weights: Mapping[ClusterFault, float],
    profile: Profile,
) -> Counter[ClusterFault]:
    directory.mkdir(parents=True)
    with Links() as links, logging_to(directory / "clients.log") as client_logger:
        cluster = LinkedCluster(
            directory, kinds, links, ERASING_SETTINGS if profile.erases else None
        )
        try:
            cluster.start()
            nemesis = ClusterNemesis(
                cluster,
                links,
                rng=random.Random(rng.random()),
                clock=clock,
                say=say,
                weights=weights,
            )
            workload = Workload(
                cluster.servers,
                clock,
                profile.write_pause_s,
                replicas=3,
                client_logger=client_logger,
            )
            topic = profile.topic_config() | {"min.insync.replicas": "2"}
            topics = {EVENTS: topic, COPIES: topic}
            eraser = None
            if profile.erases:
                kept = {"local.retention.bytes": str(LOCAL_RETENTION_OF_ERASED_BYTES)}
                topics[FORGETTING] = topic | kept
                settings = ObjectStoreSettings.from_config({"url": cluster.bucket.as_uri()})
                (directory / "erased").mkdir()
                eraser = Eraser(
                    workload, settings, random.Random(rng.random()), directory / "erased"
                )
            workload.make_topics(topics)
            _work(workload, nemesis, rng, profile, seconds, eraser)
            say(f"  {clock.monotonic_s():.1f} faults are over")
            report.anomalies += await_in_sync(cluster.servers, clock, timeout_s=PATIENCE_S)
            if eraser is not None:
                eraser.erase_once_more(PATIENCE_S)
                report.anomalies += await_published(settings, clock, timeout_s=PATIENCE_S)
            copy_the_rest(workload, COPIER_IDS[0], PATIENCE_S)
            report.anomalies += await_quiet(cluster.bucket, clock, timeout_s=PATIENCE_S)
            everything = {
                partition: 0 for name in topics for partition in workload.partitions(name)
            }
            read_to_the_end(workload, everything, Isolation.READ_COMMITTED, PATIENCE_S)
            read_to_the_end(workload, everything, Isolation.READ_UNCOMMITTED, PATIENCE_S)
            report.anomalies += await_equal_replicas(cluster.members, clock, timeout_s=PATIENCE_S)
            erased = Erased() if eraser is None else eraser.erased
            layout = LOCAL_TIERED_STORAGE if eraser is None else AIVEN
            report.add_tiers(check_tier(cluster.members, cluster.bucket, layout, erased.places))
            unfinished = frozenset() if eraser is None else eraser.unfinished_uploads()
            nemesis.check_all_run()
            for member in cluster.members.values():
                member.stop()
        finally:
            cluster.close()
    operations = workload.history.operations()
    report.add_operations(operations)
    for member in cluster.members.values():
        if member.kind == "Isotherm":
            report.add_log(member.log_path.read_text(errors="replace"))
    report.add_erased(erased)
    report.anomalies += check(operations, {}, erased.places)
    report.anomalies += check_copies(operations, EVENTS, COPIES)
    final_process = workload.history.new_process() - 1
    report.anomalies += vanished_reads(operations, final_process, erased.places)
    folders = [member.data_dir for member in cluster.members.values()]
    report.anomalies += unerased(erased, [*folders, cluster.bucket], unfinished)
    return nemesis.faults


def _work(
    workload: Workload,
    nemesis: ClusterNemesis,
    rng: random.Random,
    profile: Profile,
    seconds: float,
    eraser: Eraser | None,
) -> None:
    """Run the round's threads until time is up or one of them fails; raise its error."""
    works = workers(workload, rng, profile)
    if eraser is not None:
        works.append(eraser.run)
    pool = ThreadPoolExecutor(len(works) + 1, thread_name_prefix="correctness")
    running: list[Future[None]] = [pool.submit(work) for work in works]
    running.append(pool.submit(nemesis.run, workload.stopping))
    wait(running, timeout=seconds, return_when=FIRST_EXCEPTION)
    workload.stopping.set()
    hung = wait(running, timeout=PATIENCE_S).not_done
    pool.shutdown(wait=not hung)
    if hung:
        raise ClientHangsError(f"calls of clients do not return count={len(hung)}")
    # The error of a broker that does not start explains its clients' errors, so it comes first.
    for future in reversed(running):  # the nemesis is the last
        future.result()


def _kinds(argument: str) -> Sequence[str]:
    if not argument or (argument not in CLUSTERS and not {*argument} <= {*KINDS}):
        raise argparse.ArgumentTypeError(
            f"neither a cluster nor letters of {'/'.join(KINDS)}: {argument}"
        )
    return CLUSTERS.get(argument, (argument,))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.cluster.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cluster", type=_kinds, nargs="+", default=[CLUSTERS["isotherm"]],
        help=f"{', '.join(CLUSTERS)}, or a letter for each broker, as KIK; of several a round each"
        " in turn; default isotherm")  # fmt: skip
    add("--seconds", type=float, default=ROUND_S, help="how long clients work; default %(default)s")
    add("--round-s", type=float, default=ROUND_S, help="of that, in one cluster")
    add("--faults", choices=[fault.value for fault in ClusterFault], nargs="+",
        default=[fault.value for fault in ClusterFault], help="default: all of these")  # fmt: skip
    add(
        "--local-retention-bytes",
        type=int,
        help="of the topics; default 1, with Kafka among the brokers"
        f" {LOCAL_RETENTION_WITH_KAFKA_BYTES}",
    )
    add("--seed", type=int, help="repeats a mix of operations and faults; default: the time")
    add("--directory", type=Path, help="default: a new temporary one")
    chosen = parser.parse_args(arguments)
    clock = SystemClock()
    seed = chosen.seed if chosen.seed is not None else clock.now_ms()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="isotherm-cluster-run-"))
    say = partial(print, file=sys.stderr, flush=True)
    say(f"seed={seed} directory={directory}")
    weights = {each: weight for each, weight in WEIGHTS.items() if each.value in chosen.faults}
    try:
        report, faults, hangs = run(
            seed=seed,
            seconds=chosen.seconds,
            round_s=chosen.round_s,
            kinds=list(itertools.chain(*chosen.cluster)),
            directory=directory,
            clock=clock,
            say=say,
            weights=weights,
            local_retention_bytes=chosen.local_retention_bytes,
        )
    except ClientHangsError:
        say(f"clients hang in {HANGS_MAX} rounds directory={directory}")
        os._exit(2)  # an ordinary exit waits for their threads
    for line in report.lines():
        if not line.startswith("faults "):
            say(line)
    say("faults " + " ".join(f"{fault.value}={faults[fault]}" for fault in ClusterFault))
    if report.anomalies:
        say(f"evidence is kept directory={directory}")
    elif hangs:
        say(f"rounds without a result={hangs} directory={directory}")
    elif chosen.directory is None:
        shutil.rmtree(directory)
    status = 1 if report.anomalies else 0
    if hangs:
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
