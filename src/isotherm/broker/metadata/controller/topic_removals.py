"""Finds topics that were removed before a start, and whose data may still exist.

Their logs may still be on disk. Remote segments may remain only of the topics that the last records
removed: the control thread records a removal, and right after it notes the remote deletion in
another file. So after a crash between the two, the removal is the last record of the log
(docs/decisions/0035).
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

# Records that a start writes. They may follow the removal, if a crash cut that start off too.
_OF_A_START = (RegisterBrokerRecord, PartitionChangeRecord, FeatureLevelRecord)


class TopicRemovals:
    """`note` gets each record of the log, in order, before it is replayed."""

    def __init__(self) -> None:
        self.partitions: tuple[TopicIdPartition, ...] = ()
        self.topic_ids: set[uuid.UUID] = set()
        """The ids of all topics that were ever removed."""

    def note(self, record: MetadataRecord, before: MetadataDelta) -> None:
        if isinstance(record, RemoveTopicRecord):
            if record.topic_id is not None:
                self.topic_ids.add(record.topic_id)
                self.partitions += before.tiered_partitions(record.topic_id)
        elif self.partitions and not isinstance(record, _OF_A_START):
            self.partitions = ()
