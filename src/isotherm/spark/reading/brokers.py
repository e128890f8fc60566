"""Asks the brokers for topics with their ids, and for the current offsets of partitions.

Only the driver asks, with a few requests per query, through librdkafka's admin client. A partition
ends at its high watermark, as in the Kafka source, or with read_committed at the last stable
offset.

librdkafka cannot ask for the earliest local or the highest tiered offset (KIP-405's ListOffsets
-4 and -5). So the offset where the bucket ends and the tail begins comes from the metadata: it is
the one after the last finished segment. The brokers serve every offset from there on, from either
tier.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from isotherm.client.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.clock import Clock
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.types import (
    REMOTE_LOG_METADATA_TOPICS,
    Offset,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)

# A pattern never matches these, as with Kafka's consumer (exclude.internal.topics).
INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        *REMOTE_LOG_METADATA_TOPICS,
    }
)

_Answer = TypeVar("_Answer")
_UNKNOWN_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_NO_OFFSET = -1
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class RequestSettings:
    timeout_s: float = 60.0
    retries: int = 3
    retry_interval_ms: int = 1000


class KafkaBrokers:
    """The requests of a query's driver, by librdkafka. Each raises RetriableError if the brokers
    do not answer."""

    def __init__(
        self,
        properties: Mapping[str, str],
        clock: Clock,
        settings: RequestSettings,
        *,
        reads_committed: bool = False,
    ) -> None:
        self._isolation = (
            IsolationLevel.READ_COMMITTED if reads_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._clock = clock
        self._settings = settings
        self._properties = {**QUIET_CLIENT, **librdkafka_properties(properties)}
        check_brokers(self._properties)
        try:
            self._admin = AdminClient(self._properties)
        except KafkaException as error:
            raise ConfigError(
                f"kafka properties are refused by the client reason={str(error)!r}"
            ) from error

    def topic_names(self) -> list[str]:
        """All topics except INTERNAL_TOPICS."""
        listed = self._retried(
            "topics", lambda: self._admin.list_topics(timeout=self._settings.timeout_s)
        )
        return sorted(set(listed.topics) - INTERNAL_TOPICS)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic with the cluster's default replication. An existing topic is not
        changed."""
        topic = NewTopic(name, num_partitions=partitions, config=dict(config))

        def create() -> None:
            try:
                self._admin.create_topics([topic])[name].result(self._settings.timeout_s)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._retried("topic creation", create)

    def cluster_id(self) -> str:
        listed = self._retried(
            "cluster id", lambda: self._admin.list_topics(timeout=self._settings.timeout_s)
        )
        return str(listed.cluster_id)

    def partitions(self, topics: Iterable[str]) -> list[TopicIdPartition]:
        """The partitions of `topics`. Raises UnknownTopicOrPartitionError if one is missing."""
        names = sorted(topics)
        if not names:
            return []
        described = self._answers(
            "partitions", lambda: self._admin.describe_topics(TopicCollection(names))
        )
        return [
            TopicIdPartition(_topic_id(topic.topic_id), name, partition.id)
            for name, topic in described.items()
            for partition in topic.partitions
        ]

    def replicas(self, topics: Iterable[str]) -> dict[TopicIdPartition, tuple[int, ...]]:
        """The brokers with a replica of each partition of `topics`."""
        described = self._answers(
            "replicas",
            lambda: self._admin.describe_topics(TopicCollection(sorted(topics))),
        )
        return {
            TopicIdPartition(_topic_id(topic.topic_id), name, partition.id): tuple(
                sorted(replica.id for replica in partition.replicas)
            )
            for name, topic in described.items()
            for partition in topic.partitions
        }

    def cleanup_policies(self, topics: Iterable[str]) -> dict[str, frozenset[str]]:
        """The words of each topic's cleanup.policy."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
        if not resources:
            return {}
        described = self._answers("configs", lambda: self._admin.describe_configs(resources))
        return {
            resource.name: frozenset(configs["cleanup.policy"].value.split(","))
            for resource, configs in described.items()
        }

    def topic_config(self, topic: str) -> dict[str, str]:
        """The configuration of a topic, defaults included. Raises UnknownTopicOrPartitionError."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        answers = self._answers("configuration", lambda: self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in answers[resource].items()}

    def own_topic_config(self, topic: str) -> dict[str, str]:
        """The configuration of a topic without what it takes from defaults."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        answers = self._answers("configuration", lambda: self._admin.describe_configs([resource]))
        entries = answers[resource].items()
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entry.value for name, entry in entries if entry.source == own}

    def committed_offsets(self, group: str, topic: str) -> dict[int, Offset]:
        """The offsets that a group has committed for the partitions of a topic."""
        request = ConsumerGroupTopicPartitions(group)
        answers = self._answers(
            "offsets of a group", lambda: self._admin.list_consumer_group_offsets([request])
        )
        return {
            partition.partition: partition.offset
            for partition in answers[group].topic_partitions
            if partition.topic == topic and partition.offset >= 0
        }

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, Offset]) -> None:
        """Commit offsets for a group without members. Raises PolicyViolationError if the broker
        refuses them."""
        places = [
            ClientTopicPartition(topic, partition, offset) for partition, offset in offsets.items()
        ]
        request = ConsumerGroupTopicPartitions(group, places)
        answers = self._answers(
            "commit", lambda: self._admin.alter_consumer_group_offsets([request])
        )
        for partition in answers[group].topic_partitions:
            if partition.error is not None:
                raise PolicyViolationError(
                    f"offsets are refused group={group} topic={topic}"
                    f" partition={partition.partition}"
                    f" reason={partition.error.str()!r} hint='stop the group and try again'"
                )

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetBounds]:
        """The log start and end of each partition, over both tiers."""
        starts = self._offsets(dict.fromkeys(partitions, _EARLIEST))
        ends = self._offsets(dict.fromkeys(starts, _LATEST))
        return {partition: OffsetBounds(starts[partition], ends[partition]) for partition in starts}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, TimestampMs]
    ) -> dict[TopicPartition, Offset | None]:
        """The first offset whose record is not older than the time. None if there is no such
        record."""
        specs = {partition: OffsetSpec.for_timestamp(time) for partition, time in times.items()}
        return {
            partition: None if offset == _NO_OFFSET else offset
            for partition, offset in self._offsets(specs).items()
        }

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, Offset]:
        if not specs:
            return {}
        request = {
            ClientTopicPartition(partition.topic, partition.partition): spec
            for partition, spec in specs.items()
        }
        answers = self._answers(
            "offsets",
            lambda: self._admin.list_offsets(request, isolation_level=self._isolation),
        )
        return {TopicPartition(tp.topic, tp.partition): a.offset for tp, a in answers.items()}

    def _answers(self, what: str, ask: Callable[[], dict[Any, Future[Any]]]) -> dict[Any, Any]:
        def wait() -> dict[Any, Any]:
            return {
                subject: future.result(self._settings.timeout_s)
                for subject, future in ask().items()
            }

        return self._retried(what, wait)

    def _retried(self, what: str, ask: Callable[[], _Answer]) -> _Answer:
        # `Clock` has no sleep: waiting for an event that never comes is one.
        never = threading.Event()
        for attempt in range(self._settings.retries + 1):
            try:
                return ask()
            except TimeoutError as error:
                failure: Exception = error
            except KafkaException as error:
                if error.args[0].code() in _UNKNOWN_TOPIC:
                    raise UnknownTopicOrPartitionError(
                        f"topic or partition does not exist reason={error.args[0].str()!r}"
                    ) from error
                failure = error
            # This fails at once and names the address if no broker can be reached. Retries then do
            # not add up to minutes.
            check_brokers(self._properties)
            if attempt < self._settings.retries:
                self._clock.wait(never, self._settings.retry_interval_ms / 1000)
        raise self._no_answer(what, failure) from failure

    def _no_answer(self, what: str, failure: Exception) -> RetriableError:
        reason = str(failure) or f"no answer in {self._settings.timeout_s:g} s"
        return RequestTimedOutError(
            f"brokers do not answer request={what} reason={reason!r}"
            f" bootstrap.servers={self._properties.get('bootstrap.servers')}"
        )


def _topic_id(client_uuid: Any) -> uuid.UUID:
    """librdkafka gives the halves as signed 64-bit numbers."""
    halves = (
        client_uuid.get_most_significant_bits(),
        client_uuid.get_least_significant_bits(),
    )
    return uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in halves))
