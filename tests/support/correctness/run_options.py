"""The command line of the correctness run."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.correctness.profile import Profile, Store, kill_loop

ROUND_S = 30.0
KILLS_PER_ROUND = 25

_DESCRIPTION = """\
Clients work while a broker of their own is killed, paused and restarted; then every record is read
once more, and both tiers are searched for contradictions.

Without --kills: rounds of 30 s with a fault each 0.5 to 3 s (SIGKILL, SIGSTOP, SIGTERM).
With --kills N: a kill loop. Segments of 100 kB leave the local disk as soon as they are copied,
tasks run each 300 ms, the broker is killed or paused a second or two after it serves; a topic
expires, and topics are deleted and made again. Idempotent, transactional and
consume-transform-produce clients.
With --precise each process of the broker has a durable write before or after which it kills itself:
an append to the metadata or audit topic, an object put or deleted, a local file written, synced,
renamed or removed, a checkpoint. The report has a table of these writes and how often each killed.
"""

_EPILOGUE = """\
examples:
  # half a minute of everything
  python -m tests.support.correctness.run
  # the long kill loop: both levels of the metadata, both kinds of store, in turn
  python -m tests.support.correctness.run --kills 500 --precise --level 0 1 --store folder s3
  # a race is made wider: each read of the audit topic takes 0.8 s longer
  python -m tests.support.correctness.run --kills 50 --precise --delay 'read audit=0.8'

anomalies, as the report names them:
  lost-write, unseen, duplicate, inconsistent-offsets, nonmonotonic-*, *poll-skip, G1a, early-read,
  precommitted-read, uncopied, out-of-range   seen by clients    (checker.py)
  hole, leaked-object, missing-object, damaged-object, unfinished-segment, undeleted-topic,
  expired-early, unsettled                    in the tiers       (settled_tier.py)
  unerased                                    in any file        (erasing.py)

exit status: 0 none found, 1 anomalies: the round's folder is kept, with the broker's log in
broker.log. S3 needs the server that scripts/s3-server.sh installs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int | None
    seconds: float | None
    directory: Path | None
    kills: int | None
    kills_per_round: int
    precise: bool
    writes: Sequence[str]
    levels: Sequence[int]
    stores: Sequence[Store]
    segment_bytes: int | None
    local_retention_bytes: int | None
    task_interval_ms: int | None
    calm_s: tuple[float, float] | None
    patience_s: float | None
    delays: dict[str, float]
    erases: bool

    def profiles(self) -> list[Profile]:
        """One profile for each level and store."""
        return [self._profile(*each) for each in itertools.product(self.levels, self.stores)]

    def _profile(self, level: int, store: Store) -> Profile:
        if self.kills is None:
            profile = Profile(
                level=level,
                store=store,
                precise=self.precise,
                writes=self.writes,
                delays=self.delays,
            )
        else:
            profile = kill_loop(
                level=level,
                store=store,
                faults_max=min(self.kills, self.kills_per_round),
                precise=self.precise,
                writes=self.writes,
                delays=self.delays,
            )
        profile = replace(profile, erases=self.erases)
        if self.segment_bytes is not None:
            profile = replace(profile, segment_bytes=self.segment_bytes)
        if self.local_retention_bytes is not None:
            profile = replace(profile, local_retention_bytes=self.local_retention_bytes)
        if self.task_interval_ms is not None:
            profile = replace(profile, task_interval_ms=self.task_interval_ms)
        if self.patience_s is not None:
            profile = replace(profile, patience_s=self.patience_s)
        if self.calm_s is not None:
            profile = replace(profile, calm_s=self.calm_s)
        return profile


def _delay(text: str) -> tuple[str, float]:
    name, _, seconds = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"a delay is KIND=SECONDS, not {text!r}")
    return name, float(seconds)


def parse_options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.correctness.run",
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, help="repeats a mix of operations and faults; default: the time")
    add("--seconds", type=float, help=f"how long to work; default {ROUND_S:.0f} without --kills")
    add(
        "--directory", type=Path, help="where brokers keep their data; default: a new temporary one"
    )
    add("--kills", type=int, metavar="N", help="a kill loop, until so many kills and pauses")
    add(
        "--kills-per-round",
        type=int,
        metavar="N",
        default=KILLS_PER_ROUND,
        help="kills and pauses of one broker's folder before all is checked; default %(default)s",
    )
    add("--precise", action="store_true", help="kills before or after a durable write of each kind")
    add("--at", action="append", default=[], metavar="KIND",
        help="with --precise: at writes of this kind alone, such as 'metadata"
        " COPY_SEGMENT_FINISHED'; may be repeated; the report's table names the kinds")  # fmt: skip
    add(
        "--level",
        type=int,
        choices=(0, 1),
        nargs="+",
        default=[1],
        help="of remote.log.metadata.compaction; of several a round each in turn; default 1",
    )
    add("--store", choices=[each.value for each in Store], nargs="+", default=["folder"],
        help="where the bucket is; of several a round each in turn; default folder")  # fmt: skip
    add("--segment-bytes", type=int, metavar="BYTES", help="default 131072; 100000 with --kills")
    add("--local-retention-bytes", type=int, metavar="BYTES", help="default 1")
    add(
        "--task-interval-ms",
        type=int,
        metavar="MS",
        help="between runs of copy, expiration and retention; default 100; 300 with --kills",
    )
    add(
        "--calm-s",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="how long the broker works between two faults; default 0.5 3; 1 3 with --kills",
    )
    add(
        "--patience-s",
        type=float,
        metavar="S",
        help="with --precise: how long the broker may take to come to its write; default 8",
    )
    add(
        "--delay",
        type=_delay,
        action="append",
        default=[],
        metavar="KIND=SECONDS",
        help="hold up each read or write of a kind, such as 'read audit=0.8'; may be repeated",
    )
    add(
        "--erase",
        action="store_true",
        help="random records of a topic are erased in place meanwhile; at level 1",
    )
    chosen = parser.parse_args(arguments)
    if chosen.erase and 0 in chosen.level:
        parser.error("--erase is at level 1: at level 0 no segment is replaced")
    seconds = chosen.seconds
    if seconds is None and chosen.kills is None:
        seconds = ROUND_S
    return Options(
        seed=chosen.seed,
        seconds=seconds,
        directory=chosen.directory,
        kills=chosen.kills,
        kills_per_round=chosen.kills_per_round,
        precise=chosen.precise or bool(chosen.at),
        writes=chosen.at,
        levels=chosen.level,
        stores=[Store(each) for each in chosen.store],
        segment_bytes=chosen.segment_bytes,
        local_retention_bytes=chosen.local_retention_bytes,
        task_interval_ms=chosen.task_interval_ms,
        calm_s=None if chosen.calm_s is None else tuple(chosen.calm_s),
        patience_s=chosen.patience_s,
        delays=dict(chosen.delay),
        erases=chosen.erase,
    )
