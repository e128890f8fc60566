"""Injects faults into the broker while clients work: kills, pauses, stops and restarts it.

With a `precise` profile each broker process gets a durable write at which it kills itself
(`crash_points`). If it does not reach that write in time, it is killed from outside.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isotherm.clock import Clock
from isotherm.testing.broker_process import ISOTHERM, BrokerDiedError, BrokerProcess
from tests.support.correctness.crash_points import CrashPlan, CrashPoint, CrashSchedule
from tests.support.correctness.profile import Fault, Profile

# A broker may crash at a write of its start. After this many crashes in a row it gets no crash
# point, so that it starts at all.
DEATHS_AT_START_MAX = 2
# The share of processes without a crash point after a process with one. They work on the files that
# the crash left.
UNPLANNED_SHARE = 0.5
_LOOK_S = 0.02
# Where a process imports the package `tests` from.
_ROOT = Path(__file__).parents[3]
_MEANT = frozenset({Fault.KILL, Fault.CRASH, Fault.PAUSE})


class Nemesis:
    """Owns the broker process of one round. `faults` counts the injected faults."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        profile: Profile,
        schedule: CrashSchedule,
        *,
        rng: random.Random,
        clock: Clock,
    ) -> None:
        """Start the broker. `settings` must name its port, which stays the same over restarts."""
        self.faults: Counter[Fault] = Counter()
        self.log_path = directory / "broker.log"
        """The logs of all broker processes that have ended."""
        self.missed: list[CrashPoint] = []
        """The crash points that a process did not reach in `patience_s`."""
        self._directory = directory
        self._settings = settings
        self._profile = profile
        self._schedule = schedule
        self._rng = rng
        self._clock = clock
        self._plan: CrashPlan | None = None
        self.broker = self._new_broker(None)

    def run(self, stopping: threading.Event) -> None:
        """Inject faults, with pauses in between, until `stopping` is set or the faults of a round
        are done, which sets it. At the end the broker runs."""
        try:
            while not self._is_done() and not self._await_end_of_calm(stopping):
                if self.broker.has_ended:
                    self._take_up_crash(self.broker.log_lines)
                    self._start(stopping)
                    continue
                if self._plan is not None:
                    self.missed.append(self._plan.point)
                fault = self._choose()
                self.faults[fault] += 1
                if fault is Fault.PAUSE:
                    self.broker.pause()
                    self._clock.wait(stopping, self._rng.uniform(0.1, self._profile.pause_s_max))
                    self.broker.resume()
                else:
                    self._end_broker(killed=fault is Fault.KILL)
                    self._start(stopping)
            self._leave_a_broker_at_peace()
        finally:
            stopping.set()

    def stop(self) -> int:
        """Stop the broker in order, and return its exit status."""
        status = self.broker.stop()
        self._keep_log(self.broker.log_lines)
        return status

    def kill(self) -> None:
        """Kill the broker in any state. Idempotent."""
        if not self.broker.has_ended:
            self.broker.kill()
            self._keep_log(self.broker.log_lines)

    def _is_done(self) -> bool:
        wanted = self._profile.faults_max
        return wanted is not None and sum(self.faults[fault] for fault in _MEANT) >= wanted

    def _await_end_of_calm(self, stopping: threading.Event) -> bool:
        """Wait until the pause is over or the broker has died.

        Returns whether the round is over.
        """
        calm_s = self._rng.uniform(*self._profile.calm_s)
        end_s = self._clock.monotonic_s() + (self._profile.patience_s if self._plan else calm_s)
        while not self.broker.has_ended and self._clock.monotonic_s() < end_s:
            if self._clock.wait(stopping, _LOOK_S):
                return True
        return False

    def _choose(self) -> Fault:
        faults = self._profile.faults
        (fault,) = self._rng.choices(list(faults), list(faults.values()))
        return fault

    def _end_broker(self, *, killed: bool) -> None:
        if killed:
            self.broker.kill()
            self._schedule.learn(self.broker.log_lines)
        else:
            status = self.broker.stop()
            # A crash point may also be reached during an orderly stop.
            hit = self._schedule.learn(self.broker.log_lines)
            if status != 0 and hit is None:
                raise AssertionError(
                    f"broker stopped badly status={status}\n{self.broker.log_text}"
                )
        self._keep_log(self.broker.log_lines)

    def _start(self, stopping: threading.Event) -> None:
        for death in range(DEATHS_AT_START_MAX + 1):
            self._clock.wait(stopping, self._rng.uniform(0, self._profile.away_s_max))
            is_planned = death < DEATHS_AT_START_MAX and self._is_next_planned()
            self._plan = self._schedule.choose() if is_planned else None
            try:
                self.broker = self._new_broker(self._plan)
            except BrokerDiedError as died:
                if self._plan is None:
                    raise
                self._take_up_crash(died.log_lines)
            else:
                return

    def _is_next_planned(self) -> bool:
        is_free = self._plan is None or self._rng.random() > UNPLANNED_SHARE
        return self._profile.precise and is_free

    def _leave_a_broker_at_peace(self) -> None:
        """Replace a broker with crash points or delays by one without."""
        if not self._profile.is_watched:
            return
        if self.broker.has_ended:
            self._take_up_crash(self.broker.log_lines)
        else:
            self._end_broker(killed=True)
            self.faults[Fault.KILL] += 1
        self.broker = BrokerProcess(self._directory, self._settings)

    def _take_up_crash(self, log_lines: list[bytes]) -> None:
        """Record a crash of the broker. Raises AssertionError if it was not planned."""
        self._keep_log(log_lines)
        if self._schedule.learn(log_lines) is None:
            raise AssertionError(f"broker ended by itself\n{b''.join(log_lines).decode()}")
        self.faults[Fault.CRASH] += 1

    def _new_broker(self, plan: CrashPlan | None) -> BrokerProcess:
        program: Sequence[str] = ISOTHERM
        environment = {}
        if self._profile.is_watched:
            wanted: dict[str, Any] = {"delays": dict(self._profile.delays)}
            if plan is not None:
                point = plan.point
                wanted |= {"write": point.write, "side": point.side.value, "nth": plan.nth}
            program = ("-m", "tests.support.crashing_broker", json.dumps(wanted))
            environment = {"PYTHONPATH": str(_ROOT)}
        return BrokerProcess(
            self._directory, self._settings, program=program, environment=environment
        )

    def _keep_log(self, log_lines: list[bytes]) -> None:
        with self.log_path.open("ab") as log:
            log.writelines([*log_lines, b"-- the process has ended --\n"])
