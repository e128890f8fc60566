"""The embedded controller: appends each metadata change to `__cluster_metadata-0` and folds it into
the image.

Invariants
- A change is one record batch, so a crash leaves all of it or nothing. It is on disk (fsync) before
  the image shows it, a listener is called or the client is answered.
- Every batch is folded before it is appended, so records that cannot be replayed are never written.
- The image is `fold(log)`. A start replays the log and arrives at the same image.

Methods that write run on one thread, the control thread; any thread may read `image` and
`topic_config`. A LogDirFailedError of the log leaves the image as it was. After a restart the
change may or may not be there, as for a client that gets no answer.

Source: Kafka QuorumController, with a quorum of one that is always leader. There are no snapshots
of the metadata log: it grows by one record per change, and by one per partition at each start.
"""

from __future__ import annotations

import itertools
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

from isotherm.broker.metadata.access.acl_changes import (
    AclBinding,
    AclFilter,
    plan_creations,
    plan_removals,
)
from isotherm.broker.metadata.access.scram_changes import (
    Refused,
    ScramDeletion,
    ScramUpsertion,
    plan_credentials,
)
from isotherm.broker.metadata.client_quotas import (
    QuotaChange,
    plan_quota_changes,
    quota_entity,
)
from isotherm.broker.metadata.cluster_metadata import ALL_BROKERS, ClusterMetadata, MetadataChange
from isotherm.broker.metadata.controller.cluster_metadata_log import MetadataLog
from isotherm.broker.metadata.controller.config_changes import (
    ConfigChange,
    broker_list_in_effect,
    changed_resource,
    changed_texts,
    check_are_dynamic,
    check_remote_storage_change,
    topic_list_in_effect,
)
from isotherm.broker.metadata.controller.eligible_replicas import (
    check_min_insync_change,
    eligible_replicas_records,
)
from isotherm.broker.metadata.controller.partition_growth import NewPartitions, plan_growth
from isotherm.broker.metadata.controller.registration_record import registration_record
from isotherm.broker.metadata.controller.topic_removals import TopicRemovals
from isotherm.broker.metadata.controller.topic_rules import (
    PARTITIONS_PER_REQUEST_MAX,
    CreatedTopic,
    DeletedTopic,
    NewTopic,
    check_partition_count,
    check_request_size,
    collision_key,
    config_records,
    deletable_topic,
    no_charge,
    plan_topic,
    topic_config,
)
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.features import (
    FeatureUpdate,
    new_cluster_features,
    plan_feature_updates,
)
from isotherm.broker.metadata.image import (
    ConfigResource,
    MetadataImage,
)
from isotherm.broker.metadata.metadata_records import (
    BROKER_RESOURCE,
    METADATA_VERSION_FEATURE,
    TOPIC_RESOURCE,
    AccessControlEntryRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
)
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.dynamic import (
    check_connection_limits,
    check_for_all,
    check_thread_pools,
)
from isotherm.config.listener_tls import check_key_material
from isotherm.config.security import split_key_material
from isotherm.config.server_properties import warn_of_inert_keys
from isotherm.errors import (
    ConfigError,
    InvalidRequestError,
    PolicyViolationError,
    RejectedError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.partition_log import PartitionLog
from isotherm.types import ProducerId, random_uuid

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000  # Kafka: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
RECORDS_PER_BATCH_MAX = 10_000  # Kafka: QuorumController.MAX_RECORDS_PER_BATCH


class Controller(ClusterMetadata):
    def __init__(
        self,
        log: PartitionLog,
        *,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        first_records: Callable[[], Sequence[MetadataRecord]] = tuple,
        directory_id: uuid.UUID | None = None,
    ) -> None:
        """Replay `log`. Raises CorruptMetadataError for a record that cannot be understood.

        `directory_id` is that of the log directory that has `log`; None if it has none.

        `first_records` is called at the cluster's first start only. It returns the records that the
        metadata gets besides the features.
        """
        self._log = MetadataLog(log, clock)
        self._rng = rng
        self.directory_id = directory_id
        self._first_records = first_records
        self._producer_ids = iter(range(0))
        delta = MetadataDelta(MetadataImage())
        removals = TopicRemovals()
        for record in self._log.replay():
            # Before the record is replayed: the settings of a removed topic are
            # needed, and gone afterwards.
            removals.note(record, delta)
            delta.replay(record)
        self.partitions_removed_last = removals.partitions
        self.topics_removed = frozenset(removals.topic_ids)
        super().__init__(config, delta.apply(self._log.end_offset))

    @property
    def epoch(self) -> int:
        """The number of starts of this cluster's controller."""
        return self._log.epoch

    def register_broker(self, endpoints: Sequence[Endpoint]) -> None:
        """Register a new incarnation of this broker. Called once per start, before the partitions
        take roles.

        Afterwards the broker leads every partition, each in a leader epoch one higher than before.
        Raises ConfigError if the log belongs to a broker with another node.id.
        """
        strangers = set(self._image.brokers) - {self._config.node_id}
        if strangers:
            raise ConfigError(
                f"the data belongs to a broker with another node.id node.id={self._config.node_id}"
                f" found={sorted(strangers)}"
            )
        records: list[MetadataRecord] = []
        is_known = METADATA_VERSION_FEATURE in self._image.features
        if not is_known:
            initial = self._config.remote.remote_log_metadata_compaction_initial_level
            features = new_cluster_features(initial)
            records += [*features, *self._records_for_elr(features), *self._first_records()]
        # As in Kafka, the broker epoch is an offset of the metadata log, so each registration has a
        # higher one.
        records.append(
            registration_record(
                self._config, endpoints, random_uuid(self._rng), broker_epoch=self._log.end_offset
            )
        )
        records += [
            PartitionChangeRecord(
                partition_id=partition.partition,
                topic_id=topic.topic_id,
                leader=self._config.node_id,
            )
            for topic in self._image.topics_by_name.values()
            for partition in topic.partitions
        ]
        # Very many partitions need several batches, which are not atomic together. That is
        # harmless: an epoch that was raised and not used is raised again by the next start.
        for start in range(0, len(records), RECORDS_PER_BATCH_MAX):
            self._commit(records[start : start + RECORDS_PER_BATCH_MAX])
        if not is_known:
            self._take_broker_texts()

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        charge: Callable[[int], None] = no_charge,
    ) -> list[CreatedTopic]:
        """Create the legal topics in one batch; returns an answer for each topic, in order.

        `charge` is called with each topic's partition count before; its error refuses the topic.
        Raises PolicyViolationError if the topics together have too many partitions.
        """
        check_request_size(topics, self._config)
        counts = Counter(topic.name for topic in topics)
        taken = {collision_key(name): name for name in self._image.topics_by_name}
        partition_count = self._partition_count()
        results = []
        for topic in topics:
            try:
                if counts[topic.name] > 1:
                    raise InvalidRequestError(f"topic is named twice topic={topic.name}")
                plan = plan_topic(
                    topic,
                    random_uuid(self._rng),
                    taken=taken,
                    brokers=self._image.brokers,
                    broker=self._config,
                )
                added = len(plan.replicas)
                check_partition_count(topic.name, partition_count + added, self._config)
                # Last, so that a topic that is refused for another reason uses none of the quota.
                charge(added)
            except RejectedError as error:
                results.append(CreatedTopic(topic.name, None, error))
            else:
                partition_count += added
                taken[collision_key(topic.name)] = topic.name
                results.append(CreatedTopic(topic.name, plan, None))
        plans = [result.plan for result in results if result.plan is not None]
        if plans and not validate_only:
            self._commit(list(itertools.chain.from_iterable(plan.records for plan in plans)))
            created = tuple(self._image.topics_by_id[plan.topic_id] for plan in plans)
            logger.info("topics created topics=%s", ",".join(topic.name for topic in created))
            self._notify_listeners(MetadataChange(self._image, created=created))
        return results

    def _partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self._image.topics_by_name.values())

    def delete_topics(
        self,
        names_or_ids: Sequence[str | uuid.UUID],
        *,
        charge: Callable[[int], None] = no_charge,
    ) -> list[DeletedTopic]:
        """Delete the existing topics in one batch; returns an answer for each topic, in order.

        Raises TopicDeletionDisabledError if delete.topic.enable is false.
        """
        if not self._config.delete_topic_enable:
            raise TopicDeletionDisabledError("topics cannot be deleted key=delete.topic.enable")
        resolved = [(name_or_id, self._image.topic(name_or_id)) for name_or_id in names_or_ids]
        counts = Counter(topic.topic_id for _, topic in resolved if topic is not None)
        results = []
        doomed = []
        for name_or_id, topic in resolved:
            try:
                deletable = deletable_topic(name_or_id, topic, counts, self._config)
                charge(len(deletable.partitions))
                doomed.append(deletable)
                results.append(DeletedTopic(doomed[-1].name, doomed[-1].topic_id, None))
            except RejectedError as error:
                name = topic.name if topic else name_or_id if isinstance(name_or_id, str) else None
                topic_id = topic.topic_id if topic else name_or_id
                results.append(
                    DeletedTopic(name, topic_id if isinstance(topic_id, uuid.UUID) else None, error)
                )
        if doomed:
            self._commit([RemoveTopicRecord(topic_id=topic.topic_id) for topic in doomed])
            logger.info("topics deleted topics=%s", ",".join(topic.name for topic in doomed))
            self._notify_listeners(MetadataChange(self._image, deleted=tuple(doomed)))
        return results

    def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        charge: Callable[[int], None] = no_charge,
    ) -> list[RejectedError | None]:
        """Add partitions to topics, in one batch; returns None or the error of each topic, in
        order.
        """
        counts = Counter(growth.topic for growth in topics)
        partition_count = self._partition_count()
        results: list[RejectedError | None] = []
        records: list[MetadataRecord] = []
        grown = []
        for growth in topics:
            try:
                if counts[growth.topic] > 1:
                    raise InvalidRequestError(f"topic is named twice topic={growth.topic}")
                topic = self._image.topics_by_name.get(growth.topic)
                planned = plan_growth(growth, topic, self._image.brokers)
                if len(records) + len(planned) > PARTITIONS_PER_REQUEST_MAX:
                    raise PolicyViolationError(
                        f"too many partitions in one request topic={growth.topic}"
                        f" count_max={PARTITIONS_PER_REQUEST_MAX}"
                    )
                after = partition_count + len(records) + len(planned)
                check_partition_count(growth.topic, after, self._config)
                charge(len(planned))
            except RejectedError as error:
                results.append(error)
            else:
                records += planned
                grown.append(growth.topic)
                results.append(None)
        if grown and not validate_only:
            self._commit(records)
            logger.info("partitions are added topics=%s", ",".join(grown))
            topics_now = tuple(self._image.topics_by_name[name] for name in grown)
            self._notify_listeners(MetadataChange(self._image, grown=topics_now))
        return results

    def alter_topic_config(
        self, topic: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change settings of a topic incrementally (KIP-339), all or none.

        Raises UnknownTopicOrPartitionError, or ConfigError for an illegal result.
        """
        if topic not in self._image.topics_by_name:
            raise UnknownTopicOrPartitionError(f"no such topic topic={topic}")
        current = self.topic_texts(topic)
        defaults = self._config.topic_defaults
        changed = changed_texts(current, changes, lambda name: topic_list_in_effect(name, defaults))
        after = {key: text for key, text in {**current, **changed}.items() if text is not None}
        new_config = topic_config(after, self._config, topic=topic)
        check_remote_storage_change(self.topic_config(topic), new_config, topic=topic)
        effective = {key: text for key, text in changed.items() if current.get(key) != text}
        if effective and not validate_only:
            self._commit(config_records(TOPIC_RESOURCE, topic, effective))
            self._notify_listeners(MetadataChange(self._image, reconfigured=(topic,)))

    def _records_for_elr(self, raised: Sequence[FeatureLevelRecord]) -> list[ConfigRecord]:
        static = self._static_config.topic_defaults.min_insync_replicas
        return eligible_replicas_records(raised, self._image.configs, static)

    def alter_broker_config(
        self, broker: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        """Change the dynamic settings of this broker, or those for ALL_BROKERS; all or none.

        Raises InvalidRequestError, as Kafka does, for another broker, a key that cannot be changed
        while the broker runs, and an illegal value.
        """
        this_broker = str(self._config.node_id)
        if broker not in (ALL_BROKERS, this_broker):
            raise InvalidRequestError(
                f"the request is for another broker requested={broker} node.id={this_broker}"
            )
        check_are_dynamic(changes)
        current = self.broker_texts(broker)
        try:
            changed = changed_texts(
                current, changes, lambda name: broker_list_in_effect(name, self._config)
            )
            after = {key: text for key, text in {**current, **changed}.items() if text is not None}
            texts = {
                broker_name: self.broker_texts(broker_name)
                for broker_name in (ALL_BROKERS, this_broker)
            }
            texts[broker] = after
            new_config = self._effective_config(texts[ALL_BROKERS], texts[this_broker])
            if broker == ALL_BROKERS:
                check_for_all(changed)
            check_connection_limits(changed)
            check_thread_pools(self._config, new_config)
            new_config.check_zeros()
            check_key_material(self._config, new_config)
        except ConfigError as error:
            raise InvalidRequestError(str(error)) from error
        check_min_insync_change(broker, changed, self._image.features)
        effective = {key: text for key, text in changed.items() if current.get(key) != text}
        if effective and not validate_only:
            self._commit(config_records(BROKER_RESOURCE, broker, effective))
            self._config = new_config
            logger.info("broker is reconfigured broker=%s keys=%s", broker, ",".join(effective))
            warn_of_inert_keys(key for key, text in effective.items() if text is not None)
            self._notify_listeners(MetadataChange(self._image, broker_config=new_config))
        elif not validate_only and any(split_key_material(name) for name in changed):
            # The same path again: the files behind it may be new, so listeners read them again.
            self.announce_keys_again()

    def alter_resource_config(
        self,
        resource: ConfigResource,
        changes: Sequence[ConfigChange],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a group or of a client metrics subscription, all or none.

        Raises ConfigError or InvalidRequestError for an illegal result.
        """
        current = self.texts_of(resource)
        effective = changed_resource(resource, current, changes, self._config.groups)
        if effective and not validate_only:
            self._commit(config_records(*resource, effective))

    def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """Set levels of features, all or none. Raises what `plan_feature_updates` raises."""
        records = plan_feature_updates(updates, self._image.features)
        if records and not validate_only:
            settings = self._records_for_elr(records)
            self._commit([*settings, *records])
            logger.info("features are updated features=%s", dict(self._image.features))
            change = MetadataChange(self._image, features_changed=True)
            if settings:
                self._take_broker_texts()
                change = change._replace(broker_config=self._config)
            self._notify_listeners(change)

    def _take_broker_texts(self) -> None:
        """Apply the stored settings of this broker and of all."""
        self._config = self._effective_config(
            self.broker_texts(ALL_BROKERS), self.broker_texts(str(self._config.node_id))
        )

    def alter_client_quotas(
        self,
        parts: Sequence[tuple[str, str | None]],
        changes: Sequence[QuotaChange],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change the quotas of one entity, all or none. Raises InvalidRequestError."""
        entity = quota_entity(parts)
        records = plan_quota_changes(entity, changes, self._image.client_quotas)
        if records and not validate_only:
            self._commit(records)
            self._notify_listeners(MetadataChange(self._image, quotas_changed=True))

    def create_acls(self, bindings: Sequence[AclBinding]) -> list[RejectedError | None]:
        """Create the legal ACLs in one batch; returns None or the error of each, in order."""
        count_max = self._config.cluster_acls_max
        planned = plan_creations(bindings, self._image.acls, self._rng, count_max)
        if planned.records:
            self._commit(planned.records)
            logger.info("ACLs created count=%d", len(planned.records))
        return planned.errors

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[AccessControlEntryRecord]]:
        """Remove the matching ACLs in one batch; returns the matches of each filter, in order."""
        removals = plan_removals(filters, self._image.acls)
        if removals.records:
            self._commit(removals.records)
            logger.info("ACLs deleted count=%d", len(removals.records))
        return removals.matched

    def alter_scram_credentials(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> dict[str, Refused | None]:
        """Change the legal credentials in one batch; returns None or the reason for the refusal,
        by user.
        """
        planned = plan_credentials(deletions, upsertions, self._image.scram_credentials)
        if planned.records:
            self._commit(planned.records)
            logger.info("SCRAM credentials changed count=%d", len(planned.records))
        return planned.results

    def generate_producer_id(self) -> ProducerId:
        """A producer id that is unique in the cluster's history.

        Ids come from blocks that are recorded before use, so only one id in a thousand costs a
        write. A restart leaves the rest of a block unused.
        """
        for producer_id in self._producer_ids:
            return producer_id
        start = self._image.next_producer_id
        end = start + PRODUCER_ID_BLOCK_SIZE
        broker = self._image.brokers[self._config.node_id]
        self._commit(
            [
                ProducerIdsRecord(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    next_producer_id=end,
                )
            ]
        )
        self._producer_ids = iter(range(start, end))
        return next(self._producer_ids)

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        # Folded before the append, so that a record that cannot be replayed is never written.
        delta = MetadataDelta(self._image)
        for record in records:
            delta.replay(record)
        # One assignment: a thread that reads the image meanwhile has it as before
        # or after the whole change.
        self._image = delta.apply(self._log.append(records))
