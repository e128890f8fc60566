"""Compaction of a tiered log against the log cleaner, over random histories. Both leave the same
batches, byte for byte.

tests/oracle/test_cleaner.py compares the cleaner with Kafka's own.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isotherm.record.batch import iterate_batches
from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.compaction.newest_keys import PLACE_BITS, newest_places, relative_offsets
from isotherm.remote.rewriting.segment_rewrite import RewrittenSegment
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.cleaning.transactions import OpenTransactions, open_after
from isotherm.segment.offset_index import read_offset_index
from isotherm.segment.time_index import read_time_index
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.spark.jobs.compact_plan import CompactionPlan, plan_compaction
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.types import ProducerId, TopicIdPartition
from tests.support.cleaning_histories import CleaningHistory
from tests.support.tiered_history import tier_closed_segments

RANDOM = st.randoms(use_true_random=False)
CHECKED = settings(
    max_examples=25,
    suppress_health_check=list(HealthCheck),
    # No shrinking: smaller random numbers do not give a smaller history.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
OWNER = TopicIdPartition(uuid.UUID(int=7), "t", 0)


@given(rng=RANDOM)
@CHECKED
def test_compaction_leaves_the_batches_that_the_log_cleaner_leaves(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = CleaningHistory(Path(folder) / "t-0", rng)
        for round_number in range(3):
            for _ in range(rng.randint(1, 25)):
                history.step()
            # Neither cleans open transactions, and this test compares the whole log.
            history.end_transactions()
            history.log.log.roll()
            history.first_dirty_offset = 0
            tiered = Tiered(history, Path(folder) / f"bucket-{round_number}")
            if not tiered.segments:
                continue
            compacted = tiered.compact()
            history.clean()
            assert kept_batches(compacted) == batches_of_log(history)
            assert aborted_in(compacted) == aborted_of_log(history)
            for each in compacted:
                check_indexes(each, history.config.index_interval_bytes)
        history.close()


class Tiered:
    """The closed segments of a log, copied to a bucket of their own."""

    def __init__(self, history: CleaningHistory, folder: Path) -> None:
        self.history = history
        self.folder = folder
        self.storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=folder.as_uri()))
        self._ids = itertools.count(1)
        self.segments = tier_closed_segments(self.storage, OWNER, history.log.log, self._ids)

    def new_id(self) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(OWNER, uuid.UUID(int=next(self._ids)))

    def plan(self) -> CompactionPlan:
        pieces = {OWNER.topic_partition: lineage_pieces(self.segments)}
        return plan_compaction(self.storage, pieces, in_place=True)

    def compact(self) -> list[RewrittenSegment]:
        """Run the steps of the Spark job without Spark."""
        rules = CompactionRules(
            now_ms=self.history.clock.now_ms(),
            delete_retention_ms=self.history.config.delete_retention_ms,
            index_interval_bytes=self.history.config.index_interval_bytes,
            fetch_bytes=self.history.rng.choice([150, 1000, 1_000_000]),
        )
        plan = self.plan()
        assert plan.cleaned == plan.pieces
        newest: dict[bytes, int] = {}
        open_producers: list[frozenset[ProducerId]] = [frozenset()]
        for piece in plan.pieces:
            transactions = OpenTransactions()
            for table in newest_places(self.storage, piece, rules.fetch_bytes, transactions):
                for key, place in zip(*table.to_pydict().values(), strict=True):
                    newest[key] = max(place, newest.get(key, -1))
            open_producers.append(open_after(open_producers[-1], dict(transactions.items())))
        kept = defaultdict(list)
        for place in newest.values():
            kept[place >> PLACE_BITS].append(place)
        rewritten = []
        for piece in plan.pieces:
            directory = self.folder / str(piece.number)
            directory.mkdir()
            rewritten.append(
                compact_piece(
                    self.storage,
                    piece,
                    relative_offsets(np.array(sorted(kept[piece.number]), dtype=np.int64)),
                    open_producers[piece.number],
                    rules,
                    self.new_id(),
                    directory,
                )
            )
        return rewritten


def kept_batches(rewritten: list[RewrittenSegment]) -> list[bytes]:
    """The batches with records. Without them compaction and cleaner differ: compaction keeps the
    last batch of each segment, and the cleaner knows which producers have continued since."""
    return [batch for each in rewritten for batch in batches_in(each.data.log_path.read_bytes())]


def batches_of_log(history: CleaningHistory) -> list[bytes]:
    log = history.log.log
    return [
        batch
        for segment in log.segments()[:-1]
        for batch in batches_in(segment.log_path.read_bytes())
    ]


def batches_in(data: bytes) -> Iterator[bytes]:
    for position, header in iterate_batches(data):
        if header.records_count:
            yield data[position : position + header.size_in_bytes]


def aborted_in(rewritten: list[RewrittenSegment]) -> list[AbortedTransaction]:
    return [
        entry
        for each in rewritten
        if each.data.transaction_index_path is not None
        for entry in read_transaction_index(
            each.data.transaction_index_path.read_bytes(), each.metadata.start_offset
        )
    ]


def aborted_of_log(history: CleaningHistory) -> list[AbortedTransaction]:
    segments = history.log.log.segments()[:-1]
    return [entry for segment in segments for entry in segment.aborted_transactions()]


def check_indexes(rewritten: RewrittenSegment, interval: int) -> None:
    base = rewritten.metadata.start_offset
    data = rewritten.data.log_path.read_bytes()
    headers = list(iterate_batches(data))
    assert rewritten.metadata.segment_size_in_bytes == len(data) > 0
    positions = {header.last_offset: position for position, header in headers}
    entries = read_offset_index(rewritten.data.offset_index_path.read_bytes(), base)
    assert all(positions[entry.offset] == entry.position for entry in entries)
    if interval == 1:
        assert len(entries) == len(headers) - 1
    times = read_time_index(rewritten.data.time_index_path.read_bytes(), base)
    largest = max(header.max_timestamp for _, header in headers)
    if largest >= 0:
        assert (times[-1].timestamp_ms, rewritten.metadata.max_timestamp_ms) == (largest, largest)
