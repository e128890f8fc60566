"""A compacted copy under another prefix: a crash at any step, its completion or undoing, and its
verification."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import CorruptObjectError
from isotherm.record.batch import build_batch
from isotherm.remote.compaction.compacted_piece import CompactionRules
from isotherm.remote.rewriting.journal import JournalState, RewriteJournals
from isotherm.remote.rewriting.run_recovery import finish_copy, undo_run
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from tests.support.bucket_inventory import read_inventory
from tests.support.record_segments import RecordSegmentMaker

OWNER = TopicIdPartition(uuid.UUID(int=3), "t", 0)


class CutOffError(BaseException):
    """The process ends here. A BaseException, so that no handler of errors catches it."""


class MortalClient(ObjectClient):
    """Raises CutOffError at a change of the store after `left` changes. Flips a bit of objects
    whose key ends with `damages`."""

    left = 10**9
    damages = ""

    def put(self, key: str, content: Any) -> None:
        self._step()
        super().put(key, content)
        if self.damages and key.endswith(self.damages):
            data = bytearray(self.get(key, 1 << 20))
            data[len(data) // 2] ^= 1
            super().put(key, bytes(data))

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CutOffError


class Copy:
    """Three segments in a source bucket, and a job that copies them compacted to another prefix."""

    def __init__(self, folder: Path, local_compaction: Callable[..., Any]) -> None:
        source = ObjectStoreSettings(url=(folder / "source").as_uri())
        self.settings = ObjectStoreSettings(url=(folder / "target").as_uri(), key_prefix="c/")
        store = open_object_store(self.settings, create_folder=True)
        self.client = MortalClient(self.settings, store)
        self.target = ObjectStoreRemoteStorageManager(self.settings, store=store)
        self.target._client = self.client
        self.journals = RewriteJournals(self.client, self.target.root_directory)
        storage = ObjectStoreRemoteStorageManager(source)
        maker = RecordSegmentMaker(folder / "made", storage)
        self.segments = []
        for first in (0, 10, 20):
            records = [(first, b"key-%d" % (n % 4), b"%d" % (first + n), ()) for n in range(10)]
            batches = [build_batch(records[at : at + 5], base_offset=first + at) for at in (0, 5)]
            self.segments.append(maker.tier(OWNER, batches))
        rules = CompactionRules(now_ms=5, delete_retention_ms=1)
        self.job = local_compaction(storage, self.journals, folder / "job", rules)

    def run(self, name: str = "one") -> None:
        self.job.stage(name, self.segments, in_place=False, target=self.target)
        (found,) = self.journals.find()
        finish_copy(self.target, self.journals, found)

    def objects(self) -> list[str]:
        return sorted(stored.key for stored in self.client.list_objects(""))

    def check_whole(self) -> None:
        layout = self.settings.create_layout()
        inventory = read_inventory(open_for_reading(self.settings), layout)
        assert [segment.start_offset for segment in inventory.segments] == [0, 10, 20]
        assert not inventory.uncommitted
        assert not inventory.damaged
        assert len(self.objects()) == 9


@pytest.mark.slow
def test_a_copy_cut_off_anywhere_is_finished_or_undone(
    tmp_path: Path, local_compaction: Callable[..., Any]
) -> None:
    outcomes = []
    for number in itertools.count():
        copy = Copy(tmp_path / str(number), local_compaction)
        copy.client.left = number
        try:
            copy.run()
        except CutOffError:
            copy.client.left = 10**9
        else:
            break
        found = copy.journals.find()
        journal = found[0].journal if found else None
        if journal is not None and journal.state is JournalState.STAGED:
            finish_copy(copy.target, copy.journals, found[0])
            outcomes.append("finished")
        else:
            for each in found:
                undo_run(copy.target, copy.journals, each)
            outcomes.append("undone")
            assert copy.objects() == []
            copy.run("two")
        copy.check_whole()
    # journal, 3 x (announcement, log, indexes) | journal, 3 manifests, 3 announcements, journal
    assert outcomes == 11 * ["undone"] + 7 * ["finished"]


def test_what_a_failed_attempt_of_a_task_staged_is_deleted(
    tmp_path: Path, local_compaction: Callable[..., Any]
) -> None:
    copy = Copy(tmp_path, local_compaction)
    copy.job.stage("one", copy.segments, in_place=False, target=copy.target)
    staged = copy.job.stage("one", copy.segments, in_place=False, target=copy.target)
    assert len(copy.journals.find()[0].staged) == 2 * len(staged.replacements)
    finish_copy(copy.target, copy.journals, copy.journals.find()[0])
    copy.check_whole()


@pytest.mark.parametrize("damaged", [".log", ".indexes"])
def test_damage_on_the_way_into_the_bucket_is_found_before_anything_is_whole(
    tmp_path: Path, local_compaction: Callable[..., Any], damaged: str
) -> None:
    copy = Copy(tmp_path, local_compaction)
    copy.client.damages = damaged
    with pytest.raises(CorruptObjectError, match="staged segment is not as it was written"):
        copy.run()
    assert not [name for name in copy.objects() if name.endswith("manifest")]
