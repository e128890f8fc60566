"""A copy takes a bounded amount of memory, whatever the segment's size."""

from __future__ import annotations

from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

from tests.support.copy_memory import memory_can_be_measured, peak_growth_of_a_copy_kib

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


@pytest.mark.slow
@pytest.mark.skipif(not memory_can_be_measured(), reason="peak memory is read in /proc")
@pytest.mark.parametrize("form", ["plain", "compressed and encrypted"])
def test_copy_of_a_large_segment_stays_below_64_mib(tmp_path: Path, form: str) -> None:
    config = {"url": (tmp_path / "bucket").as_uri()}
    if form != "plain":
        config |= {"compression.enabled": "true", **key_pair(tmp_path)}
    grown_kib = peak_growth_of_a_copy_kib(tmp_path, config, segment_mib=SEGMENT_MIB)
    (log,) = (tmp_path / "bucket").rglob("*.log")
    assert log.stat().st_size >= SEGMENT_MIB * 1024 * 1024
    log.unlink()
    assert grown_kib < MEMORY_MAX_KIB, f"peak grew by {grown_kib / 1024:.0f} MiB"
