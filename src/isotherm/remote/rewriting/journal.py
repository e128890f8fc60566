"""The journal of a run that rewrites a history, in the bucket: with it the next run finishes or
undoes an interrupted one.

    <root>isotherm-rewrites/<topic>-<topic id>/<partition>/<run>/

    journal              written first, removed last: the state of the run for this partition
    <segment>.staging    empty; has the name of a segment that the run makes, and is written before
                         the segment's first object: it names objects that the run may have put
    <broker id>.dropped  of an erasure: empty; the broker has no local copies of old segments left

    state      meaning                                        after a crash
    staging    segments are being made; none is whole yet     undo: delete their objects
    staged     all are made and verified; the journal has     finish: commit and publish them in
               their manifests                                order, the old ones answer until then
    published  the new segments answer                        delete the old ones, when their time
                                                              has come

    refused    of a load: its objects are deleted, and it   forget, once the job has read why
               says why

A copy to another bucket or prefix has its journal there. It replaces no segments, so it ends after
`staged`. JSON, version 2: docs/formats/rewrite-journal.md.
"""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass, field
from typing import Any

from isotherm.errors import (
    CorruptMetadataError,
    RemoteResourceNotFoundError,
    UnknownObjectVersionError,
    UnreadableDataError,
)
from isotherm.remote.metadata.wire.serde import decode_event, encode_keyed_event
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.object_names import (
    parse_partition,
    parse_segment_file,
    segment_file_stem,
    split_trailing_uuid,
)
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.types import (
    BrokerId,
    Offset,
    TimestampMs,
    TopicIdPartition,
    uuid_from_text,
    uuid_to_text,
)

JOURNALS_FOLDER = "isotherm-rewrites"
JOURNAL_VERSION = 2
JOURNAL_SIZE_MAX = 1024 * 1024 * 1024
"""The size limit of a journal: some KB for each segment, and a partition may have very many."""

_JOURNAL = "journal"
_STAGING_SUFFIX = "staging"
_DROPPED_SUFFIX = ".dropped"


class RunKind(enum.Enum):
    """The job that began the run."""

    COMPACTION = "compaction"
    ERASURE = "erasure"
    LOAD = "load"


class JournalState(enum.Enum):
    STAGING = "staging"
    STAGED = "staged"
    PUBLISHED = "published"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class SegmentReplacement:
    """`new` replaces `old`, in state COPY_SEGMENT_FINISHED, after `manifest` is stored."""

    old: RemoteLogSegmentMetadata
    new: RemoteLogSegmentMetadata
    manifest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment in state COPY_SEGMENT_FINISHED that replaces none, to be published after `manifest`
    is stored."""

    metadata: RemoteLogSegmentMetadata
    manifest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteJournal:
    """`time_ms` is the time of the state. The old segments are deleted `keep_old_ms` after they
    were superseded. A copy replaces nothing: its `old` segments are the source's, and stay.
    `replacements` and `new_segments` ascend, and are empty while STAGING; only a load has the
    latter. `reason` says why a load is REFUSED."""

    kind: RunKind
    run: str
    partition: TopicIdPartition
    state: JournalState
    time_ms: TimestampMs
    in_place: bool
    keep_old_ms: int = 0
    replacements: tuple[SegmentReplacement, ...] = ()
    new_segments: tuple[NewSegment, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """The objects in the folder of a run. `modified_ms` is that of the newest one, `dropped_by` the
    brokers that have dropped their local copies."""

    partition: TopicIdPartition
    run: str
    has_journal: bool
    staged: tuple[tuple[Offset, RemoteLogSegmentId], ...]
    modified_ms: TimestampMs
    dropped_by: frozenset[BrokerId] = frozenset()


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run with its journal, which is None if it is missing (the run's last step was
    interrupted)."""

    partition: TopicIdPartition
    run: str
    journal: RewriteJournal | None
    staged: tuple[tuple[Offset, RemoteLogSegmentId], ...]
    modified_ms: TimestampMs
    dropped_by: frozenset[BrokerId] = frozenset()


class RewriteJournals:
    """The journals of a bucket. Thread-safe. Methods raise RemoteStorageError if the store
    fails."""

    def __init__(self, client: ObjectClient, root_directory: str) -> None:
        """`root_directory` is the layout's."""
        self._client = client
        self._root = f"{root_directory}{JOURNALS_FOLDER}/"

    def put(self, journal: RewriteJournal) -> None:
        self._client.put(
            self._folder(journal.partition, journal.run) + _JOURNAL, encode_journal(journal)
        )

    def announce(self, run: str, segment_id: RemoteLogSegmentId, start_offset: Offset) -> None:
        """Announce a segment. Call before its first object is put."""
        self._client.put(self._staging_key(run, segment_id, start_offset), b"")

    def note_dropped(self, run: FoundRun, broker_id: BrokerId) -> None:
        """Record that a broker has dropped its local copies of the segments that an erasure has
        replaced."""
        self._client.put(self._dropped_key(run, broker_id), b"")

    def list_runs(self) -> list[ListedRun]:
        """Every unfinished run, by one listing."""
        return self._list(self._root)

    def _list(self, prefix: str) -> list[ListedRun]:
        folders: dict[tuple[TopicIdPartition, str], list[tuple[str, TimestampMs]]] = {}
        for stored in self._client.list_objects(prefix):
            place = self._parse(stored.key)
            if place is not None:
                partition, run, name = place
                folders.setdefault((partition, run), []).append((name, stored.last_modified_ms))
        return [_listed(*place, names) for place, names in sorted(folders.items())]

    def read(self, listed: ListedRun) -> FoundRun:
        """Read the run's journal, with one more request, and another listing once the staging is
        over. Raises CorruptMetadataError for an unreadable one."""
        journal = None
        if listed.has_journal:
            key = self._folder(listed.partition, listed.run) + _JOURNAL
            try:
                journal = decode_journal(self._client.get(key, JOURNAL_SIZE_MAX))
            except UnreadableDataError as error:
                raise type(error)(f"{error} object={key}") from error
        if journal is not None and journal.state is not JournalState.STAGING:
            # The staging may have ended since the listing, which then lacks announcements. One that
            # is left when the journal is gone looks like that of a run without a journal, and its
            # segment, which may be live, would be deleted with it.
            again = self._list(self._folder(listed.partition, listed.run))
            listed = again[0] if again else listed
        return FoundRun(
            listed.partition,
            listed.run,
            journal,
            listed.staged,
            listed.modified_ms,
            listed.dropped_by,
        )

    def find(self) -> list[FoundRun]:
        """Every unfinished run, with its journal. A run that ends meanwhile is left out."""
        runs = []
        for listed in self.list_runs():
            try:
                runs.append(self.read(listed))
            except RemoteResourceNotFoundError:
                continue  # its journal was removed after the listing
        return runs

    def forget(self, run: FoundRun) -> None:
        """Remove the run's folder; the journal last."""
        for start_offset, segment_id in run.staged:
            self._client.delete(self._staging_key(run.run, segment_id, start_offset))
        for broker_id in sorted(run.dropped_by):
            self._client.delete(self._dropped_key(run, broker_id))
        self._client.delete(self._folder(run.partition, run.run) + _JOURNAL)

    def _staging_key(self, run: str, segment_id: RemoteLogSegmentId, start_offset: Offset) -> str:
        stem = segment_file_stem(start_offset, segment_id.id)
        return f"{self._folder(segment_id.topic_id_partition, run)}{stem}.{_STAGING_SUFFIX}"

    def _dropped_key(self, run: FoundRun, broker_id: BrokerId) -> str:
        return f"{self._folder(run.partition, run.run)}{broker_id}{_DROPPED_SUFFIX}"

    def _folder(self, partition: TopicIdPartition, run: str) -> str:
        topic = f"{partition.topic}-{uuid_to_text(partition.topic_id)}"
        return f"{self._root}{topic}/{partition.partition}/{run}/"

    def _parse(self, key: str) -> tuple[TopicIdPartition, str, str] | None:
        parts = key.removeprefix(self._root).split("/")
        if len(parts) != 4:
            return None
        topic, number = split_trailing_uuid(parts[0]), parse_partition(parts[1])
        if topic is None or number is None:
            return None
        return TopicIdPartition(topic[1], topic[0], number), parts[2], parts[3]


def _listed(
    partition: TopicIdPartition, run: str, objects: list[tuple[str, TimestampMs]]
) -> ListedRun:
    files = (parse_segment_file(name) for name, _ in objects)
    staged = [
        (file.start_offset, RemoteLogSegmentId(partition, file.segment_uuid))
        for file in files
        if file is not None and file.suffix == _STAGING_SUFFIX
    ]
    dropped_by = frozenset(
        int(name.removesuffix(_DROPPED_SUFFIX))
        for name, _ in objects
        if name.endswith(_DROPPED_SUFFIX) and name.removesuffix(_DROPPED_SUFFIX).isdigit()
    )
    has_journal = any(name == _JOURNAL for name, _ in objects)
    # Each announcement shows that the job still runs.
    newest = max(modified_ms for _, modified_ms in objects)
    return ListedRun(
        partition, run, has_journal, tuple(sorted(staged, key=str)), newest, dropped_by
    )


def encode_journal(journal: RewriteJournal) -> bytes:
    members: dict[str, Any] = {
        "version": JOURNAL_VERSION,
        "kind": journal.kind.value,
        "run": journal.run,
        "topic": journal.partition.topic,
        "topicId": uuid_to_text(journal.partition.topic_id),
        "partition": journal.partition.partition,
        "state": journal.state.value,
        "timeMs": journal.time_ms,
        "inPlace": journal.in_place,
        "keepOldMs": journal.keep_old_ms,
        "replacements": [
            {
                "old": _text(encode_keyed_event(replacement.old)),
                "new": _text(encode_keyed_event(replacement.new)),
                "manifest": _text(replacement.manifest),
            }
            for replacement in journal.replacements
        ],
        "newSegments": [
            {
                "new": _text(encode_keyed_event(segment.metadata)),
                "manifest": _text(segment.manifest),
            }
            for segment in journal.new_segments
        ],
        "reason": journal.reason,
    }
    return json.dumps(members, indent=1, ensure_ascii=False).encode()


def decode_journal(data: bytes) -> RewriteJournal:
    """Decode a journal. Raises CorruptMetadataError for anything else, and
    UnknownObjectVersionError for a journal of another version. The caller adds the object's key to
    the error."""
    try:
        members = json.loads(data)
        version = members["version"]
        if version != JOURNAL_VERSION:
            raise UnknownObjectVersionError(
                f"journal has another version version={ascii(version)[:80]}"
            )
        wrong = [name for name, kind in _MEMBERS.items() if type(members[name]) is not kind]
        if wrong:
            raise CorruptMetadataError(f"journal has wrong members names={wrong}")
        replacements = tuple(map(_replacement, members["replacements"]))
        return RewriteJournal(
            kind=RunKind(members["kind"]),
            run=members["run"],
            partition=TopicIdPartition(
                uuid_from_text(members["topicId"]), members["topic"], members["partition"]
            ),
            state=JournalState(members["state"]),
            time_ms=members["timeMs"],
            in_place=members["inPlace"],
            keep_old_ms=members["keepOldMs"],
            replacements=replacements,
            new_segments=tuple(
                NewSegment(_segment(segment["new"]), _bytes(segment["manifest"]))
                for segment in members["newSegments"]
            ),
            reason=members["reason"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptMetadataError("object is no journal of a run") from error


_MEMBERS = {
    "run": str,
    "topic": str,
    "partition": int,
    "timeMs": int,
    "inPlace": bool,
    "keepOldMs": int,
    "reason": str,
}


def _replacement(members: dict[str, str]) -> SegmentReplacement:
    return SegmentReplacement(
        _segment(members["old"]), _segment(members["new"]), _bytes(members["manifest"])
    )


def _segment(text: str) -> RemoteLogSegmentMetadata:
    event = decode_event(_bytes(text))
    if not isinstance(event, RemoteLogSegmentMetadata):
        raise CorruptMetadataError("journal names something that is no segment")
    return event


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
