"""Finds the segments that were deleted in a metadata topic's history, which the fold drops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from isotherm.kernels.event_table import PUT, UPDATE
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, decode_run, segment_ids
from isotherm.remote.metadata.state.segment_columns import id_texts
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.spark.metadata.remote_metadata_log import MetadataLog, as_events
from isotherm.spark.numbered_tasks import each_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS: dict[str, pa.DataType] = {"segment_id": pa.string()}
_SCHEMA = pa.schema(_FIELDS)


def deleted_segments(spark: SparkSession, log: MetadataLog) -> DataFrame:
    """One row with the `segment_id` of each DELETE_SEGMENT_FINISHED. Reads the topic once more.

    A compacted topic loses these events soon. Its audit topic keeps them longer.
    """
    slices = log.slices()

    def work(number: int) -> Iterator[pa.RecordBatch]:
        for run in log.read(slices[number], lambda offset, reason: None):
            if len(run.columns.offset):
                texts = _deleted(decode_run(as_events(log.topic, run).columns))
                yield pa.RecordBatch.from_pydict({"segment_id": texts}, schema=_SCHEMA)

    return each_of(spark, len(slices), work, _SCHEMA).distinct()


def _deleted(run: DecodedRun) -> list[str]:
    kind, state = run.events["kind"], run.events["state"]
    is_state = (kind == UPDATE) | (kind == PUT)
    is_deleted = is_state & (state == RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    return id_texts(segment_ids(run.events, np.flatnonzero(is_deleted)))
