"""The journal of a run in the bucket: round trips, damage, and what runs announced."""

from __future__ import annotations

import base64
import json
import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import CorruptMetadataError, UnreadableDataError, UnsupportedVersionError
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
    decode_journal,
    encode_journal,
)
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.conformance.remote_metadata import FINISHED, make_segment
from isotherm.types import TopicIdPartition

OWNER = TopicIdPartition(uuid.UUID(int=3), "a-topic", 4)
SEGMENT = RemoteLogSegmentId(OWNER, uuid.UUID(int=99))


def journal(state: JournalState = JournalState.STAGED) -> RewriteJournal:
    return RewriteJournal(
        kind=RunKind.COMPACTION,
        run="r1",
        partition=OWNER,
        state=state,
        time_ms=7,
        in_place=True,
        keep_old_ms=9,
    )


@pytest.fixture
def journals(tmp_path: Path) -> RewriteJournals:
    settings = ObjectStoreSettings(url=tmp_path.as_uri())
    client = ObjectClient(settings, open_object_store(settings, create_folder=True))
    return RewriteJournals(client, "kafka/")


@pytest.mark.parametrize(
    ("name", "value"),
    [("run", 5), ("run", None), ("partition", "4"), ("timeMs", "soon"), ("timeMs", True),
     ("inPlace", 1), ("keepOldMs", 1.5), ("topic", ["a"]), ("replacements", {"a": 1}),
     ("replacements", [{"old": 1, "new": 2, "manifest": 3}]), ("topicId", 5), ("state", []),
     ("kind", "backup")],
)  # fmt: skip
def test_member_of_another_type_is_corrupt(name: str, value: object) -> None:
    members = json.loads(encode_journal(journal()))
    with pytest.raises(CorruptMetadataError):
        decode_journal(json.dumps({**members, name: value}).encode())


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"version": {"a": 1}}', b'{"version": null}'])
def test_json_of_another_form_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableDataError) as raised:
        decode_journal(data)
    assert len(str(raised.value)) < 200


def test_journal_is_read_as_it_was_written() -> None:
    old, new = make_segment(1, {0: 0}, 9), make_segment(2, {0: 0}, 9)
    finished = replace(new, state=FINISHED, custom_metadata=b"c", broker_leader_epoch=5)
    written = replace(journal(), replacements=(SegmentReplacement(old, finished, b"{manifest}"),))
    assert decode_journal(encode_journal(written)) == written


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"version": 2}', b"\xff", b'{"version": 2, "replacements": [1]}'],
)
def test_what_is_no_journal_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="no journal of a run"):
        decode_journal(data)


@pytest.mark.parametrize("field", ["old", "new", "manifest"])
def test_journal_whose_segments_cannot_be_read_is_refused(field: str) -> None:
    segment = make_segment(1, {0: 0}, 9)
    update = RemoteLogSegmentMetadataUpdate(
        segment_id=segment.segment_id,
        event_timestamp_ms=1,
        state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        broker_id=1,
    )
    whole = replace(journal(), replacements=(SegmentReplacement(segment, segment, b"{}"),))
    other = base64.b64encode(encode_event(update)).decode()
    for text in ("!", other):
        members = json.loads(encode_journal(whole))
        members["replacements"][0][field] = text
        if (field, text) == ("manifest", other):
            continue  # a manifest may be any bytes
        with pytest.raises(CorruptMetadataError):
            decode_journal(json.dumps(members).encode())


@pytest.mark.parametrize("newest", ["journal", "staging"])
def test_run_is_as_old_as_its_newest_object(
    journals: RewriteJournals, tmp_path: Path, newest: str
) -> None:
    journals.put(journal())
    journals.announce("r1", SEGMENT, 70)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            time_s = 2000 if path.name.endswith(newest) else 1000
            os.utime(path, (time_s, time_s))
    (listed,) = journals.list_runs()
    assert listed.modified_ms == 2_000_000


def test_journal_of_another_version_is_refused_by_name(journals: RewriteJournals) -> None:
    members = json.loads(encode_journal(journal())) | {"version": 1}
    with pytest.raises(UnsupportedVersionError, match="version=1"):
        decode_journal(json.dumps(members).encode())


def test_runs_are_found_with_what_they_announced_and_forgotten(
    journals: RewriteJournals,
) -> None:
    assert journals.find() == []
    journals.put(journal())
    journals.announce("r1", SEGMENT, 70)
    journals.announce("r0", SEGMENT, 70)
    headless, whole = journals.find()
    assert (headless.run, headless.journal, headless.staged) == ("r0", None, ((70, SEGMENT),))
    assert (whole.partition, whole.journal, whole.staged) == (OWNER, journal(), ((70, SEGMENT),))
    journals.forget(headless)
    journals.forget(whole)
    assert journals.find() == []


def test_damaged_journal_is_named_and_foreign_objects_are_passed_over(
    journals: RewriteJournals,
) -> None:
    client = journals._client
    for key in ("readme", "a-topic/1/r/journal", f"a-topic-{'A' * 22}/x/r/journal"):
        client.put(f"kafka/isotherm-rewrites/{key}", b"what?")
    assert journals.find() == []
    client.put(f"kafka/isotherm-rewrites/a-topic-{'A' * 22}/1/r/journal", b"what?")
    with pytest.raises(CorruptMetadataError, match=r"object=kafka/isotherm-rewrites/a-topic-A+/"):
        journals.find()
