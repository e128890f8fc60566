"""The replay of `__cluster_metadata-0` from files that were damaged while no broker ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.broker.metadata.cluster_metadata_topic import METADATA_TOPIC_PARTITION
from isotherm.broker.metadata.controller.cluster_metadata_log import MetadataLog
from isotherm.broker.metadata.metadata_records import FeatureLevelRecord
from isotherm.errors import CorruptMetadataError
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from tests.support.local_log import open_local_log


def test_missing_end_of_a_segment_is_an_error(tmp_path: Path) -> None:
    """The last segment is empty, so the log's end shows that records were before it."""
    record = FeatureLevelRecord(name="metadata.version", feature_level=1)
    batches = [
        build_batch([(1, None, encode_framed(record), ())], base_offset=n, partition_leader_epoch=1)
        for n in range(2)
    ]
    directory = tmp_path / "log" / str(METADATA_TOPIC_PARTITION)
    directory.mkdir(parents=True)
    for base_offset, stored in ((0, batches), (5, [])):
        (directory / f"{base_offset:020}.log").write_bytes(b"".join(stored))
    log = open_local_log(directory, topic_partition=METADATA_TOPIC_PARTITION, clock=SimClock())
    assert log.log_end_offset == 5
    records = MetadataLog(log, SimClock()).replay()
    assert [next(records), next(records)] == [record, record]
    with pytest.raises(CorruptMetadataError, match=r"lacks records .* offset=2 log_end_offset=5"):
        next(records)
    log.close()
