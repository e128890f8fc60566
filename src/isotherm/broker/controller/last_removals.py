"""The topics that were removed last before a start: their remote data may not be deleted yet.

The removal is recorded first; the deletion is remembered in another file, in the same turn of the
control thread. A crash in between leaves the removal as the last thing that happened.
"""

from __future__ import annotations

from isotherm.broker.controller.delta import MetadataDelta
from isotherm.broker.controller.records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
)
from isotherm.types import TopicIdPartition

# What a start writes: it may have been cut off too.
_OF_A_START = (RegisterBrokerRecord, PartitionChangeRecord, FeatureLevelRecord)


class LastRemovals:
    """Told of each record of the log, in order, before it is replayed."""

    def __init__(self) -> None:
        self.partitions: tuple[TopicIdPartition, ...] = ()

    def note(self, record: MetadataRecord, before: MetadataDelta) -> None:
        if isinstance(record, RemoveTopicRecord):
            if record.topic_id is not None:
                self.partitions += before.tiered_partitions(record.topic_id)
        elif self.partitions and not isinstance(record, _OF_A_START):
            self.partitions = ()
