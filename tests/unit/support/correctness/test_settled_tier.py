"""Anomalies in the tiers of a broker at rest are found once they are planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isotherm.record.batch import assign_offsets, build_batch
from isotherm.types import TopicPartition
from tests.support.correctness.settled_tier import check_tiers, holes, sole_copies_deleted
from tests.support.tiered_partition import TieredPartition

P0 = TopicPartition("events", 0)
NOW_MS = 1_700_000_000_000


def log(first: int, *counts: int) -> bytes:
    """Batches with so many records each, one after the other."""
    content = b""
    for count in counts:
        batch = build_batch([(NOW_MS, None, b"v", ())] * count)
        assign_offsets(batch, 0, first, 0)
        content += batch
        first += count
    return content


def found(start: int, contents: Sequence[bytes]) -> list[str]:
    return [f"{hole.name} {hole.detail}" for hole in holes(P0, start, contents)]


def test_tiers_that_follow_one_another_or_overlap_have_no_hole() -> None:
    assert found(0, [log(0, 3, 4), log(7, 2)]) == []
    assert found(0, [log(3, 4, 2), log(0, 3, 4)]) == []
    assert found(3, [log(3, 4)]) == []


def test_offsets_that_no_batch_covers_are_a_hole() -> None:
    assert found(0, [log(0, 3), log(7, 2)]) == ["hole events-0@3-6 count=4"]
    assert found(1, [log(3, 4)]) == ["hole events-0@1-2 count=2"]
    assert found(0, [log(0, 1) + log(2, 1), log(3, 1) + log(5, 1)]) == [
        "hole events-0@1-1 count=1",
        "hole events-0@4-4 count=1",
    ]


def test_erased_offsets_are_no_hole_and_their_neighbours_are() -> None:
    contents = [log(0, 3), log(7, 2)]
    assert list(holes(P0, 0, contents, erased={3, 4, 5, 6})) == []
    found_ones = [hole.detail for hole in holes(P0, 0, contents, erased={3, 6})]
    assert found_ones == ["events-0@4-5 count=2"]


def test_objects_without_metadata_are_leaked_but_for_uploads_that_a_crash_has_cut(
    tmp_path: Path,
) -> None:
    bucket, directory = tmp_path / "bucket", tmp_path / "log"
    name = "00000000000000000000-AAAAAAAAAAAAAAAAAAAAAQ.log"
    for path in (bucket / "t" / name, bucket / "t" / f"{name}#1"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    directory.mkdir()
    findings = check_tiers(directory, bucket)
    assert [anomaly.name for anomaly in findings.anomalies] == ["leaked-object"]
    assert findings.unfinished_uploads == 1


def test_only_copy_that_is_deleted_is_counted(tmp_path: Path) -> None:
    tiered = TieredPartition(tmp_path / "p", metadata_level=1)
    for number in range(12):
        tiered.append(b"%d" % number)
    tiered.copy_task.run()
    events = [(record.value or b"") for record in tiered.audit_topic.records()]
    assert list(sole_copies_deleted(events)) == []
    tiered.update_config(retention_bytes=0)
    tiered.expiration_task.run()
    events = [(record.value or b"") for record in tiered.audit_topic.records()]
    topic = tiered.partition.topic
    found = list(sole_copies_deleted(events, keeping=(topic,)))
    # Four events for each segment: two of its copy and two of its deletion.
    assert len(found) == len(events) // 4 > 1
