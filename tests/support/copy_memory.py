"""Measures the memory for the copy of one large segment, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.testing.segment_files import SegmentMaker

_MIB = 1024 * 1024
_STATUS = Path("/proc/self/status")


def memory_can_be_measured() -> bool:
    """Skip the test unless /proc has the peak memory of a process."""
    return _STATUS.exists()


def peak_growth_of_a_copy_kib(
    directory: Path, config: Mapping[str, str], *, segment_mib: int
) -> int:
    """The growth of the process that copies such a segment. `config` is a storage manager's;
    `directory` gets the segment, which has incompressible bytes."""
    asked = json.dumps([str(directory), dict(config), segment_mib])
    command = [sys.executable, "-m", "tests.support.copy_memory", asked]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(ran.stdout)


def _copy(directory: Path, config: Mapping[str, str], segment_mib: int) -> int:
    segment = SegmentMaker(directory).segment()
    pieces = (os.urandom(_MIB) for _ in range(segment_mib))
    with segment.data.log_path.open("wb") as file:
        file.writelines(pieces)
    metadata = replace(segment.metadata, segment_size_in_bytes=segment_mib * _MIB)
    manager = ObjectStoreRemoteStorageManager.from_config(config)
    before = _peak_kib()
    manager.copy_log_segment_data(metadata, segment.data)
    return _peak_kib() - before


def _peak_kib() -> int:
    # Not ru_maxrss: a child inherits the value of the process that started it.
    (peak,) = (row for row in _STATUS.read_text().splitlines() if row.startswith("VmHWM"))
    return int(peak.split()[1])


if __name__ == "__main__":
    folder, settings, mebibytes = json.loads(sys.argv[1])
    sys.stdout.write(str(_copy(Path(folder), settings, mebibytes)))
