"""Faults of brokers and of their network while clients work."""

from __future__ import annotations

import enum
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from isotherm.clock import Clock
from oracle.kafka_cluster import CONTROLLER_NODE_ID
from oracle.leader_moves import elect_leader
from tests.support.cluster.links import Link, Links
from tests.support.cluster.members import COORDINATORS_PARTITIONS, LinkedCluster
from tests.support.correctness.workload import FORGETTING, PARTITIONS

CALM_S: Final = (0.5, 3.0)
AWAY_S: Final = (0.0, 3.0)
HELD_S: Final = (1.0, 9.0)
"""The range of pauses and splits: shorter and longer than a session."""


class ClusterFault(enum.Enum):
    KILL = "kill"
    """SIGKILL to a broker, which is started again."""
    KILL_TWO = "kill-two"
    """SIGKILL to two brokers at once: the remaining replica must not acknowledge anything."""
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT: by then another broker may lead."""
    STOP = "stop"
    """SIGTERM: the controlled shutdown."""
    SPLIT = "split"
    """Messages from one broker to another do not arrive."""
    DEAF = "deaf"
    """No message to a broker arrives from the others."""
    MUTE = "mute"
    """No message from a broker arrives at the others."""
    UNHEARD = "unheard"
    """Messages from a broker to the controller do not arrive."""
    UNTOLD = "untold"
    """Messages from the controller to a broker do not arrive."""
    SPLIT_AND_KILL = "split-and-kill"
    """A broker is killed while the two others are split in one direction."""
    MOVE = "move"
    """Other brokers are elected for the partitions of all coordinators, and for those whose records
    are erased."""


WEIGHTS: Final[Mapping[ClusterFault, float]] = {
    ClusterFault.KILL: 3,
    ClusterFault.KILL_TWO: 0.5,
    ClusterFault.PAUSE: 2,
    ClusterFault.STOP: 1.5,
    ClusterFault.SPLIT: 1.5,
    ClusterFault.DEAF: 1,
    ClusterFault.MUTE: 1,
    ClusterFault.UNHEARD: 1,
    ClusterFault.UNTOLD: 1,
    ClusterFault.SPLIT_AND_KILL: 1,
    ClusterFault.MOVE: 1,
}


class ClusterNemesis:
    """Injects faults into a cluster. `faults` counts them."""

    def __init__(
        self,
        cluster: LinkedCluster,
        links: Links,
        *,
        rng: random.Random,
        clock: Clock,
        say: Callable[[str], None],
        weights: Mapping[ClusterFault, float] = WEIGHTS,
    ) -> None:
        self._weights = weights
        self.faults: Counter[ClusterFault] = Counter()
        self._cluster = cluster
        self._links = links
        self._rng = rng
        self._clock = clock
        self._say = say

    def run(self, stopping: threading.Event) -> None:
        """Inject faults, each mended at its end, until `stopping` is set.

        All brokers run afterwards. AssertionError if a broker ends that no fault has ended.
        """
        try:
            while not self._clock.wait(stopping, self._rng.uniform(*CALM_S)):
                (fault,) = self._rng.choices(list(self._weights), list(self._weights.values()))
                self.faults[fault] += 1
                self._do(fault, stopping)
                self.check_all_run()
        finally:
            # After an error the clients must stop too.
            stopping.set()

    def check_all_run(self) -> None:
        for node_id, member in self._cluster.members.items():
            if member.has_ended:
                raise AssertionError(f"broker {node_id} has ended by itself\n{member.log_text}")

    def _do(self, fault: ClusterFault, stopping: threading.Event) -> None:
        one, two, three = self._shuffled()
        self._say(f"  {self._clock.monotonic_s():.1f} {fault.value} broker={one} with={two}")
        links = _links(fault, one, two, [node for node in self._cluster.nodes if node != one])
        match fault:
            case ClusterFault.KILL | ClusterFault.KILL_TWO:
                killed = (one,) if fault is ClusterFault.KILL else (one, two)
                for each in killed:
                    self._cluster.members[each].kill()
                self._start(stopping, *killed)
            case ClusterFault.STOP:
                self._cluster.members[one].stop()
                self._start(stopping, one)
            case ClusterFault.PAUSE:
                self._cluster.pause(one)
                self._clock.wait(stopping, self._rng.uniform(*HELD_S))
                self._cluster.resume(one)
            case ClusterFault.SPLIT_AND_KILL:
                self._links.cut(*links)
                self._clock.wait(stopping, self._rng.uniform(*HELD_S) / 2)
                self._cluster.members[three].kill()
                self._clock.wait(stopping, self._rng.uniform(*HELD_S) / 2)
                self._links.mend(*links, reset=self._rng.random() < 0.5)
                self._start(stopping, three)
            case ClusterFault.MOVE:
                self._move_leaders()
            case _:
                self._links.cut(*links)
                self._clock.wait(stopping, self._rng.uniform(*HELD_S))
                self._links.mend(*links, reset=self._rng.random() < 0.5)
        self._say(f"  {self._clock.monotonic_s():.1f} {fault.value} is over")

    def _move_leaders(self) -> None:
        moved = {**COORDINATORS_PARTITIONS, FORGETTING: PARTITIONS[FORGETTING]}
        for topic, count in moved.items():
            for partition in range(count):
                # The election fails while there is no such topic, or the replica is not in sync.
                elect_leader(self._cluster.servers, topic, partition, self._shuffled())

    def _shuffled(self) -> Sequence[int]:
        members = list(self._cluster.members)
        self._rng.shuffle(members)
        return members

    def _start(self, stopping: threading.Event, *node_ids: int) -> None:
        self._clock.wait(stopping, self._rng.uniform(*AWAY_S))
        with ThreadPoolExecutor(len(node_ids)) as pool:
            list(pool.map(self._cluster.start_member, node_ids))


def _links(fault: ClusterFault, one: int, two: int, others: Sequence[int]) -> Sequence[Link]:
    """The links of broker `one` that a split cuts."""
    match fault:
        case ClusterFault.DEAF:
            return [(other, one) for other in others]
        case ClusterFault.MUTE:
            return [(one, other) for other in others]
        case ClusterFault.UNHEARD:
            return [(one, CONTROLLER_NODE_ID)]
        case ClusterFault.UNTOLD:
            return [(CONTROLLER_NODE_ID, one)]
        case _:
            return [(one, two)]
