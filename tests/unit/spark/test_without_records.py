"""Counts and offsets for times, answered from metadata alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import isotherm.spark
from isotherm.errors import ConfigError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.record_segments import RecordSegmentMaker


@pytest.fixture
def options(
    maker: RecordSegmentMaker, owner: TopicIdPartition, storage_settings: ObjectStoreSettings
) -> dict[str, object]:
    """Partition 0 has offsets 0 to 99 at times 0 to 990, partition 1 has offsets 0 to 9 at times 0
    to 90."""
    for partition, count in ((0, 60), (1, 10)):
        records = [NewRecord(n * 10, None, b"v") for n in range(count)]
        maker.tier(owner._replace(partition=partition), [build_batch(records)])
    records = [NewRecord(n * 10, None, b"v") for n in range(60, 100)]
    maker.tier(owner, [build_batch(records, base_offset=60)])
    return {"path": storage_settings.url, "subscribe": "a"}


def test_count_is_that_of_the_offsets_that_would_be_read(options: dict[str, object]) -> None:
    assert isotherm.spark.count(options) == 110
    assert isotherm.spark.count(options | {"endingOffsets": '{"a":{"0":75,"1":3}}'}) == 78
    late = {"startingTimestamp": 895, "startingOffsetsByTimestampStrategy": "latest"}
    assert isotherm.spark.count(options | late | {"failOnDataLoss": True}) == 10


def test_offsets_for_times_are_those_of_the_first_record_not_older(
    options: dict[str, object],
) -> None:
    found = isotherm.spark.offsets_for_times(options, 85)
    assert found == {TopicPartition("a", 0): 9, TopicPartition("a", 1): 9}
    assert isotherm.spark.offsets_for_times(options, 600) == {
        TopicPartition("a", 0): 60,
        TopicPartition("a", 1): None,
    }


def test_options_are_checked_as_those_of_a_read(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        isotherm.spark.count(options | {"startingOffsets": "latest"})


def test_package_is_imported_without_arrow_and_numba() -> None:
    loaded = (
        "import sys, isotherm.spark;"
        " print({'numba', 'pyarrow', 'confluent_kafka'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
