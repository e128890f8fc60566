"""The cluster of a read replica: partitions whose history lies in the bucket, and nothing else.

    bucket_cluster.py     the manifests say what there is; groups are kept here
    upstream_cluster.py   a running cluster says it; groups stay there

The replica leads each partition with a history. The partition's log is empty and begins where the
history ends, like that of a follower that has joined (KIP-405). So the fetch path reads every
offset from the remote tier, and knows the end. The logs lie in a scratch folder and are made anew
at each start (docs/decisions/0272).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from isotherm.broker.apis.read_only import READING, read_only_apis
from isotherm.broker.cluster.replica_acls import Acls, read_acl_file
from isotherm.broker.cluster.replica_settings import ReplicaSettings
from isotherm.broker.coordinators.coordinator_elections import (
    TransactionPeers,
    no_transaction_peers,
)
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.scram_changes import Refused, ScramUpsertion
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import (
    BrokerImage,
    ConfigResource,
    MetadataImage,
    TopicImage,
)
from isotherm.broker.metadata.internal_topics import InternalTopic, TopicCreator
from isotherm.broker.metadata.metadata_records import TOPIC_RESOURCE
from isotherm.broker.metadata.quorum.quorum_metadata import QuorumMetadata
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import NoFetchers
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.replica_fetcher_manager import LeaderToFetch
from isotherm.broker.peers.tail_reader import TailReader
from isotherm.broker.server.requests.context import TopicCreationRequests
from isotherm.broker.server.requests.guarding import guarded_apis
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_peers import SharePeers, no_share_peers
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.remote_tier import OwnMetadata
from isotherm.broker.tier.tiered_history import TieredHistory
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import PolicyViolationError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import BrokerId, ProducerId, TopicIdPartition

_logger = logging.getLogger(__name__)

STATE_AGE = "isotherm_replica_state_age_seconds"
PARTITIONS = "isotherm_replica_partitions"
HISTORY_READ_THREADS = 16
"""Histories that are read at once: each is two small objects, so reading is mostly waiting."""
# Settings of each topic with a history. The replica deletes nothing of it.
HISTORY_SETTINGS: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


class ReplicaCluster:
    """Implements ClusterSide. A subclass has the metadata and, in `open_tier`, the tier."""

    pass_interval_s: float
    """Between the end of a look at what there is and the next one."""

    embedded_controller = None
    inter_broker_listener = ""
    partitions_removed_last: Sequence[TopicIdPartition] = ()
    cluster_id: str
    storage: RemoteStorageManager
    tier_metadata: RemoteLogMetadataManager

    def __init__(
        self, config: BrokerConfig, surroundings: Surroundings, settings: ReplicaSettings
    ) -> None:
        """Opens nothing yet. `config.log_dirs` is an empty scratch folder. Raises ConfigError."""
        settings.check(config)
        self._config = config
        self._settings = settings
        self._surroundings = surroundings
        self._endpoints: tuple[Endpoint, ...] = ()
        self._task: PeriodicTask | None = None
        self._looked_s = 0.0
        self._given_up = threading.Event()
        # What there is, as `look` has seen it, and what the logs have begun with.
        self._histories: dict[TopicIdPartition, TieredHistory] = {}
        self._begun: dict[TopicIdPartition, TieredHistory] = {}
        self.metadata = QuorumMetadata(config, MetadataImage())
        self.log_manager = LogManager(
            config.log_dirs,
            config=config,
            topic_config_for=self.metadata.topic_config,
            clock=surroundings.clock,
            fs=surroundings.fs,
            rng=surroundings.rng,
        )

    def open(self) -> None:
        """Open the tier and the scratch folder. Raises IsothermError with the cause."""
        self.log_manager.startup()
        try:
            if self._settings.acl_file is not None:
                self.publish(acls=read_acl_file(self._settings.acl_file))
            self.open_tier()
        except BaseException:
            self.close()
            raise

    def open_tier(self) -> None:
        """Set `cluster_id`, `storage` and `tier_metadata`, and look for the first time."""
        raise NotImplementedError

    def begin_histories(
        self, replica_manager: ReplicaManager, control_executor: ThreadPoolExecutor
    ) -> None:
        """Give each partition its history. What else is in the tier, and later changes of it, are
        followed from here on: each `pass_interval_s` a thread looks, and the control thread applies
        what it has seen."""
        self._apply(replica_manager)
        if not self.looks_again:
            _logger.info("history is served partitions=%d", len(self._begun))
        metrics, clock = self._surroundings.metrics, self._surroundings.clock
        metrics.computed_gauge(
            STATE_AGE,
            "Seconds since the replica read what it serves: the state of the cluster and its"
            " metadata topic, or a listing of the bucket.",
            lambda: clock.monotonic_s() - self._looked_s,
        )
        metrics.computed_gauge(
            PARTITIONS, "Partitions that the replica serves.", lambda: float(len(self._begun))
        )

        def go_on() -> None:
            while True:
                self.look()
                control_executor.submit(self._apply, replica_manager).result()
                if not self.looks_again:
                    return

        self._task = PeriodicTask(
            "isotherm-replica",
            go_on,
            clock,
            initial_delay_s=0.0 if self.looks_again else self.pass_interval_s,
            interval_s=self.pass_interval_s,
        )
        self._task.start()

    @property
    def looks_again(self) -> bool:
        """Whether the next look comes at once."""
        return False

    def look(self) -> None:
        """Read what there is now into `_histories`. Raises IsothermError; what was known then
        stays."""
        raise NotImplementedError

    def publish_led(self, led: Mapping[TopicIdPartition, object]) -> None:
        """Publish an image in which this replica has the partitions `led`. Control thread only,
        once requests are served."""
        raise NotImplementedError

    def _apply(self, replica_manager: ReplicaManager) -> None:
        # First what was led before under the same topic id. A new topic of an old name needs the
        # log of the old one gone.
        self.publish_led({e: h for e, h in self._histories.items() if e in self._begun})
        self._begun = {e: h for e, h in self._begun.items() if e in self._histories}
        for place in self._histories.keys() - self._begun.keys():
            # The log has its history before a request can find it: an empty log would answer that
            # each offset is out of range.
            history = self._histories[place]
            log = self.log_manager.create_log(
                place.topic_partition, place.topic_id, self.metadata.topic_config(place.topic)
            )
            begin_log(log, history)
            self._begun[place] = history
        self.publish_led(self._histories)
        for place, history in self._histories.items():
            partition = replica_manager.find_partition(place.topic, None, place.partition)
            before = self._begun[place]
            partition.goes_on_at = self.goes_on_at(place)
            is_raised = history.log_start_offset > before.log_start_offset
            if is_raised and history == before._replace(log_start_offset=history.log_start_offset):
                partition.log.maybe_increment_log_start_offset(history.log_start_offset)
            elif history != before:
                # Also if it begins earlier: a first segment may come later, or be repaired.
                begin_history(partition, history)
            self._begun[place] = history

    def tail_reader(self) -> TailReader | None:
        """What reads behind the tier for clients; None if nothing does. The caller closes it."""
        return None

    def give_up(self) -> None:
        """Make an `open` that waits raise RemoteStorageNotReadyError soon. Any thread."""
        self._given_up.set()

    def register(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)
        self.publish_led({})

    def publish(
        self,
        *,
        topics: Iterable[TopicImage] | None = None,
        configs: Mapping[str, Mapping[str, str]] | None = None,
        brokers: Mapping[BrokerId, BrokerImage] | None = None,
        acls: Acls | None = None,
    ) -> None:
        """Publish an image in which what is given replaces what was. `configs` are the settings by
        topic. Control thread only, once requests are served."""
        self.metadata.publish(
            next_image(
                self.metadata.image, topics=topics, configs=configs, brokers=brokers, acls=acls
            )
        )

    def _own_broker(self) -> BrokerImage:
        return BrokerImage(
            self._config.node_id,
            0,
            None,
            self._config.broker_rack,
            fenced=False,
            endpoints=self._endpoints,
        )

    def view(self) -> ClusterView:
        return _ReplicaView(self)

    @property
    def node_id(self) -> BrokerId:
        return self._config.node_id

    @property
    def clock(self) -> Clock:
        return self._surroundings.clock

    @property
    def passes_tail_on(self) -> bool:
        """See Partition."""
        return False

    def goes_on_at(self, place: TopicIdPartition) -> BrokerId | None:
        """See ClusterView. Any thread."""
        return None

    def owner_in_rack(self, place: TopicIdPartition, rack: str) -> BrokerId | None:
        """See ClusterView. Any thread."""
        return None

    def open_fetchers(self, replica_manager: ReplicaManager) -> NoFetchers:
        return _NoCopies()

    def follow_tier(self, tier: RemoteTierAccess) -> None:
        """Do nothing: no partition is followed on another broker."""

    def own_metadata(
        self, replica_manager: ReplicaManager, control_executor: ThreadPoolExecutor
    ) -> OwnMetadata:
        raise AssertionError("a replica has no metadata topic of its own")

    def topic_creator(self, control_executor: ThreadPoolExecutor) -> TopicCreator:
        async def create(topic: InternalTopic) -> None:
            if topic.name not in self.metadata.image.topics_by_name:
                raise PolicyViolationError(f"a read replica creates no topic topic={topic.name}")

        return create

    def new_producer_id(
        self, control_executor: ThreadPoolExecutor
    ) -> Callable[[], Awaitable[ProducerId]]:
        async def refuse() -> ProducerId:
            raise PolicyViolationError("a read replica gives no producer ids")

        return refuse

    def transaction_peers(self, markers: TransactionMarkers) -> TransactionPeers:
        return no_transaction_peers(self.metadata, markers)

    def share_peers(self, shares: ShareCoordinator, replica_manager: ReplicaManager) -> SharePeers:
        return no_share_peers(self.metadata, shares, replica_manager)

    def apis(self, apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
        served = self.answering_apis(read_only_apis(apis))
        # Around what is passed on, too: the cluster would check the replica's rights. What is
        # refused is refused for everyone.
        reading = {key: api for key, api in served.items() if key in READING}
        return {**served, **guarded_apis(reading, authorizer)}

    def answering_apis(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """`apis`, without their checks, in which the cluster answers what only it can."""
        return apis

    def auto_creation(self) -> TopicCreationRequests | None:
        return None

    async def record_credential(
        self, control_executor: ThreadPoolExecutor, upsertion: ScramUpsertion
    ) -> Refused | None:
        raise PolicyViolationError("a read replica keeps no credentials")

    async def begin(self, control_executor: ThreadPoolExecutor) -> None:
        """Do nothing: the replica is a member of no cluster."""

    async def leave(self) -> None:
        """Do nothing: the replica is a member of no cluster."""

    def end_changes(self) -> None:
        """After the return no listener of the metadata is called."""
        if self._task is not None:
            self._task.stop()

    def note_log_dir_failure(self, path: Path) -> None:
        """Do nothing: the scratch folder is the only one, and the node fails without it."""

    def close(self) -> None:
        if self._task is not None:
            self._task.stop()
        self.log_manager.shutdown()


def begin_history(partition: Partition, history: TieredHistory) -> None:
    """Let the partition's log begin where `history` ends, and tell waiting requests."""
    partition.lower_epoch_start(history.end_offset)
    begin_log(partition.log, history)
    partition.note_replicated(0)


def begin_log(log: PartitionLog, history: TieredHistory) -> None:
    log.truncate_fully_and_start_at(
        history.end_offset,
        log_start_offset=history.log_start_offset,
        leader_epochs=history.leader_epochs,
        producers=history.producers,
    )
    log.update_highest_offset_in_remote_storage(history.end_offset - 1)


def next_image(
    image: MetadataImage,
    *,
    topics: Iterable[TopicImage] | None = None,
    configs: Mapping[str, Mapping[str, str]] | None = None,
    brokers: Mapping[BrokerId, BrokerImage] | None = None,
    acls: Acls | None = None,
) -> MetadataImage:
    """The image after `image`. Topics that are equal to those before stay the same objects."""
    image = replace(image, end_offset=image.end_offset + 1)
    if brokers is not None and brokers != image.brokers:
        image = replace(image, brokers=dict(brokers))
    if acls is not None and acls != image.acls:
        image = replace(image, acls=acls)
    if topics is not None:
        before = image.topics_by_id
        # Equal topics stay the same objects, and an equal map the same map: the difference of two
        # images is then found without a look at each partition.
        kept = {e.topic_id: e if (old := before.get(e.topic_id)) != e else old for e in topics}
        if len(kept) != len(before) or any(before.get(k) is not e for k, e in kept.items()):
            by_name = {topic.name: topic for topic in kept.values()}
            image = replace(image, topics_by_id=kept, topics_by_name=by_name)
    if configs is not None:
        texts = {
            ConfigResource(TOPIC_RESOURCE, name): topic_texts
            for name, topic_texts in configs.items()
        }
        if texts != image.configs:
            image = replace(image, configs=texts)
    return image


class _NoCopies(NoFetchers):
    """A partition of another replica is not copied from it: both read the bucket."""

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        return


class _ReplicaView(ClusterView):
    def __init__(self, cluster: ReplicaCluster) -> None:
        super().__init__(cluster.node_id, cluster.clock)
        self._cluster = cluster
        self.passes_tail_on = cluster.passes_tail_on

    def find_broker(self, broker_id: BrokerId) -> BrokerImage | None:
        return self._cluster.metadata.image.brokers.get(broker_id)

    def find_topic(self, topic: str | uuid.UUID) -> TopicImage | None:
        return self._cluster.metadata.image.topic(topic)

    def goes_on_at(self, place: TopicIdPartition) -> BrokerId | None:
        return self._cluster.goes_on_at(place)

    def owner_in_rack(self, place: TopicIdPartition, rack: str) -> BrokerId | None:
        return self._cluster.owner_in_rack(place, rack)
