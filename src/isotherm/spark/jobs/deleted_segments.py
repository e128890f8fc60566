"""Which segments a metadata topic's history has seen deleted. The fold forgets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from isotherm.remote.metadata.folding.columnar_fold import FoldRun
from isotherm.remote.metadata.state.segment_columns import id_texts
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.spark.driver.metadata_log import MetadataLog, as_events
from isotherm.spark.jobs.replay import each_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS: dict[str, pa.DataType] = {"segment_id": pa.string()}
_SCHEMA = pa.schema(_FIELDS)
_ID_SIZE = 16
_ID = np.dtype([("high", ">i8"), ("low", ">i8")])


def deleted_segments(spark: SparkSession, log: MetadataLog) -> DataFrame:
    """A row with the `segment_id` of each DELETE_SEGMENT_FINISHED; reads the topic once more.

    A compacted topic keeps none for long: its audit topic does.
    """
    slices = log.slices()

    def work(number: int) -> Iterator[pa.RecordBatch]:
        from isotherm.kernels import metadata as kernels

        gone = int(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        for run in log.read(slices[number], lambda offset, reason: None):
            if len(run.columns.offset) == 0:
                continue
            events = FoldRun(as_events(log.topic, run).columns).events
            is_state = np.isin(events["kind"], (kernels.UPDATE, kernels.PUT))
            chosen = events[is_state & (events["state"] == gone)]
            ids = np.empty(len(chosen), dtype=_ID)
            ids["high"], ids["low"] = chosen["id_high"], chosen["id_low"]
            joined = ids.tobytes()
            texts = id_texts([joined[at : at + _ID_SIZE] for at in range(0, len(joined), _ID_SIZE)])
            yield pa.RecordBatch.from_pydict({"segment_id": texts}, schema=_SCHEMA)

    return each_of(spark, len(slices), work, _SCHEMA).distinct()
