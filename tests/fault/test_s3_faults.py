"""The catalogue of S3's partial failures, each met by uploads, index fetches, reads and deletions.

A partition and its whole tier work against a store with faulty answers on the wire. Under every
fault: no record is lost, no local segment is deleted before its copy is complete, and a reader gets
the records or a retriable error. Once the store works again the bucket holds the finished segments
and nothing else (the scrub that ends every test of the tier).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.errors import (
    CorruptDataError,
    IsothermError,
    RequestTimedOutError,
    RetriableError,
)
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import SegmentMaker
from tests.support.s3_stub import S3Stub, WireFault
from tests.support.tiered_partition import TieredPartition

RECORDS = 22
# Unanswered requests wait this long. An answered one must never, not even on a busy machine.
REQUEST_TIMEOUT_MS = "2000"
OBJECTS = (".log", ".indexes", ".rsm-manifest")

_ANY = [
    WireFault.RESET_BEFORE,
    WireFault.RESET_UNSTORED,
    WireFault.LOST_REPLY,
    WireFault.SLOW_DOWN,
    WireFault.SLOW_DOWN_RETRY_AFTER,
    WireFault.INTERNAL_ERROR,
    WireFault.READ_ONLY,
    WireFault.CLOCK_SKEW,
    WireFault.EXPIRED,
    WireFault.MOVED,
    WireFault.REDIRECTED,
]
UPLOAD = [
    *_ANY,
    WireFault.RESET_MIDWAY,
    WireFault.FULL,
    WireFault.PRECONDITION_FAILED,
    WireFault.CONFLICT,
]
READ = [
    *_ANY,
    WireFault.NOT_FOUND,
    WireFault.SHORT_BODY,
    WireFault.RESET_MID_BODY,
    WireFault.WRONG_RANGE,
    WireFault.FULL_BODY,
    WireFault.BIT_FLIP,
    WireFault.DRIP,
]
DELETE = [*_ANY, WireFault.FULL, WireFault.CONFLICT, WireFault.ERROR_IN_200]


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as running:
        yield running


class StubPartition(TieredPartition):
    """A tiered partition with the stub as its bucket."""

    def __init__(self, directory: Path, stub: S3Stub, **config: object) -> None:
        settings = ObjectStoreSettings.from_config(
            {**stub.config, "request.timeout.ms": REQUEST_TIMEOUT_MS}
        )
        self._stub = stub
        super().__init__(directory, storage=ObjectStoreRemoteStorageManager(settings), **config)

    def objects(self) -> dict[str, bytes]:
        return self._stub.objects()


@pytest.fixture
def tiered(tmp_path: Path, stub: S3Stub) -> StubPartition:
    partition = StubPartition(tmp_path / "p", stub)
    for number in range(RECORDS):
        partition.append(b"%02d" % number)
    return partition


EXPECTED = {number: b"%02d" % number for number in range(RECORDS)}


def settle(tiered: StubPartition, stub: S3Stub) -> None:
    """Heal the store; then all closed segments must be copied, and nothing may be left over."""
    stub.heal()
    tiered.copy_task.run()
    tiered.expiration_task.run()
    assert {segment.state for segment in tiered.segments()} == {
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    }
    copied = tiered.log.highest_offset_in_remote_storage
    assert copied == tiered.log.segments()[-1].base_offset - 1
    tiered.delete_local_segments()
    assert tiered.log.local_log_start_offset == copied + 1
    assert tiered.read_all() == EXPECTED
    assert len(stub.objects()) == len(OBJECTS) * len(tiered.segments())


@pytest.mark.parametrize("suffix", OBJECTS)
@pytest.mark.parametrize("fault", UPLOAD, ids=lambda fault: fault.name.lower())
def test_upload_under_a_fault_loses_and_leaks_nothing(
    tiered: StubPartition, stub: S3Stub, fault: WireFault, suffix: str
) -> None:
    stub.fail(fault, "PUT", suffix=suffix, times=2)
    for _ in range(4):
        with contextlib.suppress(RetriableError):
            tiered.copy_task.run()
        tiered.delete_local_segments()
        assert tiered.read_all() == EXPECTED
    assert len(stub.faults) == 2
    settle(tiered, stub)


@pytest.mark.parametrize("fault", UPLOAD, ids=lambda fault: fault.name.lower())
def test_store_that_takes_nothing_and_deletes_nothing_keeps_the_local_log(
    tiered: StubPartition, stub: S3Stub, fault: WireFault
) -> None:
    for method in ("PUT", "DELETE"):
        stub.fail(fault, method)
    for _ in range(3):
        with contextlib.suppress(RetriableError):
            tiered.copy_task.run()
        with contextlib.suppress(RetriableError):
            tiered.expiration_task.run()
        tiered.delete_local_segments()
    assert tiered.log.local_log_start_offset == 0
    assert tiered.read_all() == EXPECTED
    settle(tiered, stub)


@pytest.mark.parametrize("times", [1, None])
@pytest.mark.parametrize("fault", READ, ids=lambda fault: fault.name.lower())
def test_read_under_a_fault_gives_the_records_or_an_error_to_try_again(
    tiered: StubPartition, stub: S3Stub, fault: WireFault, times: int | None
) -> None:
    tiered.copy_task.run()
    tiered.delete_local_segments()
    stub.fail(fault, "GET", suffix=".log", times=times)
    named: list[str] = []
    try:
        assert tiered.read_values(0, 500)[0] == EXPECTED[0]
    except (RetriableError, CorruptDataError) as error:
        named.append(str(error))
    assert stub.faults
    assert all("object=" in text for text in named)
    settle(tiered, stub)


@pytest.mark.parametrize("suffix", [".indexes", ".rsm-manifest"])
@pytest.mark.parametrize("fault", READ, ids=lambda fault: fault.name.lower())
def test_index_fetch_under_a_fault_gives_the_records_or_an_error_to_try_again(
    tiered: StubPartition, stub: S3Stub, fault: WireFault, suffix: str
) -> None:
    """An offset inside a segment needs its index."""
    tiered.copy_task.run()
    tiered.delete_local_segments()
    inside = tiered.segments()[0].start_offset + 2
    stub.fail(fault, "GET", suffix=suffix, times=2)
    named: list[str] = []
    for _ in range(3):
        try:
            assert tiered.read_values(inside, 500)[0] == EXPECTED[inside]
        except (RetriableError, CorruptDataError) as error:
            named.append(str(error))
    assert stub.faults
    assert all("object=" in text for text in named)
    settle(tiered, stub)


@pytest.mark.parametrize("suffix", OBJECTS)
@pytest.mark.parametrize("fault", DELETE, ids=lambda fault: fault.name.lower())
def test_deletion_under_a_fault_is_finished_later(
    tiered: StubPartition, stub: S3Stub, fault: WireFault, suffix: str
) -> None:
    """A deletion that succeeds in part: some objects of a segment are deleted and one is not."""
    tiered.copy_task.run()
    tiered.delete_local_segments()
    kept = tiered.log.local_log_start_offset
    tiered.update_config(retention_bytes=0)
    stub.fail(fault, "DELETE", suffix=suffix, times=2)
    for _ in range(3):
        with contextlib.suppress(RetriableError):
            tiered.expiration_task.run()
        assert tiered.log.log_start_offset == kept, "raised before anything is deleted"
    assert len(stub.faults) == 2
    stub.heal()
    tiered.expiration_task.run()
    assert tiered.segments() == []
    assert stub.objects() == {}


def test_store_that_refuses_connections_for_minutes_loses_nothing(
    tiered: StubPartition, stub: S3Stub
) -> None:
    tiered.update_config(retention_ms=3_600_000, local_retention_ms=1)
    stub.refuse()
    for _ in range(5):
        with pytest.raises(RetriableError):
            tiered.copy_task.run()
        tiered.clock.advance(60_000)
        tiered.log.delete_old_segments(tiered.clock.now_ms())
    assert tiered.log.local_log_start_offset == 0
    tiered.update_config(retention_ms=-1, local_retention_ms=-2)
    stub.accept()
    tiered.copy_task.run()
    assert {**EXPECTED, **tiered.read_all()} == EXPECTED
    assert tiered.log.highest_offset_in_remote_storage > 0


@pytest.mark.parametrize(
    ("fault", "method", "query"),
    [
        (WireFault.INTERNAL_ERROR, "POST", "uploads"),
        (WireFault.RESET_MIDWAY, "PUT", "partNumber"),
        (WireFault.LOST_REPLY, "PUT", "partNumber"),
        (WireFault.INTERNAL_ERROR, "PUT", "partNumber"),
        (WireFault.LOST_REPLY, "POST", "uploadId"),
        (WireFault.ERROR_IN_200, "POST", "uploadId"),
        (WireFault.INTERNAL_ERROR, "POST", "uploadId"),
    ],
)
@pytest.mark.parametrize("abort_fails", [False, True])
def test_multipart_upload_that_fails_is_an_error_and_done_again_under_the_same_key(
    tmp_path: Path, stub: S3Stub, fault: WireFault, method: str, query: str, abort_fails: bool
) -> None:
    """Row 4 of the catalogue. A lifecycle rule of the bucket removes parts that an abort leaves."""
    manager = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(stub.config))
    segment = SegmentMaker(tmp_path / "s").segment(size=12 * 1024 * 1024)
    stub.fail(fault, method, query=query, times=1)
    if abort_fails:
        stub.fail(WireFault.INTERNAL_ERROR, "DELETE", query="uploadId")
    with contextlib.suppress(RetriableError):
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert manager.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()
    assert stub.faults
    if not abort_fails:
        assert stub.unfinished_uploads() <= 1
    stub.heal()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert manager.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()
    manager.delete_log_segment_data(segment.metadata)
    assert stub.objects() == {}


def test_retries_hide_a_burst_of_failures(tmp_path: Path, stub: S3Stub) -> None:
    settings = ObjectStoreSettings.from_config({**stub.config, "retries": "5"})
    manager = ObjectStoreRemoteStorageManager(settings)
    segment = SegmentMaker(tmp_path / "s").segment()
    for method in ("PUT", "GET", "DELETE"):
        stub.fail(WireFault.SLOW_DOWN, method, times=3)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert manager.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()
    manager.delete_log_segment_data(segment.metadata)
    assert len(stub.faults) == 9
    assert stub.objects() == {}


def test_two_leaders_that_copy_the_same_log_do_not_touch_each_others_objects(
    tmp_path: Path, stub: S3Stub
) -> None:
    """Row 17. Each upload has its own id, so neither leader can damage the other's."""
    first, second = (StubPartition(tmp_path / name, stub, seed=n) for n, name in enumerate("ab"))
    first.damage_declared = second.damage_declared = "each sees the other's objects as leaked"
    for number in range(RECORDS):
        for each in (first, second):
            each.append(b"%02d" % number)
    first.copy_task.run()
    second.copy_task.run()
    for each in (first, second):
        each.delete_local_segments()
        assert each.read_all() == EXPECTED
    second.update_config(retention_bytes=0)
    second.expiration_task.run()
    assert first.read_all() == EXPECTED


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("state", list(RemoteLogSegmentState), ids=lambda state: state.name.lower())
def test_event_that_cannot_be_published_loses_and_leaks_nothing(
    tiered: StubPartition, stub: S3Stub, state: RemoteLogSegmentState, lost: str
) -> None:
    """The catalogue's rows for the metadata topic: an append fails, before or after it is done."""
    append, failures = tiered.metadata_topic.append, 0

    def failing(partition: int, key: bytes | None, value: bytes | None, now_ms: int) -> int:
        nonlocal failures
        event = decode_event(value or b"")
        if getattr(event, "state", None) is not state or failures == 2:
            return append(partition, key, value, now_ms)
        failures += 1
        if lost == "reply":
            append(partition, key, value, now_ms)
        raise RequestTimedOutError("injected")

    tiered.metadata_topic.append = failing  # type: ignore[method-assign]
    tiered.store.heal()
    if state >= RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
        stub.fail(WireFault.INTERNAL_ERROR, "PUT", suffix=".indexes", times=2)
    for _ in range(5):
        for task in (tiered.copy_task, tiered.expiration_task):
            with contextlib.suppress(IsothermError):
                task.run()
            tiered.metadata.poll()
        tiered.delete_local_segments()
        assert tiered.read_all() == EXPECTED
    assert failures > 0
    tiered.metadata_topic.append = append  # type: ignore[method-assign]
    settle(tiered, stub)
