"""How often the console reads its cluster, and what it shows when a read fails."""

from __future__ import annotations

from isotherm.console.watched_cluster import WatchedCluster
from isotherm.errors import BrokerUnreachableError
from isotherm.storage_view.cluster_storage import ClusterStorage
from isotherm.testing.sim_clock import SimClock
from tests.support.scripted_cluster import ScriptedCluster

INTERVAL_S = 5.0
INTERVAL_MS = 5000


class Counted(ScriptedCluster):
    """Counts the reads of the cluster's state."""

    reads = 0

    def read(self) -> ClusterStorage:
        self.reads += 1
        return super().read()


def test_cluster_is_read_once_in_an_interval_and_only_if_a_page_asks() -> None:
    cluster, clock = Counted(), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    clock.advance(100_000)
    assert cluster.reads == 0
    first = watched.look()
    clock.advance(INTERVAL_MS - 100)
    assert watched.look() is first
    clock.advance(100)
    assert watched.look() is not first
    assert cluster.reads == 2


def test_last_look_stays_while_the_cluster_is_gone() -> None:
    cluster, clock = Counted(), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    before = watched.look().content
    cluster.is_gone = True
    clock.advance(INTERVAL_MS)
    lost = watched.look()
    assert lost.content is before
    assert "no broker is reachable" in (lost.error or "")
    watched.look()
    assert cluster.reads == 2
    cluster.is_gone = False
    clock.advance(INTERVAL_MS)
    assert watched.look().error is None


def test_cluster_that_never_answered_is_tried_again() -> None:
    clock = SimClock()
    cluster = ScriptedCluster()
    attempts = []

    def opened() -> ScriptedCluster:
        attempts.append(1)
        if len(attempts) == 1:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9")
        return cluster

    watched = WatchedCluster(opened, clock, INTERVAL_S)
    assert watched.look().content is None
    assert watched.look().content is None
    clock.advance(INTERVAL_MS)
    assert watched.look().content is not None
    assert len(attempts) == 2
