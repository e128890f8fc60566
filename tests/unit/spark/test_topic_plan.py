"""The plan of a table's run: what is read after the offsets that the table has."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError, OffsetOutOfRangeError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.topic_plan import plan_topic
from isotherm.spark.tables.open_table import table_source_options
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker


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
