"""The cost of a larger history: it grows in proportion, and memory does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import ReadTask
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.tiered_log import TieredLog
from tests.support.synthetic_history import HistoryShape, SyntheticHistory

MB = 1024 * 1024
SHAPE = HistoryShape(partitions=2, segments_per_partition=1, segment_size=4 * MB)
SETTINGS = ReadSettings(fetch_bytes=MB, batch_bytes=MB)


class Segments:
    def __init__(self, history: SyntheticHistory) -> None:
        self._segments = history.segments()

    def visible_segments(self, selects_topic, partitions) -> list[RemoteLogSegmentMetadata]:
        return self._segments


def planned(history: SyntheticHistory) -> list[ReadTask]:
    options = parse_options(
        {"path": "memory://", "subscribe": "history", "targetBytesPerTask": str(8 * MB)}
    )
    log = TieredLog(options, history, Segments(history), None)
    return BatchQuery(options, log).plan()


def read(history: SyntheticHistory, tasks: list[ReadTask]) -> int:
    schema = arrow_schema(schema_of(["offset"]))
    return sum(
        batch.num_rows
        for task in tasks
        for batch in read_task(
            task,
            history,
            schema,
            settings=SETTINGS,
            read_tail=lambda tail: pytest.fail(f"there is no tail {tail}"),
            when_missing=WhenMissing(
                read_again=lambda gone: pytest.fail(f"nothing is gone {gone}"),
                fail_on_data_loss=True,
            ),
        )
    )


def test_tasks_requests_and_bytes_grow_as_the_history_does() -> None:
    costs = []
    for segments in (6, 18):
        history = SyntheticHistory(replace(SHAPE, segments_per_partition=segments))
        tasks = planned(history)
        assert read(history, tasks) == 2 * segments * history.records_per_segment
        costs.append((len(tasks), history.gets, history.bytes))
        assert history.bytes == history.total_size, "each byte once, and no index of whole segments"
        assert history.gets == 2 * segments * -(-history.segment_size // MB)
    small, large = costs
    assert [3 * each for each in small] == list(large)


def test_split_segments_cost_their_indexes_and_borders_more() -> None:
    history = SyntheticHistory(replace(SHAPE, segment_size=64 * MB))
    tasks = planned(history)
    assert len(tasks) == 16
    assert read(history, tasks) == 2 * history.records_per_segment
    border = 3 * MB  # two indexed batches and one that both tasks read
    assert history.total_size < history.bytes < history.total_size + 16 * border


MEMORY = """
import json, pathlib, re, sys
from isotherm.spark.plan.planning import ReadTask, SegmentRead
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from tests.support.synthetic_history import HistoryShape, SyntheticHistory

def read(size):
    history = SyntheticHistory(HistoryShape(1, 1, size, 100, 1000))
    [segment] = history.segments()
    whole = SegmentRead(segment, 0, segment.end_offset_inclusive + 1)
    batches = read_task(
        ReadTask((whole,)), history, arrow_schema(full_schema(include_headers=True)),
        settings=ReadSettings(), read_tail=None,
        when_missing=WhenMissing(read_again=None, fail_on_data_loss=True),
    )
    rows = sum(batch.num_rows for batch in batches)
    assert rows == history.records_per_segment
    # Not ru_maxrss: that begins with what the process had that started this one.
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024

print(json.dumps([read(int(size) << 20) for size in sys.argv[1:]]))
"""


@pytest.mark.slow
def test_memory_of_a_task_does_not_grow_with_its_segment() -> None:
    command = [sys.executable, "-c", MEMORY, "128", "384"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    peak_mb_small, peak_mb_large = json.loads(ran.stdout)
    assert peak_mb_large - peak_mb_small < 64
    assert peak_mb_large < 512
