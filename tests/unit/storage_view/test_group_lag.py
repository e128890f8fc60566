"""The tier of a group's next record at each border of a log: remote up to 90, local from there to
127."""

from __future__ import annotations

import pytest

from isotherm.storage_view.group_lag import ReadsFrom, group_lags
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.share_offsets import ShareOffset
from isotherm.types import TopicPartition
from tests.support.scripted_cluster import NOW_MS, ScriptedCluster, local_tier, remote_segment

PLACE = TopicPartition("topic", 0)
TIER = ReadsFrom


@pytest.mark.parametrize(
    ("committed", "reads_from", "lag", "remote_lag", "ages_s"),
    [
        (5, TIER.DELETED, 117, 80, (9, 10)),
        (10, TIER.REMOTE, 117, 80, (9, 10)),
        (89, TIER.REMOTE, 38, 1, (2, 3)),
        (90, TIER.LOCAL, 37, 0, (1, 2)),
        (100, TIER.LOCAL, 27, 0, (None, 1)),
        (127, TIER.END, 0, 0, (0, 0)),
        (130, TIER.BEYOND, -3, 0, (None, 1)),
    ],
)
def test_lag_and_tier_at_each_border(
    committed: int,
    reads_from: ReadsFrom,
    lag: int,
    remote_lag: int,
    ages_s: tuple[float | None, float | None],
) -> None:
    cluster = ScriptedCluster()
    segments = [
        remote_segment(n + 1, n * 10, n * 10 + 9, age_ms=(10 - n) * 1000) for n in range(10)
    ]
    cluster.add("topic", segments, local_tier(10, 90, 127, 37))
    group = GroupState("readers", "Stable", "classic", {PLACE: committed})
    (found,) = group_lags(group, cluster.read().topics, NOW_MS)
    assert found.reads_from is reads_from
    assert (found.lag, found.remote_lag) == (lag, remote_lag)
    assert (found.age_s, found.age_s_max) == ages_s


def test_partition_that_is_gone_is_unknown() -> None:
    group = GroupState("readers", "Empty", "classic", {PLACE: 7, TopicPartition("topic", 9): 3})
    cluster = ScriptedCluster()
    cluster.add("topic", [], local_tier(0, 0, 10, 10))
    known, gone = group_lags(group, cluster.read().topics, NOW_MS)
    assert (known.reads_from, known.lag) == (TIER.LOCAL, 3)
    assert (gone.reads_from, gone.lag) == (TIER.UNKNOWN, None)


def test_lag_of_a_share_group_is_its_coordinators() -> None:
    cluster = ScriptedCluster()
    segments = [remote_segment(n + 1, n * 10, n * 10 + 9) for n in range(10)]
    cluster.add("topic", segments, local_tier(10, 90, 127, 37))
    old, gone = TopicPartition("topic", 1), TopicPartition("topic", 9)
    share = {
        PLACE: ShareOffset(60, 40),
        old: ShareOffset(None, None),
        gone: ShareOffset(None, None, "LEADER_NOT_AVAILABLE"),
    }
    committed = {PLACE: 60}
    group = GroupState("workers", "Stable", "share", committed, share=share)
    first, second, third = group_lags(group, cluster.read().topics, NOW_MS)
    # Of the 67 offsets from 60 to 127, the delivery of 27 is over.
    assert (first.committed_offset, first.lag, first.delivered_max) == (60, 40, 27)
    assert (first.reads_from, first.remote_lag) == (TIER.REMOTE, 30)
    assert (second.reads_from, second.lag, second.delivered_max) == (TIER.NOTHING, None, None)
    assert (third.reads_from, third.committed_offset) == (TIER.UNKNOWN, None)
    # The broker has no more records than the lag, so fewer of them are remote.
    share[PLACE] = ShareOffset(60, 7)
    assert group_lags(group, cluster.read().topics, NOW_MS)[0].remote_lag == 7
    share[PLACE] = ShareOffset(60, 0)
    done = group_lags(group, cluster.read().topics, NOW_MS)[0]
    assert (done.reads_from, done.lag, done.remote_lag, done.age_s) == (TIER.END, 0, 0, 0)
    assert done.delivered_max == 67
    # A broker before Kafka 4.2 reports no lag.
    share[PLACE] = ShareOffset(60, None)
    older = group_lags(group, cluster.read().topics, NOW_MS)[0]
    assert (older.lag, older.delivered_max) == (None, None)
