"""The certificate of an erasure: what was erased, where it was looked for afterwards, and what was
not reached. It names no key and no expression, only a digest of the selector.

    <root>isotherm-erasures/<run>.json              docs/formats/erasure-certificate.md
    <root>isotherm-erasures/<run>.offsets.parquet   of a run with tables: what was erased
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isotherm.errors import CorruptMetadataError, UnknownObjectVersionError
from isotherm.remote.storage.bucket_protection import UNKNOWN_PROTECTION, BucketProtection
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.types import Offset, TimestampMs, TopicIdPartition, uuid_from_text, uuid_to_text

CERTIFICATES_FOLDER = "isotherm-erasures"
CERTIFICATE_VERSION = 1
_SUFFIX = ".json"
OFFSETS_SIZE_MAX = 1024 * 1024 * 1024
"""The size limit of the offsets of a run: some 8 bytes for each erased record."""
CERTIFICATE_SIZE_MAX = 1024 * 1024 * 1024
"""The size limit of a certificate: some 300 bytes for each rewritten segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedSegment:
    """An old segment and the new one, by their ids (as text). `old_gone_ms` is when no object of
    the old one was there any more; None until that is seen, and for a copy."""

    start_offset: Offset
    end_offset_inclusive: Offset
    old: str
    new: str
    old_size: int
    new_size: int
    old_gone_ms: TimestampMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Offsets [start_offset, end_offset) that a run could not erase, and why."""

    start_offset: Offset
    end_offset: Offset
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedPartition:
    """`matched` counts the records that the run acted on, in offsets [start_offset, end_offset).
    `undecoded` counts those whose value could not be decoded, and that therefore did not match.
    `left` is how many matched when all of that was read again; None until it was read.
    `local_copies_gone` names the brokers that have dropped their local copies. `unread_segments`
    are the ids (as text) of segments in the bucket that no reader gets and that may hold matching
    records below the end: uploads that no broker has finished, and unfinished deletions."""

    partition: TopicIdPartition
    start_offset: Offset
    end_offset: Offset
    matched: int
    undecoded: int = 0
    segments: tuple[ErasedSegment, ...] = ()
    unreachable: tuple[Unreachable, ...] = ()
    left: int | None = None
    local_copies_gone: tuple[int, ...] = ()
    unread_segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTable:
    """A table of a topic. `deleted` counts the rows of erased records, dead letters included, that
    were deleted. `left` is how many were found afterwards, also in the table's older states; None
    until it was looked into."""

    name: str
    table_format: str
    deleted: int = 0
    left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCertificate:
    """`time_ms` is when the run began, `proved_ms` when everything had been read again, None before
    that. `selector` is the digest of the selector. `protection` is that of the bucket that the run
    wrote to. `value_type` is the type of decoded values, a schema of Arrow in base64."""

    run: str
    action: str
    fields: tuple[str, ...]
    selector: str
    in_place: bool
    location: str
    time_ms: TimestampMs
    partitions: tuple[ErasedPartition, ...]
    proved_ms: TimestampMs | None = None
    tables: tuple[ErasedTable, ...] = ()
    protection: BucketProtection = UNKNOWN_PROTECTION
    value_type: str | None = None

    @property
    def left(self) -> int:
        """The matching records that were found again."""
        return sum(partition.left or 0 for partition in self.partitions)

    @property
    def rows_left(self) -> int:
        """The rows of erased records that were found in tables."""
        return sum(table.left or 0 for table in self.tables)

    @property
    def unread_segments(self) -> int:
        return sum(len(partition.unread_segments) for partition in self.partitions)


def encode_certificate(certificate: ErasureCertificate) -> bytes:
    members: dict[str, Any] = {
        "version": CERTIFICATE_VERSION,
        "run": certificate.run,
        "action": certificate.action,
        "fields": list(certificate.fields),
        "selectorSha256": certificate.selector,
        "inPlace": certificate.in_place,
        "location": certificate.location,
        "bucket": {
            "versioning": certificate.protection.versioning,
            "replication": certificate.protection.replication,
            "objectLock": certificate.protection.object_lock,
        },
        "timeMs": certificate.time_ms,
        "provedMs": certificate.proved_ms,
        "valueType": certificate.value_type,
        "partitions": [_partition_members(partition) for partition in certificate.partitions],
        "tables": [
            {
                "name": table.name,
                "format": table.table_format,
                "deleted": table.deleted,
                "left": table.left,
            }
            for table in certificate.tables
        ],
    }
    return json.dumps(members, indent=1, ensure_ascii=False).encode()


def _partition_members(erased: ErasedPartition) -> dict[str, Any]:
    return {
        "topic": erased.partition.topic,
        "topicId": uuid_to_text(erased.partition.topic_id),
        "partition": erased.partition.partition,
        "startOffset": erased.start_offset,
        "endOffset": erased.end_offset,
        "matched": erased.matched,
        "undecoded": erased.undecoded,
        "left": erased.left,
        "localCopiesGone": list(erased.local_copies_gone),
        "unreadSegments": list(erased.unread_segments),
        "segments": [
            {
                "startOffset": segment.start_offset,
                "endOffsetInclusive": segment.end_offset_inclusive,
                "old": segment.old,
                "new": segment.new,
                "oldSize": segment.old_size,
                "newSize": segment.new_size,
                "oldGoneMs": segment.old_gone_ms,
            }
            for segment in erased.segments
        ],
        "unreachable": [
            {
                "startOffset": offsets.start_offset,
                "endOffset": offsets.end_offset,
                "reason": offsets.reason,
            }
            for offsets in erased.unreachable
        ],
    }


def decode_certificate(data: bytes) -> ErasureCertificate:
    """Decode a certificate. Raises CorruptMetadataError for anything else, and
    UnknownObjectVersionError for a certificate of another version."""
    try:
        members = json.loads(data)
        if members["version"] != CERTIFICATE_VERSION:
            raise UnknownObjectVersionError(
                "certificate of an erasure has another version"
                f" version={ascii(members['version'])[:80]}"
            )
        return ErasureCertificate(
            run=_text(members["run"]),
            action=_text(members["action"]),
            fields=tuple(map(_text, members["fields"])),
            selector=_text(members["selectorSha256"]),
            in_place=bool(members["inPlace"]),
            location=_text(members["location"]),
            protection=BucketProtection(
                versioning=_text(members["bucket"]["versioning"]),
                replication=_text(members["bucket"]["replication"]),
                object_lock=_text(members["bucket"]["objectLock"]),
            ),
            time_ms=int(members["timeMs"]),
            proved_ms=_optional(members["provedMs"]),
            value_type=None if members["valueType"] is None else _text(members["valueType"]),
            partitions=tuple(map(_partition, members["partitions"])),
            tables=tuple(
                ErasedTable(
                    name=_text(table["name"]),
                    table_format=_text(table["format"]),
                    deleted=int(table["deleted"]),
                    left=_optional(table["left"]),
                )
                for table in members["tables"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptMetadataError("not a certificate of an erasure") from error


def _partition(members: Mapping[str, Any]) -> ErasedPartition:
    owner = TopicIdPartition(
        uuid_from_text(members["topicId"]), _text(members["topic"]), int(members["partition"])
    )
    return ErasedPartition(
        partition=owner,
        start_offset=int(members["startOffset"]),
        end_offset=int(members["endOffset"]),
        matched=int(members["matched"]),
        undecoded=int(members["undecoded"]),
        left=_optional(members["left"]),
        local_copies_gone=tuple(map(int, members["localCopiesGone"])),
        unread_segments=tuple(map(_text, members["unreadSegments"])),
        segments=tuple(
            ErasedSegment(
                start_offset=int(segment["startOffset"]),
                end_offset_inclusive=int(segment["endOffsetInclusive"]),
                old=_text(segment["old"]),
                new=_text(segment["new"]),
                old_size=int(segment["oldSize"]),
                new_size=int(segment["newSize"]),
                old_gone_ms=_optional(segment["oldGoneMs"]),
            )
            for segment in members["segments"]
        ),
        unreachable=tuple(
            Unreachable(
                start_offset=int(offsets["startOffset"]),
                end_offset=int(offsets["endOffset"]),
                reason=_text(offsets["reason"]),
            )
            for offsets in members["unreachable"]
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


class ErasureCertificates:
    """The certificates of a bucket. Methods raise RemoteStorageError if the store fails."""

    def __init__(self, client: ObjectClient, root_directory: str) -> None:
        """`root_directory` is the layout's."""
        self._client = client
        self._root = f"{root_directory}{CERTIFICATES_FOLDER}/"

    def put(self, certificate: ErasureCertificate) -> str:
        """Store a certificate, in place of an earlier one of the run. Returns its key."""
        key = self._key(certificate.run)
        self._client.put(key, encode_certificate(certificate))
        return key

    def runs(self) -> list[str]:
        """The names of the runs that have a certificate here."""
        names = (
            object_.key.removeprefix(self._root)
            for object_ in self._client.list_objects(self._root)
        )
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def get(self, run: str) -> ErasureCertificate:
        """Raises RemoteResourceNotFoundError if the run has no certificate here."""
        return decode_certificate(self._client.get(self._key(run), CERTIFICATE_SIZE_MAX))

    def _key(self, run: str) -> str:
        return f"{self._root}{run}{_SUFFIX}"

    def put_offsets(self, run: str, parquet: bytes) -> None:
        """Store the offsets of the erased records, a Parquet file."""
        self._client.put(self._offsets_key(run), parquet)

    def get_offsets(self, run: str) -> bytes:
        """Raises RemoteResourceNotFoundError if the run stored none."""
        return self._client.get(self._offsets_key(run), OFFSETS_SIZE_MAX)

    def _offsets_key(self, run: str) -> str:
        return f"{self._root}{run}.offsets.parquet"


def joined(earlier: ErasureCertificate, later: ErasureCertificate) -> ErasureCertificate:
    """The certificate of both passes of a run. The later one has the pieces above the earlier one's
    ends, and knows what is not reached now."""
    before = {partition.partition: partition for partition in earlier.partitions}
    partitions = [
        partition
        if (first := before.pop(partition.partition, None)) is None
        else _joined(first, partition)
        for partition in later.partitions
    ]
    return replace(
        earlier,
        partitions=(*before.values(), *partitions),
        proved_ms=None,
        tables=with_more_deleted(earlier.tables, later.tables),
        protection=later.protection,
        value_type=earlier.value_type or later.value_type,
    )


def with_more_deleted(
    before: Sequence[ErasedTable], after: Sequence[ErasedTable]
) -> tuple[ErasedTable, ...]:
    """The same tables after a second deletion."""
    return tuple(
        replace(earlier, deleted=earlier.deleted + more.deleted)
        for earlier, more in zip(before, after, strict=True)
    )


def _joined(earlier: ErasedPartition, later: ErasedPartition) -> ErasedPartition:
    return replace(
        later,
        start_offset=earlier.start_offset,
        end_offset=max(earlier.end_offset, later.end_offset),
        matched=earlier.matched + later.matched,
        undecoded=earlier.undecoded + later.undecoded,
        segments=(*earlier.segments, *later.segments),
    )


def covering(partitions: Sequence[ErasedPartition]) -> dict[TopicIdPartition, Offset]:
    """The end of what each partition's erasure covers."""
    return {partition.partition: partition.end_offset for partition in partitions}
