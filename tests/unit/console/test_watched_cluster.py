"""How often the console reads its cluster, and what it shows when a read fails."""

from __future__ import annotations

from collections.abc import Sequence
from queue import Queue
from threading import Event, Thread

from isotherm.console.watched_cluster import WatchedCluster
from isotherm.errors import BrokerUnreachableError
from isotherm.storage_view.cluster_reader import BrokerState
from isotherm.storage_view.cluster_storage import ClusterStorage
from isotherm.storage_view.group_lag import group_lags
from isotherm.storage_view.group_reader import GroupState
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.scripted_cluster import NOW_MS, ScriptedCluster, local_tier

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


class Asked(ScriptedCluster):
    """Lists the groups of the brokers that it is given, as a reader of a cluster does."""

    def read_groups(self, brokers: Sequence[BrokerState]) -> list[GroupState]:
        return super().read_groups(brokers) if brokers else []


def test_groups_are_not_said_to_be_none_while_the_brokers_are_unknown() -> None:
    cluster, clock = Asked(), SimClock()
    cluster.groups = [GroupState("readers", "Empty", "classic", {TopicPartition("t", 0): 1})]
    cluster.is_gone = True
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    assert watched.look().content is None
    cluster.is_gone = False
    assert [group.group_id for group in watched.groups().content or ()] == ["readers"]


class Busy(ScriptedCluster):
    """A topic that grows before each request, and a group that has read all of it."""

    end = 100
    goes_after_groups = False

    def _grow(self) -> None:
        self.end += 50
        self._topics.clear()
        self.add("busy", [], local_tier(0, 0, self.end, self.end))

    def read(self) -> ClusterStorage:
        self._grow()
        return super().read()

    def read_groups(self, brokers: Sequence[BrokerState]) -> list[GroupState]:
        self._grow()
        self.groups = [
            GroupState("readers", "Stable", "classic", {TopicPartition("busy", 0): self.end})
        ]
        found = super().read_groups(brokers)
        self.is_gone = self.goes_after_groups
        return found


def lag_of(watched: WatchedCluster) -> int | None:
    """The lag in the order of the console's pages: the groups, then the state of the cluster."""
    (group,) = watched.groups().content or ()
    storage = watched.look().content
    assert storage is not None
    (found,) = group_lags(group, storage.topics, NOW_MS)
    return found.lag


def test_a_group_of_a_busy_topic_has_committed_nothing_beyond_the_end() -> None:
    cluster, clock = Busy(), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    for step_ms in (0, 1000, INTERVAL_MS, 0, 3000, 3000, INTERVAL_MS):
        clock.advance(step_ms)
        lag = lag_of(watched)
        assert lag is not None
        assert lag >= 0


def test_commits_are_not_shown_beside_ends_that_were_read_before_them() -> None:
    cluster, clock = Busy(), SimClock()
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    before = watched.groups().content
    cluster.goes_after_groups = True
    clock.advance(INTERVAL_MS)
    lag = lag_of(watched)
    assert lag is not None
    assert lag > 0
    look = watched.groups()
    assert look.content is before
    assert "no broker is reachable" in (look.error or "")
    assert "no broker is reachable" in (watched.look().error or "")


class Slow(ScriptedCluster):
    """From the second read on, the cluster's state waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go, self.closed, self._reads = Event(), Event(), 0, 0

    def read(self) -> ClusterStorage:
        self._reads += 1
        if self._reads > 1:
            self.begun.set()
            assert self.go.wait(300)
        return super().read()

    def close(self) -> None:
        self.closed += 1


def test_details_do_not_wait_for_a_look_at_the_cluster() -> None:
    cluster, clock = Slow(), SimClock()
    cluster.groups = [GroupState("readers", "Stable", "classic", {})]
    watched = WatchedCluster(lambda: cluster, clock, INTERVAL_S)
    cluster.go.set()
    (group,) = watched.groups().content or ()
    cluster.begun.clear()
    cluster.go.clear()
    clock.advance(INTERVAL_MS)
    look = Thread(target=watched.look)
    look.start()
    assert cluster.begun.wait(300)
    details = Queue[object]()

    def read_details() -> None:
        storage = watched.look().content
        assert storage is not None
        (broker,) = storage.brokers
        details.put(watched.topic_settings("orders").content)
        details.put(watched.broker_settings(broker).content)
        details.put(watched.releases().content)
        details.put(watched.members(group).content)

    page = Thread(target=read_details)
    page.start()
    try:
        found = [details.get(timeout=300) for _ in range(4)]
    finally:
        cluster.go.set()
        look.join()
        page.join()
    assert None not in found
    watched.close()
    assert cluster.closed == 2
