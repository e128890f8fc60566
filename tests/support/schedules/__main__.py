"""Plays schedules of the remote tier's tasks, and prints those that fail: docs/simulation.md.

    python -m tests.support.schedules --seeds 0:2000       runs from seeds
    python -m tests.support.schedules --seeds 17 --story   one of them, and what it did
    python -m tests.support.schedules --explore            every schedule of the scenarios
    python -m tests.support.schedules --scenario NAME ...  those of some
    python -m tests.support.schedules --scenario NAME --choices 0,0,1    one of them

Exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from isotherm.clock import SystemClock
from tests.support.memory_folder import memory_folder
from tests.support.schedules.random_runs import Outcome, RandomRun
from tests.support.schedules.scenarios import (
    RUNS_PER_COLLECTION,
    SCENARIOS,
    Scenario,
    explore,
    play,
    scenario_of,
)

say = partial(print, flush=True)
_CLOCK = SystemClock()
_PROGRESS_S = 20.0
_FAILURES_MAX = 20


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    gc.collect()
    gc.freeze()
    gc.disable()  # where it runs depends on more than the seed or the choices
    with memory_folder() as folder:
        if options.choices is not None:
            return _play_again(scenario_of(*options.scenario), options.choices, folder)
        is_sound = True
        if options.seeds is not None:
            is_sound = _play_seeds(_range_of(options.seeds), folder, story=options.story)
        for scenario in _chosen(options):
            is_sound = _explore(scenario, folder, options.limit) and is_sound
    return 0 if is_sound else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.schedules")
    parser.add_argument("--seeds", metavar="A:B", help="play the seeds from A to B, or A alone")
    parser.add_argument("--story", action="store_true", help="print what each run did")
    parser.add_argument("--explore", action="store_true", help="explore every scenario")
    parser.add_argument("--scenario", nargs="+", choices=[each.name for each in SCENARIOS])
    parser.add_argument(
        "--choices", help="play one schedule of the scenario, as a failure names it"
    )
    parser.add_argument("--limit", type=int, help="explore no more schedules of a scenario")
    parser.add_argument("--preemptions", type=int, help="allow as many in every scenario")
    options = parser.parse_args(arguments)
    if options.choices is not None and len(options.scenario or ()) != 1:
        parser.error("--choices needs one --scenario")
    if not (options.seeds or options.explore or options.scenario):
        parser.error("nothing to play: give --seeds, --explore or --scenario")
    return options


def _range_of(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _chosen(options: argparse.Namespace) -> tuple[Scenario, ...]:
    chosen = SCENARIOS if options.explore else ()
    if options.scenario is not None:
        chosen = tuple(map(scenario_of, options.scenario))
    if options.preemptions is None:
        return chosen
    return tuple(replace(each, preemptions=options.preemptions) for each in chosen)


def _play_seeds(seeds: range, folder: Path, *, story: bool) -> bool:
    figures = Figures()
    for seed in seeds:
        figures.begin()
        run = RandomRun(seed, _made(folder / "run"))
        try:
            figures.note(run.play())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            figures.failed.append(seed)
            say(f"FAILED seed={seed} {type(error).__name__}: {error}")
            say(f"again: python -m tests.support.schedules --seeds {seed} --story")
            cause = error.__cause__
            if cause is not None:
                say(f"cause: {cause!r}")
        if story:
            say("\n".join(run.run.story))
        shutil.rmtree(folder / "run")
        if seed % RUNS_PER_COLLECTION == 0:
            gc.collect()
        figures.tell_progress(len(seeds))
        if len(figures.failed) >= _FAILURES_MAX:
            break
    figures.tell()
    return not figures.failed


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


class Figures:
    """The results of the runs."""

    def __init__(self) -> None:
        self.began_s = _CLOCK.monotonic_s()
        self._reported_s = self.began_s
        self.runs = 0
        self.points = 0
        self.checks = 0
        self.emptied = 0
        self.digests: set[str] = set()
        self.failed: list[int] = []
        self.crashes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()

    def begin(self) -> None:
        self.runs += 1

    def note(self, outcome: Outcome) -> None:
        self.points += outcome.points
        self.checks += outcome.checks
        self.emptied += outcome.emptied
        self.digests.add(outcome.digest)
        self.crashes += outcome.crashes
        self.faults += outcome.faults
        self.actions += outcome.actions

    def tell_progress(self, total: int) -> None:
        now_s = _CLOCK.monotonic_s()
        if now_s - self._reported_s >= _PROGRESS_S:
            self._reported_s = now_s
            rate = self.runs / (now_s - self.began_s)
            say(f"runs={self.runs}/{total} failed={len(self.failed)} rate={rate:.0f}/s", flush=True)

    def tell(self) -> None:
        took_s = _CLOCK.monotonic_s() - self.began_s
        say(
            f"runs={self.runs} failed={len(self.failed)} seconds={took_s:.0f}"
            f" distinct={len(self.digests)} points={self.points} checks={self.checks}"
            f" emptied={self.emptied}"
        )
        for name in ("crashes", "faults", "actions"):
            for what, count in sorted(getattr(self, name).items()):
                say(f"{name} {what!r} {count}")
        if self.failed:
            say(f"failed seeds={self.failed}")


def _explore(scenario: Scenario, folder: Path, limit: int | None) -> bool:
    began_s = _CLOCK.monotonic_s()
    explored = explore(scenario, folder / scenario.name, limit=limit)
    say(
        f"scenario={scenario.name} schedules={explored.schedules} distinct={len(explored.traces)}"
        f" points={explored.points} crashes={explored.crashes.total()}"
        f" failed={len(explored.failures)} seconds={_CLOCK.monotonic_s() - began_s:.0f}",
        flush=True,
    )
    for failure in explored.failures:
        say(f"FAILED {failure}")
    return not explored.failures


def _play_again(scenario: Scenario, listed: str, folder: Path) -> int:
    choices = () if listed == "-" else tuple(map(int, listed.split(",")))
    played = play(scenario, choices, folder / "run")
    say(played.failure or "\n".join(played.scheduler.story))
    return 1 if played.failure is not None else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a schedule: the same in every process.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.support.schedules", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
