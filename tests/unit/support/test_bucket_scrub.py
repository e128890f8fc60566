"""The scrub of a bucket finds each kind of damage. The test makes it by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bucket_scrub import scrub
from tests.support.tiered_partition import TieredPartition


@pytest.fixture
def copied(tmp_path: Path) -> TieredPartition:
    tiered = TieredPartition(tmp_path / "p")
    for number in range(12):
        tiered.append(b"%d" % number)
    tiered.copy_task.run()
    return tiered


def findings(tiered: TieredPartition) -> list[str]:
    return scrub(tiered.objects(), [record.value for record in tiered.metadata_topic.records()])


def object_path(tiered: TieredPartition, suffix: str) -> Path:
    return next(tiered.bucket.rglob(f"*{suffix}"))


def test_sound_bucket_has_no_findings(copied: TieredPartition) -> None:
    assert len(copied.objects()) > 3
    assert findings(copied) == []


def test_object_of_an_unknown_segment_leaked(copied: TieredPartition) -> None:
    path = object_path(copied, ".log")
    path.with_name("0" * 20 + "-" + "A" * 22 + ".log").write_bytes(b"x")
    (found,) = findings(copied)
    assert found.startswith("leaked object=")


def test_object_of_a_segment_that_was_deleted_leaked(copied: TieredPartition) -> None:
    path = object_path(copied, ".log")
    content = path.read_bytes()
    copied.update_config(retention_bytes=0)
    copied.expiration_task.run()
    assert findings(copied) == []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    assert len(findings(copied)) == 1


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_object_of_a_finished_segment_is_missing(copied: TieredPartition, suffix: str) -> None:
    object_path(copied, suffix).unlink()
    (found,) = findings(copied)
    assert found.startswith(f"missing object={suffix}")


@pytest.mark.parametrize("position", [5, 16, 30, 70])
def test_flipped_bit_damages_the_log(copied: TieredPartition, position: int) -> None:
    path = object_path(copied, ".log")
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)
    (found,) = findings(copied)
    assert "damaged segment=" in found


def test_short_log_is_damaged(copied: TieredPartition) -> None:
    path = object_path(copied, ".log")
    path.write_bytes(path.read_bytes()[:-1])
    (found,) = findings(copied)
    assert "damaged segment=" in found
