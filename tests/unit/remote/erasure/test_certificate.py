"""The certificate of an erasure: round trips, and damage."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import CorruptMetadataError, UnsupportedVersionError
from isotherm.remote.erasure.certificate import (
    ErasedPartition,
    ErasedSegment,
    ErasedTable,
    ErasureCertificate,
    ErasureCertificates,
    Unreachable,
    decode_certificate,
    encode_certificate,
    joined,
)
from isotherm.remote.storage.bucket_protection import OFF, ON, SUSPENDED, BucketProtection
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition

PARTITION = ErasedPartition(
    partition=TopicIdPartition(uuid.UUID(int=5), "t", 3),
    start_offset=2,
    end_offset=90,
    matched=7,
    left=1,
    local_copies_gone=(1, 2),
    unread_segments=("u",),
    segments=(
        ErasedSegment(
            start_offset=2, end_offset_inclusive=40, old="o", new="n", old_size=5, new_size=4,
            old_gone_ms=9,
        ),
        ErasedSegment(
            start_offset=41, end_offset_inclusive=89, old="p", new="q", old_size=5, new_size=4
        ),
    ),
    unreachable=(Unreachable(start_offset=90, end_offset=95, reason="on brokers only"),),
)  # fmt: skip
CERTIFICATE = ErasureCertificate(
    run="r1",
    action="redact",
    fields=("user.name",),
    selector="d" * 64,
    in_place=True,
    location="file:///bucket kafka/",
    time_ms=11,
    partitions=(PARTITION, PARTITION),
    proved_ms=12,
    protection=BucketProtection(versioning=SUSPENDED, replication=OFF, object_lock=ON),
    tables=(
        ErasedTable(name="kafka.t", table_format="iceberg", deleted=9, left=3),
        ErasedTable(name="t", table_format="delta"),
    ),
)


def test_certificate_is_read_as_it_was_written() -> None:
    assert decode_certificate(encode_certificate(CERTIFICATE)) == CERTIFICATE
    assert CERTIFICATE.left == 2
    assert CERTIFICATE.rows_left == 3


def test_certificate_of_a_tail_pass_is_added_to_that_of_the_run() -> None:
    owner, new = PARTITION.partition, TopicIdPartition(uuid.UUID(int=6), "u", 0)
    untouched = replace(PARTITION, partition=TopicIdPartition(uuid.UUID(int=7), "v", 0))
    earlier = replace(CERTIFICATE, partitions=(PARTITION, untouched))
    segment = ErasedSegment(
        start_offset=90, end_offset_inclusive=99, old="x", new="y", old_size=5, new_size=4
    )
    tail = ErasedPartition(
        partition=owner, start_offset=90, end_offset=100, matched=2, segments=(segment,)
    )
    later = replace(
        CERTIFICATE,
        time_ms=99,
        partitions=(tail, replace(tail, partition=new)),
        protection=BucketProtection(versioning=ON, replication=OFF, object_lock=OFF),
        tables=(
            ErasedTable(name="kafka.t", table_format="iceberg", deleted=4),
            ErasedTable(name="t", table_format="delta", deleted=1),
        ),
    )
    both = joined(earlier, later)
    parts = {partition.partition: partition for partition in both.partitions}
    assert list(parts) == [untouched.partition, owner, new]
    assert (parts[owner].start_offset, parts[owner].end_offset) == (2, 100)
    assert parts[owner].matched == 9
    assert parts[owner].segments == (*PARTITION.segments, segment)
    assert parts[owner].unreachable == ()
    assert parts[owner].left is None
    assert [table.deleted for table in both.tables] == [13, 1]
    assert both.protection == later.protection
    assert (both.run, both.time_ms, both.proved_ms) == ("r1", 11, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("run", 5), ("fields", "a"), ("fields", [1]), ("timeMs", "soon"), ("partitions", {"a": 1}),
     ("partitions", [1]), ("selectorSha256", None), ("provedMs", []), ("location", None),
     ("tables", None), ("tables", [{"name": "t"}])],
)  # fmt: skip
def test_member_of_another_type_is_corrupt(name: str, value: object) -> None:
    members = json.loads(encode_certificate(CERTIFICATE))
    if (name, value) == ("fields", "a"):
        value = 7
    with pytest.raises(CorruptMetadataError):
        decode_certificate(json.dumps({**members, name: value}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="not a certificate"):
        decode_certificate(data)


def test_certificate_of_another_version_is_refused_by_name() -> None:
    members = json.loads(encode_certificate(CERTIFICATE)) | {"version": 2}
    with pytest.raises(UnsupportedVersionError, match="version=2"):
        decode_certificate(json.dumps(members).encode())


def test_certificate_is_found_by_its_run(tmp_path: Path) -> None:
    settings = ObjectStoreSettings(url=tmp_path.as_uri())
    client = ObjectClient(settings, open_object_store(settings, create_folder=True))
    certificates = ErasureCertificates(client, "kafka/")
    assert certificates.put(CERTIFICATE) == "kafka/isotherm-erasures/r1.json"
    certificates.put_offsets("r1", b"PAR1")
    assert certificates.get("r1") == CERTIFICATE
    assert certificates.get_offsets("r1") == b"PAR1"
    assert certificates.runs() == ["r1"]
