"""Copying takes a bounded amount of memory, whatever the segment's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

UPLOAD = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.testing.segment_files import SegmentMaker

directory, config, mebibytes = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
segment = SegmentMaker(directory / "segments").segment()
with segment.data.log_path.open("wb") as file:
    for _ in range(mebibytes):
        file.write(os.urandom(1024 * 1024))
metadata = replace(segment.metadata, segment_size_in_bytes=mebibytes * 1024 * 1024)
manager = ObjectStoreRemoteStorageManager.from_config(config)

def peak_kib():
    # Not ru_maxrss: that of a child begins at the memory of the process which started it.
    (peak,) = (row for row in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in row)
    return int(peak.split()[1])

before = peak_kib()
manager.copy_log_segment_data(metadata, segment.data)
print(peak_kib() - before)
"""
SEGMENT_MIB = 256
MEMORY_MAX_KIB = 64 * 1024


def key_pair(folder: Path) -> dict[str, str]:
    private = RSA.generate(2048)
    (folder / "public.pem").write_bytes(private.public_key().export_key())
    (folder / "private.pem").write_bytes(private.export_key(pkcs=8))
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": "one",
        "encryption.key.pairs": "one",
        "encryption.key.pairs.one.public.key.file": str(folder / "public.pem"),
        "encryption.key.pairs.one.private.key.file": str(folder / "private.pem"),
    }


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read in /proc")
@pytest.mark.parametrize("form", ["plain", "compressed and encrypted"])
def test_copy_of_a_large_segment_stays_below_64_mib(tmp_path: Path, form: str) -> None:
    config = {"url": (tmp_path / "bucket").as_uri()}
    if form != "plain":
        config |= {"compression.enabled": "true", **key_pair(tmp_path)}
    command = [sys.executable, "-c", UPLOAD, str(tmp_path), json.dumps(config), str(SEGMENT_MIB)]
    grown_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (log,) = (tmp_path / "bucket").rglob("*.log")
    assert log.stat().st_size >= SEGMENT_MIB * 1024 * 1024
    log.unlink()
    assert grown_kib < MEMORY_MAX_KIB, f"peak grew by {grown_kib / 1024:.0f} MiB"
