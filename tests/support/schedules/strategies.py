"""Strategies for the next thread: random choices from a seed, or every choice in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.support.schedules.scheduler import CRASH, Decision, Scheduler, SimulatedThread

_HELD_MS = (0, 0, 1, 50, 400, 800, 2_000, 5_000, 15_000)
"""Delays of a preempted thread: as by a scheduler, a disk, or a slow store."""


_CRASH_CHANCES = {
    "append metadata": 0.06,
    "append audit": 0.01,
    "put": 0.005,
    "delete": 0.01,
    "write": 0.01,
    "rename": 0.005,
    "cluster": 0.02,
    "stop": 0.02,
    "lock": 0.0001,
}
"""Probabilities by the prefix of a point's label: nothing durable happens at most points."""


@cache
def _crash_chance(label: str) -> float:
    for begin, chance in _CRASH_CHANCES.items():
        if label.startswith(begin):
            return chance
    return 0.0002


_PREEMPTION_WEIGHTS = {"lock metadata partition": 4, "append": 3, "delete": 2, "lock log": 2}
_BEGINNING = 400
"""The first points of a process: there it repairs the effects of a crash."""


@cache
def _preemption_weight(label: str) -> int:
    return next((w for begin, w in _PREEMPTION_WEIGHTS.items() if label.startswith(begin)), 1)


class RandomStrategy:
    """Random choices at rates that depend on the seed.

    Some seeds preempt rarely, some often. A preempted thread may be delayed for long while the
    others continue.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._preempts = rng.choice([0.02, 0.05, 0.12])
        self._crashes = rng.choice([0.0, 0.1, 0.5, 2.0])
        self._held_ms = _HELD_MS if rng.random() < 0.8 else (0,)
        self.is_calm = False
        """No crashes and no delays: at the end of a run."""

    def at_point(self, scheduler: Scheduler, me: SimulatedThread, label: str) -> Decision:
        if self._crashes and self._rng.random() < self._crashes * _crash_chance(label):
            return None if self.is_calm else CRASH
        chance = self._preempts * _preemption_weight(label)
        if scheduler.points - scheduler.began_at < _BEGINNING:
            chance *= 2
        if self._rng.random() >= chance:
            return None
        others = [each for each in scheduler.ready() if each is not me]
        if not others:
            return None
        held_ms = 0 if self.is_calm or me.outside else self._rng.choice(self._held_ms)
        me.held_until_ms = scheduler.now_ms + held_ms
        return self._rng.choice(others)

    def next_thread(
        self, scheduler: Scheduler, ready: list[SimulatedThread], label: str
    ) -> SimulatedThread:
        return self._rng.choice(ready)


@dataclass(frozen=True, slots=True)
class _Met:
    """A choice of a run: the number of options, and of those outside the budget."""

    options: int
    costs: tuple[str, ...]


class ListedChoices:
    """Takes the choices of a list, then 0: a thread runs as long as it can.

    At a point choice 0 continues the thread, the next ones are the other ready threads, and the
    last one is a crash. A point offers a choice only if the budget allows another than 0.
    """

    def __init__(self, choices: tuple[int, ...], *, preemptions: int, crashes: int) -> None:
        self.choices = choices
        self.met: list[_Met] = []
        self._preemptions = preemptions
        self._crashes = crashes

    def at_point(self, scheduler: Scheduler, me: SimulatedThread, label: str) -> Decision:
        if scheduler.is_crashed:
            return None
        others: list[Decision] = []
        if self._preemptions > 0:
            others += [each for each in scheduler.ready() if each is not me and not each.outside]
        costs = ["", *("preemption" for _ in others)]
        if self._crashes > 0 and not me.outside and self.may_crash(label):
            others.append(CRASH)
            costs.append("crash")
        if not others:
            return None
        choice = self._choose(costs)
        if costs[choice] == "preemption":
            self._preemptions -= 1
        elif costs[choice] == "crash":
            self._crashes -= 1
        return None if choice == 0 else others[choice - 1]

    def may_crash(self, label: str) -> bool:
        """Whether a crash is a choice there."""
        return True

    def next_thread(
        self, scheduler: Scheduler, ready: list[SimulatedThread], label: str
    ) -> SimulatedThread:
        driver_last = sorted(ready, key=lambda each: each.outside)
        return driver_last[self._choose([""] * len(driver_last))]

    def _choose(self, costs: list[str]) -> int:
        at = len(self.met)
        self.met.append(_Met(len(costs), tuple(costs)))
        choice = self.choices[at] if at < len(self.choices) else 0
        if choice >= len(costs):
            raise ValueError(f"no such choice at={at} choice={choice} options={len(costs)}")
        return choice


class Exploration:
    """Enumerates all lists of choices, depth first."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ...]] = [()]
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        while self._waiting:
            self.count += 1
            yield self._waiting.pop()

    def add(self, run: ListedChoices) -> None:
        """Add the choices of `run` beyond its list."""
        taken = run.choices + (0,) * (len(run.met) - len(run.choices))
        for at in range(len(run.choices), len(run.met)):
            for choice in range(1, run.met[at].options):
                self._waiting.append((*taken[:at], choice))
