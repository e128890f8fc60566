"""A broker process under `kill -9`: everything that it wrote before is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from isotherm.record.batch import iterate_batches
from tests.support.local_log import open_local_log

WRITER = """
import pathlib, sys
from isotherm.config.topic import TopicConfig
from isotherm.record.batch import build_batch
from tests.support.local_log import open_local_log

config = TopicConfig(internal_segment_bytes=20_000, segment_index_bytes=4800, retention_ms=-1)
log = open_local_log(pathlib.Path(sys.argv[1]), config=config)
while True:
    batch = build_batch([(1_700_000_000_000, b"key", b"v" * 200, ())] * 3)
    info = log.append_as_leader(batch, 0, now_ms=1_700_000_000_000)
    print(info.last_offset, flush=True)
"""


def test_records_acknowledged_before_kill_9_survive(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    acknowledged = -1
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(200):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # Lines that it printed after that count as well.
        rest = process.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        log = open_local_log(directory)
        assert log.log_end_offset >= acknowledged + 1
        offset = 0
        while offset < log.log_end_offset:
            for _, header in iterate_batches(log.read(offset, 100_000).records):
                assert header.base_offset == offset
                offset = header.next_offset
        log.abandon()
