"""What the clean-up of the metadata may do in a broker's remote tier."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from isotherm.errors import RemoteStorageNotReadyError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.tasks.cleanup import TierCleanupTarget
from isotherm.types import TopicIdPartition
from tests.support.tiered_partition import TieredPartition


class Broker:
    """The target of a broker, which leads the partition at first."""

    def __init__(self, tiered: TieredPartition) -> None:
        self.leads = True
        self.begun: list[TopicIdPartition] = []
        self.deletions: list[Future[None]] = []
        self.failures: list[OSError] = []
        self.target = TierCleanupTarget(
            tiered.tier,
            tiered.metadata,
            self._begin,
            leads=lambda _: self.leads,
            keeps=lambda number: number == 1,
            is_alone=False,
        )

    def _begin(self, partition: TopicIdPartition) -> Future[None]:
        if self.failures:
            raise self.failures.pop()
        self.begun.append(partition)
        self.deletions.append(Future())
        return self.deletions[-1]


@pytest.fixture
def copied(tiered: TieredPartition) -> TieredPartition:
    for number in range(12):
        tiered.append(b"%d" % number)
    tiered.copy_task.run()
    return tiered


@pytest.fixture
def broker(copied: TieredPartition) -> Broker:
    return Broker(copied)


def in_any_case(_: RemoteLogSegmentMetadata, __: Sequence[RemoteLogSegmentMetadata]) -> bool:
    return True


def test_leader_deletes_a_segment_that_is_still_due(
    broker: Broker, copied: TieredPartition
) -> None:
    segments = copied.segments()
    asked: list[object] = []

    def is_due(current: RemoteLogSegmentMetadata, live: Sequence[RemoteLogSegmentMetadata]) -> bool:
        asked.append((current, list(live)))
        return True

    assert broker.target.delete_segment(segments[0], is_due)
    assert asked == [(segments[0], segments)]
    assert copied.segments() == segments[1:]


def test_segment_that_is_not_due_any_more_stays(broker: Broker, copied: TieredPartition) -> None:
    segments, objects = copied.segments(), copied.object_names()
    assert not broker.target.delete_segment(segments[0], lambda current, live: False)
    assert (copied.segments(), copied.object_names()) == (segments, objects)


def test_broker_that_leads_no_more_deletes_nothing(broker: Broker, copied: TieredPartition) -> None:
    segments, objects = copied.segments(), copied.object_names()
    broker.leads = False
    assert not broker.target.delete_segment(segments[0], in_any_case)
    assert (copied.segments(), copied.object_names()) == (segments, objects)


def test_segment_that_is_being_copied_stays(broker: Broker, copied: TieredPartition) -> None:
    first, *others = copied.segments()
    copied.tier.copies.begin(first.segment_id)
    assert not broker.target.delete_segment(first, in_any_case)
    assert copied.segments() == [first, *others]
    copied.tier.copies.end(first.segment_id)
    assert broker.target.delete_segment(first, in_any_case)
    assert copied.segments() == others


def test_only_a_leader_that_has_read_the_metadata_may_delete(
    broker: Broker, copied: TieredPartition
) -> None:
    assert broker.target.can_delete(copied.partition)
    broker.leads = False
    assert not broker.target.can_delete(copied.partition)
    copied.metadata.on_stop_partitions([copied.partition])
    assert not broker.target.can_delete(copied.partition)
    broker.leads = True
    assert not broker.target.can_delete(copied.partition)


def test_deletion_of_a_partition_begins_once_while_it_runs(
    broker: Broker, copied: TieredPartition
) -> None:
    other = copied.partition._replace(partition=1)
    for partition in (copied.partition, copied.partition, other, copied.partition):
        broker.target.delete_partition(partition)
    assert broker.begun == [copied.partition, other]


def test_deletion_that_has_ended_begins_again(broker: Broker, copied: TieredPartition) -> None:
    """Metadata that comes after a deletion is deleted too."""
    broker.target.delete_partition(copied.partition)
    broker.deletions[0].set_exception(RemoteStorageNotReadyError("the broker stops"))
    broker.target.delete_partition(copied.partition)
    broker.target.delete_partition(copied.partition)
    assert broker.begun == [copied.partition] * 2


def test_deletion_that_could_not_be_begun_is_begun_by_the_next_run(
    broker: Broker, copied: TieredPartition
) -> None:
    broker.failures.append(OSError("no space left on device"))
    with pytest.raises(OSError, match="no space"):
        broker.target.delete_partition(copied.partition)
    broker.target.delete_partition(copied.partition)
    assert broker.begun == [copied.partition]


def test_target_tells_what_the_broker_is(broker: Broker, copied: TieredPartition) -> None:
    assert broker.target.exists(copied.partition)
    copied.topic_exists = False
    assert not broker.target.exists(copied.partition)
    assert [broker.target.is_keeper(number) for number in (0, 1)] == [False, True]
    assert not broker.target.is_only_writer()
    first = copied.segments()[0].segment_id
    with broker.target.watch_copies() as copying:
        copied.tier.copies.begin(first)
        copied.tier.copies.end(first)
        assert copying == {first}
