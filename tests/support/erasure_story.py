"""One partition whose closed segments are in both tiers, an erasure of some of its records, and the
model of what must be left.

The job runs without Spark, by the functions that its tasks call. The broker is its finisher. Each
durable change of either is a step of `countdown`: a test can end the process at any of them.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from isotherm.metrics.registry import Metrics
from isotherm.record.batch import CompressionType, build_batch, iterate_batches, read_records
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
)
from isotherm.remote.rewriting.local_copies import LocalCopies
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.staging import stage_segment
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
)
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.spark.jobs.rewrite_plan import marked_pieces, with_last_records
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.types import BrokerId, Offset
from tests.support.bucket_scrub import scrub
from tests.support.mortal_store import Countdown, CutOffError, MortalClient
from tests.support.tiered_partition import BROKER_ID, TieredPartition

KEEP_OLD_MS = 5000
FETCH_BYTES = 1000
KEYS = (b"a", b"b", b"c", None)
TRANSACTIONAL_IDS = (10, 11)
SELECTED_FIELD = ("name",)


class Content(NamedTuple):
    """What a record says. `headers` are its headers."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ErasureStory:
    """A partition at level 1. `replicas` are the brokers that must drop their local copies.

    `before` has every record and marker, `after` those that the erasure leaves, as it leaves them.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        action: EraseAction = EraseAction.DROP,
        batches_min: int = 6,
        batches_max: int = 12,
    ) -> None:
        self.directory = directory
        self.action = action
        self.rng = random.Random(seed)
        self.countdown = Countdown()
        self.leads = True
        self.executor_deaths = 0
        self.replicas: frozenset[BrokerId] = frozenset({BROKER_ID})
        settings = ObjectStoreSettings(url=(directory / "bucket").as_uri())
        store = open_object_store(settings, create_folder=True)
        self.storage = ObjectStoreRemoteStorageManager(settings, store=store)
        client = MortalClient(settings, store)
        client.countdown = self.countdown
        self.storage._client = client
        self.journals = RewriteJournals(client, self.storage.root_directory)
        self.partition = TieredPartition(
            directory,
            metadata_level=1,
            storage=self.storage,
            file_delete_delay_ms=self.rng.choice([0, KEEP_OLD_MS // 2]),
        )
        for topic in (self.partition.metadata_topic, self.partition.audit_topic):
            self._count_appends(topic)
        self.before: dict[Offset, Content] = {}
        self._markers: set[Offset] = set()
        self._open: list[int] = []
        self._sequences = dict.fromkeys(TRANSACTIONAL_IDS, 0)
        for _ in range(self.rng.randint(batches_min, batches_max)):
            self._append()
            if self.rng.random() < 0.3:
                self._end_a_transaction()
            if self.rng.random() < 0.4:
                self.partition.log.roll()
        while self._open:
            self._end_a_transaction()
        self.partition.log.roll()
        self.end = self.partition.log.log_end_offset
        self.partition.copy_task.run()
        self._append()  # the tail, which is on the broker only
        self.segments_before = self.partition.segments()
        self.aborted_before = self._aborted()
        self.selected = self._selection()
        self.after = {
            offset: changed
            for offset, content in self.before.items()
            if (changed := self._erased(content) if offset in self.selected else content)
        }
        self._ids = itertools.count(1000)

    def _append(self) -> None:
        secrets = [b"%032x" % self.rng.getrandbits(128) for _ in range(self.rng.randint(1, 3))]
        contents = [
            Content(
                self.rng.choice(KEYS),
                b'{"n": 1, "name": "%b"}' % secret,
                self.rng.choice([(), (("h", secret),)])
                if self.action is not EraseAction.REDACT
                else (),
            )
            for secret in secrets
        ]
        producer = self.rng.choice([None, None, *TRANSACTIONAL_IDS])
        records = [(self.partition.clock.now_ms(), *content) for content in contents]
        codec = self.rng.choice(list(CompressionType))
        if producer is None:
            batch = build_batch(records, compression=codec)
        else:
            batch = build_batch(
                records,
                compression=codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=self._sequences[producer],
                is_transactional=True,
            )
            self._sequences[producer] += len(records)
            if producer not in self._open:
                self._open.append(producer)
        first = self.partition.append_batch(batch)
        self.before |= dict(enumerate(contents, first))

    def _end_a_transaction(self) -> None:
        if not self._open:
            return
        marker = build_end_transaction_marker(
            self.rng.choice([ControlRecordType.COMMIT, ControlRecordType.ABORT]),
            producer_id=self._open.pop(),
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.partition.clock.now_ms(),
        )
        ((offset, content),) = contents_in(bytes(marker))
        offset = self.partition.append_batch(marker, origin=AppendOrigin.COORDINATOR)
        self.before[offset] = content
        self._markers.add(offset)

    def _selection(self) -> set[Offset]:
        """Records of one key, or any records. At least one."""
        tiered = [offset for offset in self.before if offset < self.end]
        tiered = [offset for offset in tiered if offset not in self._markers]
        key = self.before[self.rng.choice(tiered)].key
        if self.rng.random() < 0.5:
            return {offset for offset in tiered if self.before[offset].key == key}
        return set(self.rng.sample(tiered, self.rng.randint(1, len(tiered))))

    def _erased(self, content: Content) -> Content | None:
        """A selected record as docs/pipeline/erase.md says."""
        if self.action is EraseAction.DROP:
            return None
        if self.action is EraseAction.TOMBSTONE:
            return Content(content.key, None)
        assert content.value is not None
        members = json.loads(content.value) | {"name": None}
        return content._replace(value=json.dumps(members).encode())

    def _count_appends(self, topic: object) -> None:
        append = topic.append  # type: ignore[attr-defined]

        def counted(*arguments: object) -> int:
            if not self.countdown.is_full:  # the store's disk, not that of the log
                self.countdown.step()
            offset: int = append(*arguments)
            return offset

        topic.append = counted  # type: ignore[attr-defined]

    def pieces(self) -> list[Piece]:
        segments = self.partition.segments()
        found = {self.partition.partition.topic_partition: lineage_pieces(segments)}
        (marked,) = marked_pieces(CommittedHistory(self.storage, found), found).values()
        return with_last_records(self.storage, marked)

    def stage(
        self, run: str, kind: RunKind = RunKind.ERASURE, *, has_executors: bool = False
    ) -> None:
        """The job, from its first journal to the last. With executors the death of a task's process
        is not that of the driver, which has the task tried again."""
        journal = self.journal(run, kind)
        self.journals.put(journal)
        staged = []
        for piece in self.pieces():
            try:
                staged.append(self.stage_piece(run, piece))
            except CutOffError:
                if not has_executors:
                    raise
                self.executor_deaths += 1
                self.countdown.left = None
                staged.append(self.stage_piece(run, piece))
        replacements = tuple(each for each in staged if each is not None)
        self.journals.put(replace(journal, state=JournalState.STAGED, replacements=replacements))

    def journal(self, run: str, kind: RunKind = RunKind.ERASURE) -> RewriteJournal:
        return RewriteJournal(
            kind=kind,
            run=run,
            partition=self.partition.partition,
            state=JournalState.STAGING,
            time_ms=self.partition.clock.now_ms(),
            in_place=True,
            keep_old_ms=KEEP_OLD_MS,
        )

    def stage_piece(
        self, run: str, piece: Piece, selected: Collection[Offset] | None = None
    ) -> SegmentReplacement | None:
        """Stage the segment that replaces a piece, unless it would not change. `selected` is the
        selection of a run that has one of its own."""
        number = next(self._ids)
        folder = self.directory.parent / f"{self.directory.name}-job" / str(number)
        folder.mkdir(parents=True)
        offsets = sorted(
            offset
            for offset in (self.selected if selected is None else selected)
            if piece.start_offset <= offset < piece.end_offset
        )
        if not offsets:
            return None
        rewritten = erase_piece(
            self.storage,
            piece,
            np.array(offsets, dtype=np.int64) - piece.start_offset,
            ErasureRules(
                now_ms=self.partition.clock.now_ms(), action=self.action, fields=(SELECTED_FIELD,)
            ),
            RemoteLogSegmentId(self.partition.partition, uuid.UUID(int=number)),
            folder,
        )
        if not rewritten.is_changed:
            return None
        return stage_segment(
            self.storage, self.journals, run, piece.segment, rewritten, FETCH_BYTES
        )

    def look(self) -> None:
        """Let the broker do what is due."""
        self.finisher().run()

    def finisher(self, abandoned_after_ms: int = 10**12) -> RewriteFinisher:
        partition = self.partition
        local = LocalCopies(
            BROKER_ID,
            lambda _: partition.log,
            lambda _: self.replicas,
            partition.read_ahead.forget,
            partition.clock,
        )
        return RewriteFinisher(
            self.journals,
            self.storage,
            TierReplacementTarget(partition.tier, partition.metadata, lambda _: self.leads, local),
            abandoned_after_ms=abandoned_after_ms,
            is_alone=True,
            clock=partition.clock,
            metrics=Metrics(),
        )

    def finish(self) -> None:
        self.look()
        self.partition.clock.advance(KEEP_OLD_MS)
        self.look()
        self.look()

    def restart(self) -> None:
        """The broker's next process, after a death at any step."""
        self.countdown.left = None
        self.partition.restart()
        self.partition.copy_task.run()

    def close(self) -> None:
        self.partition.index_cache.close()
        self.partition.metadata.close()
        self.partition.log.close()

    def remote_contents(self) -> dict[Offset, Content]:
        """The records of the live segments."""
        contents: dict[Offset, Content] = {}
        for segment in self.partition.segments():
            for offset, content in contents_in(bytes(self.storage.fetch_log_segment(segment, 0))):
                assert offset not in contents
                contents[offset] = content
        return contents

    def local_contents(self) -> dict[Offset, Content]:
        return {
            offset: content
            for segment in self.partition.log.segments()
            for offset, content in contents_in(segment.log_path.read_bytes())
        }

    def check_nothing_is_lost(self) -> None:
        """Each tier has a record as it was or as the erasure leaves it, and both have it all."""
        remote, local = self.remote_contents(), self.local_contents()
        for found in (remote, local):
            for offset, content in found.items():
                assert content in (self.before[offset], self.after.get(offset)), offset
        assert (remote | local).keys() >= self.after.keys()

    def check_done(self) -> None:
        tiered = {each: content for each, content in self.after.items() if each < self.end}
        assert self.remote_contents() == tiered
        self.check_nothing_is_lost()
        everywhere = list(self.all_contents())
        for offset, content in everywhere:
            assert content == self.after.get(offset), offset
        # The tail is not selected, and stays on the broker.
        assert {offset for offset, _ in everywhere} >= {o for o in self.before if o >= self.end}
        self._check_raw_bytes()
        assert self._aborted() == self.aborted_before
        assert self.journals.find() == []
        assert not [name for name in self.partition.object_names() if "rewrites" in name]
        values = [record.value for record in self.partition.metadata_topic.records()]
        assert scrub(self.partition.objects(), values) == []

    def _check_raw_bytes(self) -> None:
        secrets = [
            json.loads(value)["name"].encode()
            for offset in self.selected
            if (value := self.before[offset].value)
        ]
        for path in self.directory.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not [secret for secret in secrets if secret in content], path

    def _aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions that the transaction indexes of the live segments name."""
        return sorted(
            transaction
            for segment in self.partition.segments()
            if not segment.txn_index_empty
            for transaction in read_transaction_index(
                self.storage.fetch_index(segment, IndexType.TRANSACTION), segment.start_offset
            )
        )

    def all_contents(self) -> Iterator[tuple[Offset, Content]]:
        """The records in any file with batches below the folder, whatever its name."""
        for path in self.directory.rglob("*"):
            if path.is_file() and ".log" in path.name:
                yield from contents_in(path.read_bytes())


def contents_in(data: bytes) -> Iterator[tuple[Offset, Content]]:
    for position, header in iterate_batches(data):
        for record in read_records(data, position, header):
            yield record.offset, Content(record.key, record.value, tuple(record.headers))
