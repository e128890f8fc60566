"""The plan of a table's run: what is read after the offsets that the table has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isotherm.errors import ConfigError, OffsetOutOfRangeError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.topic_plan import _ranges, plan_topic
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.tables.open_table import table_source_options
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker
from tests.unit.spark.driver.test_batch_query import FakeBrokers, FixedSegments

Ranges = Callable[..., list[tuple[int, int, int]]]


@pytest.fixture
def ranges(storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition) -> Ranges:
    """The ranges as (partition, start, end) of a topic that is only on the brokers, for the bounds
    of its partitions."""

    def planned(
        covered: dict[int, int], *bounds: OffsetBounds, **texts: str
    ) -> list[tuple[int, int, int]]:
        brokers = FakeBrokers(
            {owner._replace(partition=number): each for number, each in enumerate(bounds)}
        )
        given = {"path": "memory://", "subscribe": owner.topic, "kafka.bootstrap.servers": "no:1"}
        options = table_source_options({**given, **texts})
        log = TieredLog(options, storage, FixedSegments(), brokers)
        found = log.planned(lambda views: _ranges(log, views, covered))
        return [(each.topic_partition.partition, each.start, each.end) for each in found]

    return planned


def test_new_partition_that_lacks_its_beginning_is_data_loss(ranges: Ranges) -> None:
    bounds = OffsetBounds(0, 10), OffsetBounds(3, 9)
    with pytest.raises(OffsetOutOfRangeError, match=r"partition=a-1 first_available=3"):
        ranges({0: 10}, *bounds)
    assert ranges({0: 10}, *bounds, failOnDataLoss="false") == [(0, 10, 10), (1, 3, 9)]
    assert ranges({0: 10}, bounds[0], OffsetBounds(0, 9)) == [(0, 10, 10), (1, 0, 9)]
    assert ranges({}, *bounds) == [(0, 0, 10), (1, 3, 9)], "the first run takes what there is"


def test_log_of_the_brokers_that_became_shorter_is_data_loss(ranges: Ranges) -> None:
    shorter = OffsetBounds(0, 5)
    with pytest.raises(OffsetOutOfRangeError, match=r"covered_end=10 available_end=5 .*isolation"):
        ranges({0: 10}, shorter)
    assert ranges({0: 10}, shorter, failOnDataLoss="false") == [(0, 10, 10)]
    assert ranges({0: 10}, shorter, includeTail="false") == [(0, 10, 10)], "the bucket lags"
    assert ranges({0: 5}, shorter) == [(0, 5, 5)]


def test_another_topic_is_refused_before_its_offsets_are_compared(
    maker: RecordSegmentMaker, storage_settings: ObjectStoreSettings, owner: TopicIdPartition
) -> None:
    maker.tier(owner, [build_batch([NewRecord(0, None, b"v")], base_offset=9)])
    options = table_source_options({"path": storage_settings.url, "subscribe": owner.topic})

    def refuse(_: str) -> None:
        raise ConfigError("another topic")

    with pytest.raises(OffsetOutOfRangeError, match="no longer kept"):
        plan_topic(options, {0: 2})
    with pytest.raises(ConfigError, match="another topic"):
        plan_topic(options, {0: 2}, refuse)
