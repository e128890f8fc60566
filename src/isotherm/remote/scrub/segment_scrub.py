"""Reads and checks everything about one segment in the bucket: objects, manifest, log, indexes.

All reads go through the storage manager, so both layouts, and compressed and encrypted segments,
are checked alike. A segment's log is fetched in ranges, a few of which are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.errors import (
    RemoteResourceNotFoundError,
    UnreadableDataError,
)
from isotherm.remote.scrub.findings import Finding, FindingKind, Problem, segment_finding
from isotherm.remote.scrub.index_checks import (
    check_epoch_checkpoint,
    check_offset_index_entries,
    check_time_index_entries,
)
from isotherm.remote.scrub.log_batches import (
    LogBatches,
    check_epochs,
    check_offsets,
    check_same_batches,
    check_timestamp_types,
    read_log_batches,
)
from isotherm.remote.scrub.producer_checks import (
    ProducersBefore,
    Transactions,
    check_producer_batches,
    check_producer_snapshot,
    check_transaction_index_entries,
)
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.manifest.aiven_manifest import SegmentManifest
from isotherm.remote.storage.manifest.chunk_index import stored_file_size
from isotherm.remote.storage.object_store import (
    ObjectStoreRemoteStorageManager,
    describes_another,
    fetch_manifest,
)
from isotherm.remote.storage.segment_blocks import segment_blocks_ahead
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.types import uuid_to_text

FETCH_BYTES = 16 * 1024 * 1024
"""Size of one ranged GET of a log."""
_FETCH_AHEAD = 2

_INDEX_PROBLEMS = {
    IndexType.OFFSET: FindingKind.WRONG_OFFSET_INDEX,
    IndexType.TIMESTAMP: FindingKind.WRONG_TIME_INDEX,
    IndexType.PRODUCER_SNAPSHOT: FindingKind.WRONG_PRODUCER_SNAPSHOT,
    IndexType.TRANSACTION: FindingKind.WRONG_TRANSACTION_INDEX,
    IndexType.LEADER_EPOCH: FindingKind.WRONG_EPOCH_CHECKPOINT,
}
# The indexes may still be correct.
_CAUSES_NO_OTHER = frozenset(
    {FindingKind.WRONG_CRC, FindingKind.WRONG_RECORDS, FindingKind.OFFSET_GAP,
     FindingKind.WRONG_EPOCH, FindingKind.WRONG_TIMESTAMP}
)  # fmt: skip
# The common fields of manifest and metadata.
_SHARED_FIELDS = (
    "segment_id", "start_offset", "end_offset_inclusive", "max_timestamp_ms",
    "segment_size_in_bytes", "segment_leader_epochs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentScrub:
    """`bytes_read` and `batches` are of the log. Findings are in the order of the checks."""

    findings: tuple[Finding, ...]
    bytes_read: int = 0
    batches: int = 0


class _Notes:
    """The findings about one segment, in the order of the checks."""

    def __init__(self, segment: RemoteLogSegmentMetadata) -> None:
        self.findings: list[Finding] = []
        self._segment = segment

    def add(self, problem: Problem, key: str | None = None) -> None:
        """Add a problem of the object with this key, or of the segment as a whole."""
        self.findings.append(segment_finding(self._segment, problem, key))


class StoredObjects:
    """Checks of the objects of a segment, in one of the built-in layouts."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self.layout = settings.create_layout()
        self._client = open_for_reading(settings)

    def check(self, segment: RemoteLogSegmentMetadata, notes: _Notes) -> Described | None:
        """Check the objects of a segment. None if its log cannot be read. Raises
        CorruptMetadataError for custom metadata that names no place."""
        log_key = self.layout.log_key(segment)
        # First: it raises for custom metadata that is no key, which would look like damaged
        # objects.
        log_size = self._size(log_key, notes)
        manifest = self._manifest(segment, notes)
        expected = segment.segment_size_in_bytes
        if manifest is not None:
            expected = stored_file_size(manifest.chunk_index)
        if log_size is not None and log_size != expected:
            notes.add(_wrong_size(log_size, expected), log_key)
            # The log is not read: all of its checks would fail for this reason.
            log_size = None
        is_readable = manifest is not None or self.layout.commit_suffix is None
        if log_size is None or not is_readable:
            return None
        return Described(log_key, manifest, expected)

    def _manifest(self, segment: RemoteLogSegmentMetadata, notes: _Notes) -> SegmentManifest | None:
        key = self.layout.manifest_key(segment)
        if key is None:
            return None
        try:
            manifest = fetch_manifest(self._client, key)
        except RemoteResourceNotFoundError:
            notes.add(Problem(FindingKind.MISSING_OBJECT, "object is missing"), key)
            return None
        except UnreadableDataError as error:
            notes.add(Problem(FindingKind.DAMAGED_MANIFEST, str(error)), key)
            return None
        for problem in compare_manifest(manifest, segment):
            notes.add(problem, key)
        self._check_indexes_object(segment, manifest, notes)
        return manifest

    def _check_indexes_object(
        self,
        segment: RemoteLogSegmentMetadata,
        manifest: SegmentManifest,
        notes: _Notes,
    ) -> None:
        location = self.layout.index_location(segment, IndexType.OFFSET, manifest)
        assert location is not None, "every manifest has one"
        size = self._size(location.key, notes)
        expected = sum(index.size for index in manifest.indexes.values())
        if size is not None and size != expected:
            notes.add(_wrong_size(size, expected), location.key)

    def _size(self, key: str, notes: _Notes) -> int | None:
        try:
            return self._client.object_size(key)
        except RemoteResourceNotFoundError:
            notes.add(Problem(FindingKind.MISSING_OBJECT, "object is missing"), key)
            return None


class Described(NamedTuple):
    """Key and stored size of a segment's log, and its manifest if the layout has one."""

    log_key: str | None
    manifest: SegmentManifest | None
    log_size: int


class SegmentScrubber:
    """Checks segments of one bucket, or of a user's storage manager: then `objects` is None, and
    only log and indexes are checked. Raises RemoteStorageError if the store fails: that is not a
    finding.

    With `may_have_gaps`, for compacted topics, offsets without a record are not a finding. Without
    `with_records` only the headers and CRCs of batches are checked.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        objects: StoredObjects | None,
        *,
        may_have_gaps: bool = False,
        with_records: bool = True,
    ) -> None:
        self._storage = storage
        self._objects = objects
        self._may_have_gaps = may_have_gaps
        self._with_records = with_records

    @staticmethod
    def of_bucket(
        settings: ObjectStoreSettings, *, may_have_gaps: bool = False, with_records: bool = True
    ) -> SegmentScrubber:
        return SegmentScrubber(
            ObjectStoreRemoteStorageManager(settings),
            StoredObjects(settings),
            may_have_gaps=may_have_gaps,
            with_records=with_records,
        )

    def scrub(
        self,
        segment: RemoteLogSegmentMetadata,
        previous: RemoteLogSegmentMetadata | None = None,
        overlapping: Sequence[RemoteLogSegmentMetadata] = (),
    ) -> SegmentScrub:
        """Check a segment. `previous` ends where it begins: its producer snapshot has the
        transactions that are open there. `overlapping` segments have some of its offsets: their
        batches are compared."""
        notes = _Notes(segment)
        described: Described | None = Described(None, None, segment.segment_size_in_bytes)
        if self._objects is not None:
            try:
                described = self._objects.check(segment, notes)
            except UnreadableDataError as error:
                # Custom metadata that is no place: each object of the segment would fail for it.
                notes.add(Problem(FindingKind.DAMAGED_OBJECT, str(error)))
                described = None
        if described is None:
            return SegmentScrub(tuple(notes.findings))
        log_key, manifest, expected = described
        batches = self._log(segment, log_key, notes)
        if batches is None:
            return SegmentScrub(tuple(notes.findings), expected)
        problems = self._log_problems(segment, batches)
        for problem in (*problems, *self._conflicts(batches, overlapping)):
            notes.add(problem, log_key)
        if not problems or _CAUSES_NO_OTHER.issuperset(problem.kind for problem in problems):
            transactions = Transactions(batches, self._producers_before(segment, previous))
            for problem in check_producer_batches(batches, transactions):
                notes.add(problem, log_key)
            # Else its positions are those of other indexes, and a finding says so.
            if manifest is None or not describes_another(segment, manifest):
                self._check_indexes(segment, manifest, notes, batches, transactions)
        return SegmentScrub(tuple(notes.findings), expected, len(batches.rows))

    def _conflicts(
        self, batches: LogBatches, overlapping: Sequence[RemoteLogSegmentMetadata]
    ) -> Iterator[Problem]:
        for other in overlapping:
            # Its damage is another finding.
            others = self._log(other, None, _Notes(other))
            if others is not None:
                yield from check_same_batches(batches, others, uuid_to_text(other.segment_id.id))

    def _log(
        self, segment: RemoteLogSegmentMetadata, log_key: str | None, notes: _Notes
    ) -> LogBatches | None:
        try:
            # Closed here: the garbage collector would close the generator in any thread, and might
            # wait there for its threads for ever.
            with closing(self._blocks(segment)) as blocks:
                return read_log_batches(
                    blocks, segment.segment_size_in_bytes, with_records=self._with_records
                )
        except RemoteResourceNotFoundError:
            notes.add(Problem(FindingKind.MISSING_OBJECT, "object was deleted meanwhile"), log_key)
        except UnreadableDataError as error:
            notes.add(Problem(FindingKind.DAMAGED_OBJECT, str(error)), log_key)
        return None

    def _blocks(self, segment: RemoteLogSegmentMetadata) -> Generator[memoryview, None, None]:
        with ThreadPoolExecutor(_FETCH_AHEAD, thread_name_prefix="isotherm-scrub") as pool:
            yield from segment_blocks_ahead(
                self._storage, segment, FETCH_BYTES, pool, ahead=_FETCH_AHEAD
            )

    def _log_problems(
        self, segment: RemoteLogSegmentMetadata, batches: LogBatches
    ) -> list[Problem]:
        """Problems of the log. If it cannot be read to its end, or has wrong offsets, the other
        checks are skipped: they would all fail for that reason."""
        problems = list(batches.problems)
        if any(problem.kind is FindingKind.DAMAGED_BATCH for problem in problems):
            return problems
        offsets = check_offsets(batches, segment, may_have_gaps=self._may_have_gaps)
        if any(offset.kind is FindingKind.WRONG_OFFSETS for offset in offsets):
            return problems + [
                offset for offset in offsets if offset.kind is FindingKind.WRONG_OFFSETS
            ]
        epochs = segment.segment_leader_epochs
        problems += offsets
        problems += check_epochs(batches, epochs, FindingKind.WRONG_EPOCH, "the metadata")
        problems += check_timestamp_types(batches)
        largest = int(batches.rows["max_timestamp"].max(initial=-1))
        if 0 <= largest != segment.max_timestamp_ms:
            fact = "log has another largest timestamp than its metadata"
            detail = f"{fact} log={largest} metadata={segment.max_timestamp_ms}"
            problems.append(Problem(FindingKind.WRONG_TIMESTAMP, detail))
        return problems

    def _producers_before(
        self, segment: RemoteLogSegmentMetadata, previous: RemoteLogSegmentMetadata | None
    ) -> ProducersBefore | None:
        """The producers at the end of `previous`; None if they are unknown. Damage of the snapshot
        is a finding of `previous`."""
        if segment.start_offset == 0:
            return ProducersBefore.of([])
        if previous is None:
            return None
        try:
            snapshot = self._storage.fetch_index(previous, IndexType.PRODUCER_SNAPSHOT)
            return ProducersBefore.of(read_producer_snapshot(snapshot))
        except UnreadableDataError:
            return None

    def _check_indexes(
        self,
        segment: RemoteLogSegmentMetadata,
        manifest: SegmentManifest | None,
        notes: _Notes,
        batches: LogBatches,
        transactions: Transactions,
    ) -> None:
        for kind in IndexType:
            key, is_there = None, True
            if self._objects is not None:
                location = self._objects.layout.index_location(segment, kind, manifest)
                key, is_there = None if location is None else location.key, location is not None
            if not is_there:
                found_problems = _index_problems(kind, None, batches, transactions, segment)
            else:
                try:
                    index = self._storage.fetch_index(segment, kind)
                    found_problems = _index_problems(kind, index, batches, transactions, segment)
                except RemoteResourceNotFoundError:
                    found_problems = self._absent(kind, batches, transactions, segment)
                except UnreadableDataError as error:
                    detail = f"index cannot be read reason={str(error)!r}"
                    found_problems = [Problem(_INDEX_PROBLEMS[kind], detail)]
            for problem in found_problems:
                notes.add(problem, key)

    def _absent(
        self,
        kind: IndexType,
        batches: LogBatches,
        transactions: Transactions,
        segment: RemoteLogSegmentMetadata,
    ) -> list[Problem]:
        if self._objects is not None and self._objects.layout.commit_suffix is not None:
            return []  # the one object that holds all indexes: reported when it was looked for
        if kind is IndexType.TRANSACTION:
            return _index_problems(kind, None, batches, transactions, segment)
        return [Problem(FindingKind.MISSING_OBJECT, f"index is missing index={kind.value}")]


def compare_manifest(
    manifest: SegmentManifest, segment: RemoteLogSegmentMetadata
) -> Iterator[Problem]:
    """Compare the manifest's fields with the metadata, and with each other."""
    kind = FindingKind.WRONG_MANIFEST
    described = manifest.segment
    for field in _SHARED_FIELDS if described is not None else ():
        ours, theirs = getattr(segment, field), getattr(described, field)
        if ours != theirs:
            yield Problem(
                kind,
                f"manifest and metadata differ field={field} manifest={_text(theirs)}"
                f" metadata={_text(ours)}",
            )
    if (
        manifest.chunk_index.original_file_size != segment.segment_size_in_bytes
        and described is None
    ):
        yield Problem(
            kind,
            "manifest and metadata differ field=segment_size_in_bytes"
            f" manifest={manifest.chunk_index.original_file_size}"
            f" metadata={segment.segment_size_in_bytes}",
        )
    position = 0
    for index_type, index in manifest.indexes.items():
        if index.position != position:
            yield Problem(
                kind,
                f"indexes do not lie side by side index={index_type.value}"
                f" position={index.position} expected={position}",
            )
        position = index.position + index.size


def _text(value: object) -> str:
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def _wrong_size(size: int, expected: int) -> Problem:
    return Problem(
        FindingKind.WRONG_SIZE, f"object has another size size={size} expected={expected}"
    )


def _index_problems(
    kind: IndexType,
    index: bytes | None,
    batches: LogBatches,
    transactions: Transactions,
    segment: RemoteLogSegmentMetadata,
) -> list[Problem]:
    if kind is IndexType.TRANSACTION:
        return check_transaction_index_entries(index, batches, transactions, segment)
    assert index is not None, "only a transaction index may be absent"
    match kind:
        case IndexType.OFFSET:
            return check_offset_index_entries(index, batches, segment)
        case IndexType.TIMESTAMP:
            return check_time_index_entries(index, batches, segment)
        case IndexType.PRODUCER_SNAPSHOT:
            return check_producer_snapshot(index, batches, transactions, segment)
        case IndexType.LEADER_EPOCH:
            return check_epoch_checkpoint(index, batches, segment)
