"""The partitions whose state a share group has at the share coordinator, or is getting. Pure.

    missing ──> initializing ──> initialized ──> deleting ──> gone

Source: Kafka ShareGroupStatePartitionMetadataInfo, GroupMetadataManager.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.share_group_records import state_record
from isotherm.broker.coordinators.groups.share_member import TopicPartitions
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.types import TimestampMs

# Kafka writes it for a topic that it does not have.
UNKNOWN_TOPIC = "<UNKNOWN>"

Topics: TypeAlias = Mapping[uuid.UUID, TopicPartitions]


class StatePartitions(NamedTuple):
    """The partitions whose state is being initialized, or is, and the topics whose state is being
    deleted. `since_ms` is the time of the record that had them."""

    initializing: Topics
    initialized: Topics
    deleting: frozenset[uuid.UUID]
    since_ms: TimestampMs

    @classmethod
    def of(cls, value: Any, now_ms: TimestampMs) -> StatePartitions:
        """What a record has."""
        initializing, initialized = (
            {
                topic.topic_id: TopicPartitions(topic.topic_name, frozenset(topic.partitions))
                for topic in topics
            }
            for topics in (value.initializing_topics, value.initialized_topics)
        )
        deleting = frozenset(topic.topic_id for topic in value.deleting_topics)
        return cls(initializing, initialized, deleting, now_ms)

    def record(self, group_id: str, catalog: TopicCatalog) -> GroupRecord:
        names = {topic_id: _name_of(topic_id, catalog) for topic_id in self.deleting}
        return state_record(group_id, self.initializing, self.initialized, names)

    def missing(self, names: Iterable[str], catalog: TopicCatalog, retry_ms: TimestampMs) -> Topics:
        """The partitions of these topics whose state does not exist, nor is being initialized. An
        initialization that has begun by `retry_ms` is begun again."""
        is_late = self.since_ms <= retry_ms
        begun = self.initialized if is_late else _combined(self.initialized, self.initializing)
        missing = {}
        for name in names:
            topic = catalog.find(name)
            if topic is None:
                continue
            done = begun[topic.topic_id].partitions if topic.topic_id in begun else frozenset()
            if len(done) < len(topic.partitions):
                partitions = frozenset(range(len(topic.partitions))) - done
                missing[topic.topic_id] = TopicPartitions(topic.name, partitions)
        return missing

    def with_initializing(self, topics: Topics) -> StatePartitions:
        initializing = _combined(self.initializing, topics)
        deleting = self.deleting - initializing.keys()
        return self._replace(initializing=initializing, deleting=deleting)

    def with_initialized(
        self, partitions: Mapping[uuid.UUID, Collection[int]], catalog: TopicCatalog
    ) -> StatePartitions:
        topics = {
            topic_id: TopicPartitions(_name_of(topic_id, catalog), frozenset(of_topic))
            for topic_id, of_topic in partitions.items()
        }
        initialized = _combined(self.initialized, topics)
        return self.with_failed(partitions)._replace(initialized=initialized)

    def with_failed(self, partitions: Mapping[uuid.UUID, Collection[int]]) -> StatePartitions:
        """Nothing of these partitions is being initialized any more."""
        left = {
            topic_id: TopicPartitions(name, of_topic.difference(partitions.get(topic_id, ())))
            for topic_id, (name, of_topic) in self.initializing.items()
        }
        initializing = {topic_id: topic for topic_id, topic in left.items() if topic.partitions}
        return self._replace(initializing=initializing)

    def with_deleting(self, topic_ids: Collection[uuid.UUID]) -> StatePartitions:
        initialized = _without(self.initialized, topic_ids)
        return self._replace(initialized=initialized, deleting=self.deleting.union(topic_ids))

    def with_deleted(self, topic_ids: Collection[uuid.UUID]) -> StatePartitions:
        return self._replace(deleting=self.deleting.difference(topic_ids))

    def without(self, topic_ids: Collection[uuid.UUID]) -> StatePartitions:
        """Nothing of these topics."""
        return StatePartitions(
            _without(self.initializing, topic_ids),
            _without(self.initialized, topic_ids),
            self.deleting.difference(topic_ids),
            self.since_ms,
        )

    def all_topics(self, catalog: TopicCatalog) -> Topics:
        """The partitions that have a state, or may have one."""
        deleting = {
            topic_id: TopicPartitions(topic.name, frozenset(range(len(topic.partitions))))
            for topic_id in self.deleting
            if (topic := catalog.find_by_id(topic_id)) is not None
        }
        return _combined(_combined(self.initialized, self.initializing), deleting)


NO_STATES = StatePartitions({}, {}, frozenset(), 0)


def _combined(first: Topics, second: Topics) -> dict[uuid.UUID, TopicPartitions]:
    """The partitions of both, with the second's names."""
    combined = dict(first)
    for topic_id, (name, partitions) in second.items():
        if topic_id in first:
            partitions |= first[topic_id].partitions
        combined[topic_id] = TopicPartitions(name, partitions)
    return combined


def _without(topics: Topics, topic_ids: Collection[uuid.UUID]) -> Topics:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in topic_ids}


def _name_of(topic_id: uuid.UUID, catalog: TopicCatalog) -> str:
    topic = catalog.find_by_id(topic_id)
    return UNKNOWN_TOPIC if topic is None else topic.name
