"""Kinds of damage to a bucket or its metadata, one for each topic, and the commands that must find
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from isotherm.record.batch import HEADER_SIZE, BatchHeader, iterate_batches, read_batch_header
from isotherm.record.batch_header import (
    CONTROL_FLAG,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    encode_batch,
)
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.layout.aiven_custom_metadata import AivenCustomMetadata
from isotherm.remote.storage.manifest.aiven_manifest import read_manifest
from isotherm.segment.producer_snapshot import encode_producer_snapshot, read_producer_snapshot
from isotherm.types import TopicIdPartition
from tests.support.planted_bucket import PlantedBucket, PlantedTopic

_KIND = FindingKind
_STATE = RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class Damage:
    """A kind of damage.

    `plant` makes it. `sweep` and `scrub` are the exact kinds of these jobs' findings in the topic;
    `verify` are the kinds of differences from undamaged metadata.
    """

    name: str
    plant: Callable[[PlantedTopic], None]
    sweep: frozenset[FindingKind] = frozenset()
    scrub: frozenset[FindingKind] = frozenset()
    verify: frozenset[str] = frozenset()


def damage_table() -> str:
    """The kinds and the commands that find each, as docs/pipeline/planted-damage.md shows them."""

    def cell(kinds: frozenset[FindingKind] | frozenset[str]) -> str:
        return ", ".join(sorted(map(str, kinds))) or "-"

    rows = [
        f"| {each.name} | {cell(each.sweep)} | {cell(each.scrub)} | {cell(each.verify)} |"
        for each in PLANTED
    ]
    heads = ["| planted | sweep finds | scrub finds | verify finds |", "|---|---|---|---|"]
    return "\n".join([*heads, *rows, ""])


def plant_all(bucket: PlantedBucket) -> None:
    """A topic for each of PLANTED, with its damage."""
    for damage in PLANTED:
        damage.plant(bucket.add_topic(damage.name))


def _remove(suffix: str) -> Callable[[PlantedTopic], None]:
    return lambda topic: topic.path(topic.middle, suffix).unlink()


def _swap(suffix: str) -> Callable[[PlantedTopic], None]:
    def plant(topic: PlantedTopic) -> None:
        one, other = (topic.path(segment, suffix) for segment in topic.segments[:2])
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)

    return plant


def _resize(change: int) -> Callable[[PlantedTopic], None]:
    def plant(topic: PlantedTopic) -> None:
        path = topic.path(topic.middle, "log")
        content = path.read_bytes()
        path.write_bytes(content[:change] if change < 0 else content + bytes(change))

    return plant


def _flip(position: int) -> Callable[[PlantedTopic], None]:
    return lambda topic: topic.flip_bit(topic.middle, "log", position)


def _flip_in_index(kind: IndexType, position: int) -> Callable[[PlantedTopic], None]:
    def plant(topic: PlantedTopic) -> None:
        start = topic.index_position(topic.middle, kind)
        topic.flip_bit(topic.middle, "indexes", start + position)

    return plant


def _lose_transaction_index(topic: PlantedTopic) -> None:
    position = topic.index_position(topic.middle, IndexType.TRANSACTION)
    indexes = topic.path(topic.middle, "indexes")
    indexes.write_bytes(indexes.read_bytes()[:position])
    manifest = topic.path(topic.middle, "rsm-manifest")
    before, _, after = manifest.read_bytes().partition(b'"transaction":')
    manifest.write_bytes(before + b'"transaction":null' + after[after.index(b"}") + 1 :])


def _miscount(topic: PlantedTopic) -> None:
    """The header of the first batch has a record too few, under a correct CRC."""
    path = topic.path(topic.middle, "log")
    content = path.read_bytes()
    header = read_batch_header(content)
    changed = header._replace(records_count=header.records_count - 1)
    batch = encode_batch(changed, content[HEADER_SIZE : header.size_in_bytes])
    path.write_bytes(bytes(batch) + content[header.size_in_bytes :])


def _rewrite(
    chosen: Callable[[BatchHeader], bool], flag: int = 0, **fields: int
) -> Callable[[PlantedTopic], None]:
    """The middle one of the chosen batches has a flipped bit, or other fields under a correct
    CRC."""

    def plant(topic: PlantedTopic) -> None:
        path = topic.path(topic.middle, "log")
        content = path.read_bytes()
        places = [(at, header) for at, header in iterate_batches(content) if chosen(header)]
        position, header = places[len(places) // 2]
        changed = header._replace(attributes=header.attributes ^ flag, **fields)
        payload = content[position + HEADER_SIZE : position + header.size_in_bytes]
        batch = bytes(encode_batch(changed, payload))
        path.write_bytes(content[:position] + batch + content[position + len(batch) :])

    return plant


def _is_control(header: BatchHeader) -> bool:
    return header.is_control


def _is_transactional(header: BatchHeader) -> bool:
    return bool(header.attributes & TRANSACTIONAL_FLAG) and not header.is_control


def _is_idempotent(header: BatchHeader) -> bool:
    return header.producer_id >= 0 and not header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG)


def _missequence(topic: PlantedTopic) -> None:
    """A producer's last sequence differs, under a correct CRC."""
    path = topic.path(topic.middle, "indexes")
    manifest = read_manifest(topic.path(topic.middle, "rsm-manifest").read_bytes())
    place = manifest.indexes[IndexType.PRODUCER_SNAPSHOT]
    content = path.read_bytes()
    first, *others = read_producer_snapshot(content[place.position :][: place.size])
    changed = first._replace(last_sequence=first.last_sequence + 1)
    snapshot = encode_producer_snapshot([changed, *others])
    topic.change_bytes(topic.middle, "indexes", place.position, snapshot)


def _rewrite_checkpoint(topic: PlantedTopic) -> None:
    position = topic.index_position(topic.middle, IndexType.LEADER_EPOCH)
    # "0\n1\n2 0\n": the epoch of the only entry.
    topic.change_bytes(topic.middle, "indexes", position + 4, b"1")


def _wrong_epoch(topic: PlantedTopic) -> None:
    _retell(topic, segment_leader_epochs={1: topic.middle.start_offset})


def _wrong_end(topic: PlantedTopic) -> None:
    _retell(topic, end_offset_inclusive=topic.middle.end_offset_inclusive - 1)


def _endless(topic: PlantedTopic) -> None:
    _retell(topic, end_offset_inclusive=2**63 - 1)


def _endless_manifest(topic: PlantedTopic) -> None:
    topic.retell_manifest(topic.middle, endOffset=2**63 - 1)


def _retell(topic: PlantedTopic, **changes: object) -> None:
    """The metadata of the middle segment differs."""
    changed = replace(topic.middle, **changes)  # type: ignore[arg-type]
    events = topic.bucket.events
    for index, event in enumerate(events):
        if getattr(event, "segment_id", None) != changed.segment_id:
            continue
        if isinstance(event, RemoteLogSegmentMetadata):
            events[index] = replace(
                changed, state=_STATE.COPY_SEGMENT_STARTED, custom_metadata=None
            )
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            events[index] = replace(event, custom_metadata=changed.custom_metadata)
    topic.segments[1] = changed


def _break_manifest(topic: PlantedTopic) -> None:
    path = topic.path(topic.middle, "rsm-manifest")
    path.write_bytes(path.read_bytes()[:-20])


def _newer_manifest(topic: PlantedTopic) -> None:
    path = topic.path(topic.middle, "rsm-manifest")
    path.write_bytes(path.read_bytes().replace(b'{"version":"1"', b'{"version":"2"', 1))


def _broken_custom_metadata(topic: PlantedTopic) -> None:
    _retell(topic, custom_metadata=b"\x05")


def _key_outside_the_bucket(topic: PlantedTopic) -> None:
    custom = AivenCustomMetadata(object_key="../../etc/\0passwd").encode()
    _retell(topic, custom_metadata=custom)


def _two_manifests(topic: PlantedTopic) -> None:
    path = topic.path(topic.middle, "rsm-manifest")
    again = path.name.replace(f"{topic.middle.start_offset:020d}", f"{0:020d}")
    path.with_name(again).write_bytes(path.read_bytes())


def _move_to_old_prefix(topic: PlantedTopic) -> None:
    for suffix in ("log", "indexes", "rsm-manifest"):
        path = topic.path(topic.middle, suffix)
        target = topic.bucket.folder / "old" / path.relative_to(topic.bucket.folder / "tiered")
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _half_an_upload(topic: PlantedTopic) -> None:
    topic.path(topic.copy_more(topic.middle), "rsm-manifest").unlink()


def _extra_segment(topic: PlantedTopic) -> None:
    topic.copy_more(topic.middle)


def _foreign_object(topic: PlantedTopic) -> None:
    topic.path(topic.middle, "log.bak").write_bytes(b"not ours")


def _unknown_topic(topic: PlantedTopic) -> None:
    """Objects of a deleted topic without metadata."""
    owner = topic.owner
    topic.bucket.events = [e for e in topic.bucket.events if _owner_of(e) != owner]
    topic.segments = []


def _owner_of(event: RemoteLogMetadataEvent) -> TopicIdPartition | None:
    identity = getattr(event, "segment_id", None)
    return None if identity is None else identity.topic_id_partition


def _failed_copy(topic: PlantedTopic) -> None:
    topic.announce(topic.copy_more(topic.middle))


def _unfinished_deletion(topic: PlantedTopic) -> None:
    _change_state(topic, 0, _STATE.DELETE_SEGMENT_STARTED)


def _lost_deletion(topic: PlantedTopic) -> None:
    _change_state(topic, 0, _STATE.DELETE_SEGMENT_STARTED)
    _change_state(topic, 0, _STATE.DELETE_SEGMENT_FINISHED)


def _change_state(topic: PlantedTopic, number: int, state: RemoteLogSegmentState) -> None:
    topic.update(topic.segments[number], state)
    topic.segments[number] = replace(topic.segments[number], state=state)


def _lose_tombstone(topic: PlantedTopic) -> None:
    """The oldest segment was deleted properly, and the events of its deletion are lost."""
    for state in (_STATE.DELETE_SEGMENT_STARTED, _STATE.DELETE_SEGMENT_FINISHED):
        topic.update(topic.segments[0], state)
        topic.bucket.lose_last_event()
    for suffix in ("log", "indexes", "rsm-manifest"):
        topic.path(topic.segments[0], suffix).unlink()


def _lost_segment(topic: PlantedTopic) -> None:
    """A proper deletion, but in the middle of the history."""
    for state in (_STATE.DELETE_SEGMENT_STARTED, _STATE.DELETE_SEGMENT_FINISHED):
        _change_state(topic, 1, state)
    for suffix in ("log", "indexes", "rsm-manifest"):
        topic.path(topic.middle, suffix).unlink()


def _covered_segment(topic: PlantedTopic) -> None:
    copied = topic.copy_more(topic.middle)
    topic.announce(copied)
    topic.update(copied, _STATE.COPY_SEGMENT_FINISHED)


def _conflicting_segment(topic: PlantedTopic) -> None:
    """Add a second copy of a segment.

    Its first batch has a different record, under a correct CRC.
    """
    copied = topic.copy_more(topic.middle)
    topic.announce(copied)
    topic.update(copied, _STATE.COPY_SEGMENT_FINISHED)
    path = topic.path(copied, "log")
    content = path.read_bytes()
    header = read_batch_header(content)
    payload = bytearray(content[HEADER_SIZE : header.size_in_bytes])
    payload[payload.index(b"key-") + 4] ^= 1
    path.write_bytes(bytes(encode_batch(header, payload)) + content[header.size_in_bytes :])


def _metadata_behind(topic: PlantedTopic) -> None:
    last = topic.segments.pop()
    topic.bucket.events = [
        e for e in topic.bucket.events if getattr(e, "segment_id", None) != last.segment_id
    ]


def _damage(
    name: str,
    plant: Callable[[PlantedTopic], None],
    *,
    sweep: FindingKind | tuple[FindingKind, ...] = (),
    scrub: FindingKind | tuple[FindingKind, ...] = (),
    verify: str | None = None,
) -> Damage:
    differences = frozenset[str]() if verify is None else frozenset({verify})
    return Damage(name, plant, _kinds(sweep), _kinds(scrub), differences)


def _kinds(kinds: FindingKind | tuple[FindingKind, ...]) -> frozenset[FindingKind]:
    return frozenset({kinds} if isinstance(kinds, FindingKind) else kinds)


PLANTED: tuple[Damage, ...] = (
    _damage("log-missing", _remove("log"), sweep=_KIND.MISSING_OBJECT, scrub=_KIND.MISSING_OBJECT),
    _damage(
        "indexes-missing",
        _remove("indexes"),
        sweep=_KIND.MISSING_OBJECT,
        scrub=_KIND.MISSING_OBJECT,
    ),
    _damage(
        "manifest-missing",
        _remove("rsm-manifest"),
        sweep=_KIND.MISSING_OBJECT,
        scrub=_KIND.MISSING_OBJECT,
    ),
    _damage("partial-upload", _half_an_upload, sweep=_KIND.PARTIAL_UPLOAD),
    _damage("extra-segment", _extra_segment, sweep=_KIND.UNKNOWN_SEGMENT),
    _damage("unknown-topic-id", _unknown_topic, sweep=_KIND.UNKNOWN_TOPIC, verify="extra"),
    _damage("foreign-object", _foreign_object, sweep=_KIND.FOREIGN_OBJECT),
    _damage("log-short", _resize(-100), sweep=_KIND.WRONG_SIZE, scrub=_KIND.WRONG_SIZE),
    _damage("log-long", _resize(100), sweep=_KIND.WRONG_SIZE, scrub=_KIND.WRONG_SIZE),
    _damage("logs-swapped", _swap("log"), scrub=_KIND.WRONG_OFFSETS),
    # Offset indexes hold relative offsets: those of segments of one size may be the same.
    _damage(
        "indexes-swapped",
        _swap("indexes"),
        scrub=(
            _KIND.WRONG_TIME_INDEX,
            _KIND.WRONG_TRANSACTION_INDEX,
            _KIND.WRONG_PRODUCER_SNAPSHOT,
            # The next segment's batches do not continue the snapshot.
            _KIND.WRONG_SEQUENCE,
        ),
    ),
    _damage("manifests-swapped", _swap("rsm-manifest"), scrub=_KIND.WRONG_MANIFEST),
    _damage("bit-flipped-in-a-record", _flip(150), scrub=_KIND.WRONG_CRC),
    _damage("record-count-wrong", _miscount, scrub=_KIND.WRONG_RECORDS),
    _damage("control-bit-cleared", _rewrite(_is_control, CONTROL_FLAG), scrub=_KIND.WRONG_HEADER),
    _damage("control-bit-set", _rewrite(_is_transactional, CONTROL_FLAG), scrub=_KIND.WRONG_HEADER),
    _damage(
        "transactional-bit-cleared",
        _rewrite(_is_transactional, TRANSACTIONAL_FLAG),
        scrub=_KIND.WRONG_TRANSACTION_INDEX,
    ),
    _damage(
        "producer-of-a-transaction-lost",
        _rewrite(_is_transactional, producer_id=-1),
        scrub=_KIND.WRONG_HEADER,
    ),
    _damage(
        "producer-of-a-transaction-altered",
        _rewrite(_is_transactional, producer_id=77),
        scrub=(
            _KIND.WRONG_TRANSACTION_INDEX,
            _KIND.WRONG_PRODUCER_SNAPSHOT,
        ),
    ),
    _damage(
        "timestamp-type-altered",
        _rewrite(_is_idempotent, TIMESTAMP_TYPE_FLAG),
        scrub=_KIND.WRONG_TIMESTAMP,
    ),
    _damage(
        "base-time-altered", _rewrite(_is_idempotent, base_timestamp=1), scrub=_KIND.WRONG_TIMESTAMP
    ),
    _damage(
        "sequence-altered", _rewrite(_is_idempotent, base_sequence=99), scrub=_KIND.WRONG_SEQUENCE
    ),
    _damage("bit-flipped-in-a-length", _flip(8), scrub=_KIND.DAMAGED_BATCH),
    _damage("bit-flipped-in-an-offset", _flip(4), scrub=_KIND.WRONG_OFFSETS),
    _damage(
        "offset-index-wrong", _flip_in_index(IndexType.OFFSET, 7), scrub=_KIND.WRONG_OFFSET_INDEX
    ),
    _damage(
        "time-index-wrong", _flip_in_index(IndexType.TIMESTAMP, 7), scrub=_KIND.WRONG_TIME_INDEX
    ),
    _damage(
        "transaction-index-wrong",
        _flip_in_index(IndexType.TRANSACTION, 17),
        scrub=_KIND.WRONG_TRANSACTION_INDEX,
    ),
    _damage(
        "last-stable-offset-wrong",
        _flip_in_index(IndexType.TRANSACTION, 33),
        scrub=_KIND.WRONG_TRANSACTION_INDEX,
    ),
    _damage("transaction-index-lost", _lose_transaction_index, scrub=_KIND.WRONG_TRANSACTION_INDEX),
    _damage(
        "producer-snapshot-wrong",
        _flip_in_index(IndexType.PRODUCER_SNAPSHOT, 30),
        scrub=_KIND.WRONG_PRODUCER_SNAPSHOT,
    ),
    _damage(
        "producer-sequence-wrong",
        _missequence,
        scrub=(_KIND.WRONG_PRODUCER_SNAPSHOT, _KIND.WRONG_SEQUENCE),
    ),
    _damage("epoch-checkpoint-wrong", _rewrite_checkpoint, scrub=_KIND.WRONG_EPOCH_CHECKPOINT),
    _damage(
        "epoch-wrong-in-metadata",
        _wrong_epoch,
        # With this epoch the segment is not part of the history.
        scrub=(
            _KIND.WRONG_EPOCH,
            _KIND.WRONG_MANIFEST,
            _KIND.WRONG_EPOCH_CHECKPOINT,
            _KIND.HISTORY_GAP,
            _KIND.OUTSIDE_HISTORY,
        ),
        verify="different",
    ),
    _damage(
        "end-wrong-in-metadata",
        _wrong_end,
        scrub=(_KIND.WRONG_OFFSETS, _KIND.WRONG_MANIFEST, _KIND.HISTORY_GAP),
        verify="different",
    ),
    _damage(
        "end-at-the-limit-in-metadata",
        _endless,
        scrub=(_KIND.OFFSET_GAP, _KIND.WRONG_MANIFEST),
        verify="different",
    ),
    _damage("end-at-the-limit-in-manifest", _endless_manifest, scrub=_KIND.DAMAGED_MANIFEST),
    _damage("manifest-damaged", _break_manifest, scrub=_KIND.DAMAGED_MANIFEST),
    _damage("manifest-of-a-newer-version", _newer_manifest, scrub=_KIND.DAMAGED_MANIFEST),
    _damage(
        "custom-metadata-broken",
        _broken_custom_metadata,
        scrub=_KIND.DAMAGED_OBJECT,
        verify="different",
    ),
    _damage(
        "object-key-outside-the-bucket",
        _key_outside_the_bucket,
        sweep=(_KIND.MISSING_OBJECT, _KIND.MISPLACED_OBJECT),
        scrub=_KIND.DAMAGED_OBJECT,
        verify="different",
    ),
    _damage("two-manifests", _two_manifests, sweep=_KIND.MISPLACED_OBJECT),
    _damage(
        "stale-prefix",
        _move_to_old_prefix,
        sweep=(_KIND.MISSING_OBJECT, _KIND.MISPLACED_OBJECT),
        scrub=_KIND.MISSING_OBJECT,
    ),
    _damage("failed-copy", _failed_copy, sweep=_KIND.FAILED_COPY, verify="missing"),
    _damage(
        "unfinished-deletion",
        _unfinished_deletion,
        sweep=_KIND.UNFINISHED_DELETION,
        verify="different",
    ),
    _damage("deleted-but-present", _lost_deletion, sweep=_KIND.DELETED_BUT_PRESENT, verify="extra"),
    _damage(
        "tombstone-lost",
        _lose_tombstone,
        sweep=_KIND.MISSING_OBJECT,
        scrub=_KIND.MISSING_OBJECT,
        verify="missing",
    ),
    _damage("segment-lost", _lost_segment, scrub=_KIND.HISTORY_GAP, verify="extra"),
    _damage("segment-twice", _covered_segment, scrub=_KIND.DUPLICATE_SEGMENT, verify="missing"),
    _damage(
        "segment-twice-with-other-records",
        _conflicting_segment,
        scrub=(_KIND.DUPLICATE_SEGMENT, _KIND.CONFLICTING_SEGMENT),
        verify="missing",
    ),
    _damage("metadata-behind", _metadata_behind, sweep=_KIND.METADATA_LAGS, verify="extra"),
)
