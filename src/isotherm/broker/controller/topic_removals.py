"""The topics that were removed before a start: the logs, and of those removed last the remote data,
may not be deleted yet.

The removal is recorded first; the deletion is remembered in another file, in the same turn of the
control thread. A crash in between leaves the removal as the last thing that happened.
"""

from __future__ import annotations

import uuid

from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.metadata_records import (
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
)
from isotherm.types import TopicIdPartition

# What a start writes: it may have been cut off too.
_OF_A_START = (RegisterBrokerRecord, PartitionChangeRecord, FeatureLevelRecord)


class TopicRemovals:
    """Gets each record of the log, in order, before it is replayed."""

    def __init__(self) -> None:
        self.partitions: tuple[TopicIdPartition, ...] = ()
        self.topic_ids: set[uuid.UUID] = set()
        """Of every topic that was ever removed."""

    def note(self, record: MetadataRecord, before: MetadataDelta) -> None:
        if isinstance(record, RemoveTopicRecord):
            if record.topic_id is not None:
                self.topic_ids.add(record.topic_id)
                self.partitions += before.tiered_partitions(record.topic_id)
        elif self.partitions and not isinstance(record, _OF_A_START):
            self.partitions = ()
