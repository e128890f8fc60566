"""A log tells its end and its leader epochs, if it is sound and stored as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.reading import described_log
from isotherm.remote.reading.described_log import LogDescription, describe_log
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import LeaderEpoch, Offset


@pytest.fixture(params=[60, 200, 10_000])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectClient:
    """Batches lie across the borders of ranges, or all in one."""
    monkeypatch.setattr(described_log, "_FETCH_BYTES", request.param)
    settings = ObjectStoreSettings.from_config({"url": tmp_path.as_uri()})
    return ObjectClient(settings, open_object_store(settings, create_folder=False))


def batch(start: Offset, end: Offset, epoch: LeaderEpoch) -> bytes:
    records = [NewRecord(offset, None, b"v") for offset in range(start, end)]
    return bytes(build_batch(records, base_offset=start, partition_leader_epoch=epoch))


def described(
    client: ObjectClient, *batches: bytes, start: Offset = 10, size: int | None = None
) -> LogDescription | None:
    content = b"".join(batches)
    client.put("a.log", content)
    return describe_log(client, "a.log", len(content) if size is None else size, start)


def test_epochs_begin_with_their_first_batch(client: ObjectClient) -> None:
    found = described(
        client, *(batch(at, at + 3, epoch) for at, epoch in ((10, 0), (13, 0), (16, 2), (19, 2)))
    )
    assert found == LogDescription(21, {0: 10, 2: 16})
    found = described(client, *(batch(10 + 2 * n, 12 + 2 * n, n // 2 + 4) for n in range(6)))
    assert found == LogDescription(21, {4: 10, 5: 14, 6: 18})


def test_offsets_that_a_cleaner_took_are_no_fault(client: ObjectClient) -> None:
    found = described(client, batch(10, 12, 1), batch(15, 17, 1))
    assert found == LogDescription(16, {1: 10})


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [batch(11, 12, 0)],
        [batch(9, 12, 0)],
        [batch(10, 12, 0), batch(11, 13, 0)],
        [batch(10, 12, 0), batch(12, 14, 0), batch(12, 14, 0)],
        [batch(10, 12, 1), batch(12, 14, 0)],
        [batch(10, 12, -1)],
        [batch(10, 12, 0), batch(12, 14, 0)[:-1]],
        [batch(10, 12, 0), batch(12, 14, 0)[:30]],
        [batch(10, 12, 0), batch(12, 14, 0)[:-1] + b"x"],
        [b"\x28\xb5\x2f\xfd" + bytes(100)],
    ],
)
def test_other_bytes_are_not_described(client: ObjectClient, batches: list[bytes]) -> None:
    assert described(client, *batches) is None


def test_object_that_is_gone_or_shorter_is_not_described(client: ObjectClient) -> None:
    whole = batch(10, 12, 0)
    assert described(client, whole, size=len(whole) + 70) is None
    assert describe_log(client, "b.log", 100, 10) is None
