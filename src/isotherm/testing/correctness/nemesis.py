"""What happens to the broker while clients work: it is killed, paused, stopped, started again."""

from __future__ import annotations

import enum
import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from isotherm.clock import Clock
from isotherm.testing.broker_process import BrokerProcess

# How long the broker stands still or is away, at most: shorter than what its clients wait.
PAUSE_S_MAX = 3.0
AWAY_S_MAX = 1.0
CALM_S_MIN, CALM_S_MAX = 0.5, 3.0


class Fault(enum.Enum):
    KILL = "kill"
    """SIGKILL: what it acknowledged lies in the page cache and has to be there again."""
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT: requests wait in its sockets, timers all fire at once."""
    RESTART = "restart"
    """SIGTERM: the orderly stop."""


class Nemesis:
    """Owns the broker process of one round. `faults` counts what it has done."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str], *, rng: random.Random, clock: Clock
    ) -> None:
        """Starts the broker; `settings` name its port, which stays the same."""
        self.faults: Counter[Fault] = Counter()
        self._directory = directory
        self._settings = settings
        self._rng = rng
        self._clock = clock
        self.broker = BrokerProcess(directory, settings)

    def run(self, stopping: threading.Event) -> None:
        """Faults with calm in between until `stopping` is set; the broker serves afterwards."""
        while not self._clock.wait(stopping, self._rng.uniform(CALM_S_MIN, CALM_S_MAX)):
            fault = self._rng.choice(list(Fault))
            self.faults[fault] += 1
            if fault is Fault.PAUSE:
                self.broker.pause()
                self._clock.wait(stopping, self._rng.uniform(0.1, PAUSE_S_MAX))
                self.broker.resume()
            else:
                self._start_again(stopping, killed=fault is Fault.KILL)

    def stop(self) -> int:
        """The exit status of an orderly stop."""
        return self.broker.stop()

    def kill(self) -> None:
        """Leave nothing running, whatever state the broker is in. Idempotent."""
        if self.broker.process.poll() is None:
            self.broker.kill()

    def _start_again(self, stopping: threading.Event, *, killed: bool) -> None:
        if killed:
            self.broker.kill()
        else:
            status = self.broker.stop()
            if status != 0:
                raise AssertionError(
                    f"broker stopped badly status={status}\n{self.broker.log_text}"
                )
        self._clock.wait(stopping, self._rng.uniform(0, AWAY_S_MAX))
        self.broker = BrokerProcess(self._directory, self._settings)
