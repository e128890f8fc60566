"""The correctness run: clients work while the broker is killed, paused and restarted.

    python -m tests.support.correctness.run --seconds 30 --seed 7
    python -m tests.support.correctness.run --kills 500 --precise --level 0 1 --store folder s3

A round starts a new broker in an empty folder, and clients, and injects faults. Then the faults
stop, and the remote tier settles. Every record is read once more, mostly from the bucket. `checker`
checks the history of all clients, `settled_tier` the content of both tiers. The seed determines the
operations and faults. Their timing depends on the machine, so the same seed gives the same mix, but
not the same run.

Exit status: 0 none found · 1 anomalies.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from isotherm.clock import Clock, SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.local_servers import free_ports
from tests.support.correctness.checker import Anomaly, check, check_copies
from tests.support.correctness.consuming import log_starts, read_to_the_end
from tests.support.correctness.copying import copy_the_rest
from tests.support.correctness.crash_points import CrashSchedule
from tests.support.correctness.erasing import Erased, Eraser, unerased
from tests.support.correctness.history import Isolation
from tests.support.correctness.nemesis import Nemesis
from tests.support.correctness.profile import Profile, Store
from tests.support.correctness.report import Report
from tests.support.correctness.run_options import ROUND_S, parse_options
from tests.support.correctness.settled_tier import await_settled, check_tiers
from tests.support.correctness.workers import COPIER_IDS, workers
from tests.support.correctness.workload import (
    COPIES,
    EVENTS,
    EXPIRING,
    FORGETTING,
    PARTITIONS,
    PATIENCE_S,
    Workload,
)
from tests.support.s3_server import S3Server, find_versitygw


def run(
    *,
    seed: int,
    seconds: float | None,
    faults: int | None = None,
    profiles: Sequence[Profile] = (Profile(),),
    directory: Path,
    clock: Clock,
    say: Callable[[str], None],
) -> Report:
    """Run rounds for about `seconds`, or until `faults` kills and pauses are done, and take the
    profiles in turn. `directory` is emptied after a round without anomalies."""
    report = Report()
    end_s = None if seconds is None else clock.monotonic_s() + seconds
    choices = random.Random(seed)
    schedules = [CrashSchedule(each.level, choices, each.writes) for each in profiles]
    for profile, schedule in itertools.cycle(zip(profiles, schedules, strict=True)):
        left_s = ROUND_S if end_s is None else end_s - clock.monotonic_s()
        is_done = faults is not None and report.kills_and_pauses >= faults
        if report.anomalies or left_s <= 0 or is_done:
            break
        report.rounds += 1
        rng = random.Random(f"{seed}/{report.rounds}")
        folder = directory / f"round{report.rounds}"
        limit_s = None if profile.faults_max is not None else min(ROUND_S, left_s)
        try:
            run_round(report, rng, folder, clock, limit_s, profile, schedule)
        except BaseException:
            say(f"round={report.rounds} was not finished; those before it:")
            for line in report.lines():
                say(line)
            raise
        say(
            f"seed={seed} round={report.rounds} level={profile.level} store={profile.store.value}"
            f" kills_and_pauses={report.kills_and_pauses} anomalies={len(report.anomalies)}"
        )
        if not report.anomalies:
            shutil.rmtree(folder)
    report.add_points(schedules)
    return report


def run_round(
    report: Report,
    rng: random.Random,
    directory: Path,
    clock: Clock,
    seconds: float | None,
    profile: Profile,
    schedule: CrashSchedule,
) -> None:
    settings = profile.broker_settings()
    settings["listeners"] = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
    bucket = directory / "bucket"
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as started:
        if profile.store is Store.S3:
            server = started.enter_context(_s3_server(directory))
            bucket = server.bucket_folder
            settings |= {f"rsm.config.{key}": value for key, value in server.config.items()}
        nemesis = Nemesis(
            directory,
            settings,
            profile,
            schedule,
            rng=random.Random(rng.random()),
            clock=clock,
        )
        started.callback(nemesis.kill)
        workload = Workload(nemesis.broker.bootstrap_servers, clock, profile.write_pause_s)
        topics = _make_topics(workload, profile)
        eraser = None
        if profile.erases:
            eraser = _new_eraser(workload, settings, bucket, rng, directory)
        _work(workload, nemesis, rng, profile, seconds, eraser)
        if eraser is not None:
            # Of the records that were written last, and however seldom a run was staged before.
            eraser.erase_once_more(PATIENCE_S)
        copy_the_rest(workload, COPIER_IDS[0], PATIENCE_S)
        servers = workload.bootstrap_servers
        if not await_settled(servers, bucket, clock, timeout_s=PATIENCE_S):
            report.anomalies.append(Anomaly("unsettled", f"seconds={PATIENCE_S}"))
        starts = {
            partition: 0
            for topic in topics
            if topic != EXPIRING
            for partition in workload.partitions(topic)
        }
        expiring = workload.partitions(EXPIRING) if EXPIRING in topics else []
        begun = log_starts(workload, expiring)
        for isolation in Isolation:
            read_to_the_end(workload, starts | begun, isolation, PATIENCE_S)
        status = nemesis.stop()
        if status != 0:
            raise AssertionError(f"broker stopped badly status={status}")
    operations = workload.history.operations()
    report.add_operations(operations)
    report.faults += nemesis.faults
    report.missed += nemesis.missed
    report.add_log(nemesis.log_path.read_text(errors="replace"))
    report.partitions_in_both_tiers += _partitions_in_both_tiers(directory)
    erased = Erased() if eraser is None else eraser.erased
    report.add_erased(erased)
    report.anomalies += check(operations, begun, erased.places)
    report.anomalies += unerased(erased, [directory / "log", bucket])
    report.anomalies += check_copies(operations, EVENTS, COPIES)
    expiring_bytes = profile.expiring_bytes if expiring else None
    report.add_tiers(
        check_tiers(directory / "log", bucket, expiring_bytes=expiring_bytes, erased=erased.places)
    )


def _new_eraser(
    workload: Workload,
    broker_settings: Mapping[str, str],
    bucket: Path,
    rng: random.Random,
    directory: Path,
) -> Eraser:
    prefix = "rsm.config."
    config = {
        key.removeprefix(prefix): value
        for key, value in broker_settings.items()
        if key.startswith(prefix)
    }
    folder = directory / "erased"
    folder.mkdir()
    settings = ObjectStoreSettings.from_config({"url": bucket.as_uri(), **config})
    return Eraser(workload, settings, random.Random(rng.random()), folder)


def _s3_server(directory: Path) -> S3Server:
    binary = find_versitygw()
    if binary is None:
        raise FileNotFoundError("there is no S3 server; hint='scripts/s3-server.sh install'")
    return S3Server(binary, directory / "s3")


def _make_topics(workload: Workload, profile: Profile) -> list[str]:
    config = profile.topic_config()
    configs = {EVENTS: config, COPIES: config}
    if profile.deletes:
        configs[EXPIRING] = config | {"retention.bytes": str(profile.expiring_bytes)}
    if profile.erases:
        configs[FORGETTING] = config
    workload.make_topics(configs)
    return list(configs)


def _partitions_in_both_tiers(directory: Path) -> int:
    """The number of partitions whose first records are only in the bucket, and whose last ones
    are local.
    """
    count = 0
    for topic in (EVENTS, COPIES):
        for partition in range(PARTITIONS[topic]):
            local = (directory / "log" / f"{topic}-{partition}").glob("*.log")
            count += min(int(log.stem) for log in local) > 0
    return count


def _work(
    workload: Workload,
    nemesis: Nemesis,
    rng: random.Random,
    profile: Profile,
    seconds: float | None,
    eraser: Eraser | None,
) -> None:
    """Run the round's threads until the time is up, the faults are done, or a thread fails. Raises
    the error of that thread."""
    works = workers(workload, rng, profile)
    if eraser is not None:
        works.append(eraser.run)
    with ThreadPoolExecutor(len(works) + 1, thread_name_prefix="correctness") as pool:
        running: list[Future[None]] = [pool.submit(work) for work in works]
        running.append(pool.submit(nemesis.run, workload.stopping))
        wait(running, timeout=seconds, return_when=FIRST_EXCEPTION)
        workload.stopping.set()
    # If the broker fails to start, the clients fail too. Raise the cause: its thread is the last
    # one.
    for future in reversed(running):
        future.result()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    clock = SystemClock()
    seed = options.seed if options.seed is not None else clock.now_ms()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="isotherm-correctness-"))
    say = partial(print, file=sys.stderr, flush=True)
    say(f"seed={seed} directory={directory}")
    report = run(
        seed=seed,
        seconds=options.seconds,
        faults=options.kills,
        profiles=options.profiles(),
        directory=directory,
        clock=clock,
        say=say,
    )
    for line in report.lines():
        say(line)
    if report.anomalies:
        say(f"evidence is kept directory={directory}")
        return 1
    if options.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
