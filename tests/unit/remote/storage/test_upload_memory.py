"""Copying takes a bounded amount of memory, whatever the segment's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

UPLOAD = """
import resource, sys
from dataclasses import replace
from pathlib import Path
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.testing.segment_files import SegmentMaker

directory, url, layout, size = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
segment = SegmentMaker(directory / "segments").segment()
with segment.data.log_path.open("r+b") as file:
    file.truncate(size)
metadata = replace(segment.metadata, segment_size_in_bytes=size)
manager = ObjectStoreRemoteStorageManager.from_config({"url": url, "layout": layout})

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak_kib()
manager.copy_log_segment_data(metadata, segment.data)
print(peak_kib() - before)
"""
SEGMENT_SIZE = 384 * 1024 * 1024
MEMORY_MAX_KIB = 64 * 1024


@pytest.mark.parametrize("layout", ["aiven", "local-tiered-storage"])
def test_copy_of_a_large_segment_stays_below_64_mib(tmp_path: Path, layout: str) -> None:
    url = (tmp_path / "bucket").as_uri()
    command = [sys.executable, "-c", UPLOAD, str(tmp_path), url, layout, str(SEGMENT_SIZE)]
    grown_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (log,) = (tmp_path / "bucket").rglob("*.log")
    assert log.stat().st_size == SEGMENT_SIZE
    log.unlink()
    assert grown_kib < MEMORY_MAX_KIB
