"""Segments that overlap after a change of leader: which records are read if an object or the
metadata of one of them is wrong.

The value of each record is the leader epoch that wrote it, so a record of a deposed leader shows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from isotherm.errors import CorruptObjectError, IsothermError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.plan.epoch_claims import EpochClaim, contested_epochs
from isotherm.spark.reading.epoch_proof import WrongEpochsError, prove_epoch
from isotherm.types import TopicIdPartition
from tests.support.bucket_queries import QueriedBucket, Row
from tests.support.record_segments import RecordSegmentMaker

LENIENT = {"failOnDataLoss": "false"}
BY_NAME_OR_NOT = pytest.mark.parametrize("by_name", [True, False])


@pytest.fixture
def bucket(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
) -> QueriedBucket:
    return QueriedBucket(storage_settings, storage, maker, owner)


def read(bucket: QueriedBucket, *, by_name: bool = True, **given: str) -> list[Row]:
    return bucket.rows(bucket.plan(by_name=by_name, **given), **given)


def offsets(rows: list[Row]) -> list[int]:
    return [offset for offset, _ in rows]


def change_manifest(
    bucket: QueriedBucket, segment: RemoteLogSegmentMetadata, **changes: Any
) -> None:
    path = bucket.path(segment, "rsm-manifest")
    members = json.loads(path.read_bytes())
    members["remoteLogSegmentMetadata"] |= changes
    path.write_bytes(json.dumps(members).encode())


def lose_manifest(bucket: QueriedBucket, segment: RemoteLogSegmentMetadata) -> None:
    bucket.path(segment, "rsm-manifest").write_bytes(b"{")
    bucket.storage._manifests.forget(segment)


def store_unclean_election(bucket: QueriedBucket) -> dict[str, RemoteLogSegmentMetadata]:
    """The leader of epoch 1 was elected uncleanly at 150. That of epoch 0 had stored up to 195."""
    return {
        "before": bucket.store(0, 100),
        "deposed": bucket.store(100, 196),
        "elected": bucket.store(100, 180, epochs={0: 100, 1: 150}),
        "after": bucket.store(180, 220, epochs={1: 180}),
    }


RIGHT = [(offset, b"%d" % (offset >= 150)) for offset in range(220)]


def test_history_after_an_unclean_election_is_read_whole(bucket: QueriedBucket) -> None:
    store_unclean_election(bucket)
    assert read(bucket) == RIGHT


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("mode", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize(
    ("name", "epochs"),
    [
        ("elected", {0: 100}),
        ("elected", {0: 100, 1: 170}),
        ("elected", {0: 100, 1: 120}),
        ("elected", {1: 100}),
        ("deposed", {2: 100}),
        ("after", {0: 180}),
    ],
)
def test_epochs_that_a_manifest_tells_wrongly_bring_no_record_of_a_deposed_leader(
    bucket: QueriedBucket,
    name: str,
    epochs: Mapping[int, int],
    mode: Mapping[str, str],
    isolation: str,
) -> None:
    stored = store_unclean_election(bucket)
    told = {str(epoch): start for epoch, start in epochs.items()}
    change_manifest(bucket, stored[name], segmentLeaderEpochs=told)
    with pytest.raises(IsothermError, match=str(stored[name].segment_id)):
        read(bucket, isolationLevel=isolation, **mode)


def test_later_epoch_of_records_that_an_earlier_one_supersedes_is_found(
    bucket: QueriedBucket,
) -> None:
    """The superseded segment ends with records of the latest leader, which its manifest hides."""
    bucket.store(0, 100)
    hiding = bucket.store(100, 196, epochs={0: 100, 2: 170})
    bucket.store(150, 200, epochs={1: 150})
    change_manifest(bucket, hiding, segmentLeaderEpochs={"0": 100})
    with pytest.raises(WrongEpochsError, match="another leader epoch"):
        read(bucket, by_name=False)


def test_copy_that_cannot_be_read_is_no_obstacle(
    bucket: QueriedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing contradicts the metadata: the records are read from the other copy."""
    bucket.store(0, 20)
    lost = bucket.store(20, 40)
    bucket.store(20, 60)
    path = bucket.path(lost)
    path.write_bytes(bytes(path.stat().st_size))
    with caplog.at_level(logging.WARNING):
        assert offsets(read(bucket)) == list(range(60))
    assert "without a proof" in caplog.text
    assert str(lost.segment_id) in caplog.text


@pytest.mark.parametrize("mode", [{}, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("name", ["deposed", "elected", "after"])
@BY_NAME_OR_NOT
def test_lost_indexes_cost_no_record(
    bucket: QueriedBucket, by_name: bool, name: str, mode: Mapping[str, str]
) -> None:
    """An index is a hint. The epochs are compared without it too."""
    stored = store_unclean_election(bucket)
    bucket.path(stored[name], "indexes").unlink()
    assert read(bucket, by_name=by_name, **mode) == RIGHT
    part = {"startingOffsets": '{"a":{"0":155}}', "endingOffsets": '{"a":{"0":170}}'}
    assert read(bucket, by_name=by_name, **mode, **part) == RIGHT[155:170]


@pytest.mark.parametrize("name", ["deposed", "elected"])
def test_log_that_is_lost_while_its_epochs_are_compared_is_named(
    bucket: QueriedBucket, name: str
) -> None:
    """In the task too, where the plan from names is made again from the manifests."""
    stored = store_unclean_election(bucket)
    bucket.store(220, 230, epochs={1: 220})
    tasks = bucket.plan()
    bucket.path(stored[name]).unlink()
    with pytest.raises(CorruptObjectError, match=rf"{stored[name].segment_id.id}|start_offset=100"):
        bucket.rows(tasks)
    rows = read(bucket, **LENIENT)
    assert set(rows) <= {*RIGHT, *((offset, b"1") for offset in range(220, 230))}
    assert set(rows) >= {*RIGHT[:100], *RIGHT[180:]}


def store_chain(bucket: QueriedBucket, epoch_of: Callable[[int], int]) -> list[Any]:
    """Five segments; each begins 5 offsets below the end of the one before, as after changes of
    leader between two copies."""
    stored = []
    for number in range(5):
        start, begin = max(0, 20 * number - 5), 20 * number
        epochs = {epoch_of(number): begin}
        epochs[epoch_of(max(0, number - 1))] = start
        stored.append(bucket.store(start, begin + 20, epochs=dict(sorted(epochs.items()))))
    return stored


@pytest.mark.parametrize("epoch_of", [lambda _: 0, lambda n: n, lambda n: n // 2])
@pytest.mark.parametrize("number", range(5))
@BY_NAME_OR_NOT
def test_unreadable_manifest_costs_only_what_no_other_segment_holds(
    bucket: QueriedBucket,
    by_name: bool,
    number: int,
    epoch_of: Callable[[int], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = store_chain(bucket, epoch_of)
    whole = read(bucket)
    assert offsets(whole) == list(range(100))
    lose_manifest(bucket, stored[number])
    with pytest.raises(IsothermError, match=str(stored[number].segment_id)):
        read(bucket, by_name=by_name)
    with caplog.at_level(logging.WARNING):
        found = read(bucket, by_name=by_name, **LENIENT)
    first, end = 20 * number, min(20 * number + 20, 100)
    lost = range(first, end if number == 4 else end - 5)
    assert found == [row for row in whole if row[0] not in lost]
    assert "no segment in the bucket" not in caplog.text
    if 0 < number < 4:
        assert f"start_offset={lost.start} end_offset={lost.stop}" in caplog.text


def test_hole_beside_an_unreadable_manifest_is_told_apart(
    bucket: QueriedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.store(0, 10)
    blank = bucket.store(20, 30)
    bucket.store(40, 50)
    bucket.store(50, 60)
    lose_manifest(bucket, blank)
    with caplog.at_level(logging.WARNING):
        found = read(bucket, by_name=False, **LENIENT)
    assert offsets(found) == [*range(10), *range(40, 60)]
    reasons = [message for message in caplog.messages if "start_offset" in message][1:]
    causes = [("no segment in", 10, 20), ("cannot be read", 20, 30), ("no segment in", 30, 40)]
    assert len(reasons) == len(causes)
    for reason, (cause, start, end) in zip(reasons, causes, strict=True):
        assert cause in reason
        assert f"start_offset={start} end_offset={end}" in reason


def test_log_that_cannot_be_described_costs_the_segments_that_it_may_supersede(
    bucket: QueriedBucket, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells which of two segments is the log from there on, until a later leader begins."""
    bucket.store(0, 25)
    blank = bucket.store(20, 40)
    bucket.store(40, 60)
    bucket.store(60, 80, epochs={1: 60})
    lose_manifest(bucket, blank)
    log = bucket.path(blank)
    log.write_bytes(b"\x28\xb5\x2f\xfd" + log.read_bytes()[4:])
    with caplog.at_level(logging.WARNING):
        found = read(bucket, by_name=False, **LENIENT)
    assert offsets(found) == [*range(20), *range(60, 80)]
    assert "perhaps held or superseded" in caplog.text
    assert "start_offset=20 end_offset=60" in caplog.text
    assert "no segment in the bucket" not in caplog.text


def test_lost_log_is_read_from_a_copy(bucket: QueriedBucket) -> None:
    bucket.store(0, 20)
    bucket.store(15, 40)
    lost = bucket.store(20, 50)
    tasks = bucket.plan(by_name=False)
    bucket.store(40, 50)
    bucket.path(lost).unlink()
    assert offsets(bucket.rows(tasks, **LENIENT)) == list(range(50))


def test_claims_are_about_the_last_record_that_is_left_out(bucket: QueriedBucket) -> None:
    stored = store_unclean_election(bucket)
    assert set_of(contested_epochs(stored.values())) == {
        # Up to 150 of both: the one that was stored by the later event, or has the higher id, is
        # read.
        *({(stored["deposed"].segment_id.id, 195, 0, False)}),
        (stored["elected"].segment_id.id, 150, 1, False),
        *copies(stored),
    }
    assert contested_epochs([stored["before"], stored["elected"], stored["after"]]) == []


def test_two_segments_that_overlap_have_a_claim_and_neighbours_none(bucket: QueriedBucket) -> None:
    first, second, third = bucket.store(0, 20), bucket.store(15, 40), bucket.store(40, 50)
    assert set_of(contested_epochs([first, second])) == {(second.segment_id.id, 19, 0, True)}
    assert contested_epochs([second, third]) == []
    assert contested_epochs([first, third]) == []


def test_record_that_a_later_leader_supersedes_has_a_claim_and_so_has_that_leader(
    bucket: QueriedBucket,
) -> None:
    deposed, elected = bucket.store(0, 20), bucket.store(15, 40, epochs={1: 15})
    after = bucket.store(40, 50, epochs={1: 40})
    assert set_of(contested_epochs([deposed, elected, after])) == {
        (deposed.segment_id.id, 19, 0, False),
        (elected.segment_id.id, 15, 1, False),
    }
    exact = bucket.store(20, 30, epochs={1: 20})
    assert contested_epochs([deposed, exact]) == []


@pytest.mark.parametrize("begin", [10, 11])
def test_proof_is_of_the_batch_at_the_offset_and_those_below(
    bucket: QueriedBucket, begin: int
) -> None:
    stored = bucket.store(0, 20, epochs={0: 0, 1: begin})
    told = replace(stored, segment_leader_epochs={0: 0})
    prove_epoch(EpochClaim(told, begin - 1, 0), bucket.storage)
    for offset in (begin, begin + 1, 19):
        with pytest.raises(WrongEpochsError, match=str(stored.segment_id)):
            prove_epoch(EpochClaim(told, offset, 0), bucket.storage)


def set_of(claims: list[EpochClaim]) -> set[tuple[object, ...]]:
    return {(c.segment.segment_id.id, c.offset, c.epoch, c.is_of_copy) for c in claims}


def copies(stored: Mapping[str, RemoteLogSegmentMetadata]) -> set[tuple[object, ...]]:
    return {(stored["elected"].segment_id.id, 149, 0, True)}
