"""The cluster of a read replica without a cluster: the bucket's manifests are the metadata.

A start lists folders alone. The partitions are then read one by one, those first that clients ask
for; what is not read yet has a leader and no history (docs/decisions/0299).

Then the bucket is listed again and again: whatever writes to it may still be there. What is new is
served, and what is gone is no longer offered (docs/decisions/0288).

Groups are kept in the scratch folder: consumers can share partitions and commit, until the replica
stops. See ReplicaCluster.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from isotherm.broker.apis.unread_partitions import UnreadPartitions, awaiting_apis
from isotherm.broker.cluster.first_reading import FirstReading
from isotherm.broker.cluster.replica_cluster import (
    HISTORY_READ_THREADS,
    HISTORY_SETTINGS,
    ReplicaCluster,
)
from isotherm.broker.cluster.replica_settings import ReplicaSettings
from isotherm.broker.coordinators.coordinator_elections import offsets_topic
from isotherm.broker.metadata.image import NO_LEADER, PartitionImage, TopicImage
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.tiered_history import TieredHistory, read_history
from isotherm.config.broker import BrokerConfig
from isotherm.errors import (
    ConfigError,
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from isotherm.remote.metadata.manifest_metadata import (
    PENDING_MANIFESTS_MAX,
    ManifestMetadataManager,
    ManifestReader,
    ReadPace,
    TopicOfId,
)
from isotherm.remote.outages import Outage
from isotherm.remote.storage.inventory import MANIFEST_READ_THREADS
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.types import (
    REMOTE_LOG_METADATA_TOPICS,
    TopicIdPartition,
    random_uuid,
    uuid_to_text,
)

_logger = logging.getLogger(__name__)


class BucketCluster(ReplicaCluster):
    def __init__(
        self, config: BrokerConfig, surroundings: Surroundings, settings: ReplicaSettings
    ) -> None:
        super().__init__(config, surroundings, settings)
        self.pass_interval_s = settings.list_interval_s
        self._metadata = ManifestMetadataManager()
        self.tier_metadata = self._metadata
        self._offsets_topic = self._offsets_topic_image()
        self._reader: ManifestReader
        self._reading: FirstReading | None = None
        self._unread: UnreadPartitions
        # Read, and unread for clients until the history is there.
        self._taken: set[TopicIdPartition] = set()
        self._outage = Outage(
            _logger,
            surroundings.clock,
            failing="histories of the bucket cannot be read",
            working="histories of the bucket are read again",
        )
        self._left_out: set[TopicOfId] = set()
        # Partitions whose segments differ from what their histories were read from.
        self._changed: set[TopicIdPartition] = set()

    def open_tier(self) -> None:
        settings = ObjectStoreSettings.from_config(self._config.remote.rsm_config)
        check_store(settings, writes=False)
        # First: it refuses a folder that does not exist, where the storage manager makes one.
        self._reader = ManifestReader(settings, _is_served)
        self.storage = ObjectStoreRemoteStorageManager(settings)
        self.cluster_id = uuid_to_text(random_uuid(self._surroundings.rng))
        partitions = self._reader.partitions()
        if not (self._settings.allows_empty or self._reader.has_segment()):
            raise ConfigError(
                f"no segment of a topic is in the bucket url={settings.url}"
                f" layout={settings.layout} key.prefix={settings.key_prefix or ''}"
                " hint='check the path, key.prefix and layout, or give --allow-empty'"
            )
        # Only the segments of topics with the same name tell which of them is served.
        names = Counter(name for name, _ in {_topic_of(place) for place in partitions})
        at_once = [place for place in partitions if names[place.topic] > 1]
        pace = ReadPace(PENDING_MANIFESTS_MAX)
        with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests") as pool:
            for place in at_once:
                self._changed |= self._metadata.add(self._reader.read_partition(place, pool, pace))
        unread = [place for place in partitions if names[place.topic] == 1]
        self._reading = FirstReading(self._reader, unread, self._surroundings.clock)
        self._unread = UnreadPartitions(unread, self._reading.ask)
        self._read_histories()
        self._reading.start()

    def answering_apis(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        return awaiting_apis(apis, self._unread)

    @property
    def looks_again(self) -> bool:
        assert self._reading is not None, "the tier is open"
        return bool(self._unread) and not self._reading.is_stopped

    def look(self) -> None:
        if self._unread:
            self._look_first()
        else:
            self._list_again()
            self._read_histories()

    def _look_first(self) -> None:
        assert self._reading is not None, "the tier is open"
        for place, segments in self._reading.take():
            self._changed |= self._metadata.add(segments)
            self._taken.add(place)
        try:
            self._read_histories()
        except RemoteStorageError as error:
            # What was taken stays unread, and is tried again.
            self._outage.failed(error)
            self._reading.pause()
        else:
            self._outage.worked()

    def _list_again(self) -> None:
        content = self._reader.read(self._metadata.segments)
        if self._metadata.segments and not (content.segments or content.unchanged):
            # A folder that is not mounted lists as an empty one.
            raise RemoteStorageError(
                "the bucket lists no segment any more, and those of the last listing are served"
                f" segments={len(self._metadata.segments)}"
            )
        self._changed |= self._metadata.take_over(content)

    def _read_histories(self) -> None:
        topics = self._metadata.newest_topics()
        self._tell_left_out(topics)
        # Of a topic that still has segments no partition goes, even without any: its log is empty.
        self._histories = {e: h for e, h in self._histories.items() if _topic_of(e) in topics}
        served = [place for place in self._changed if _topic_of(place) in topics]
        with ThreadPoolExecutor(HISTORY_READ_THREADS, "isotherm-histories") as pool:
            for place, history in zip(served, pool.map(self._read_history, served), strict=True):
                if history is not None:
                    self._histories[place] = history
        # Those of topics that are left out are read if they become the newest ones.
        self._changed.difference_update(served)
        self._looked_s = self._surroundings.clock.monotonic_s()

    def _apply(self, replica_manager: ReplicaManager) -> None:
        super()._apply(replica_manager)
        for place in self._taken - self._changed:
            self._unread.note_read(place)
        if self._taken and not self._unread:
            _logger.info("all of the bucket is read partitions=%d", len(self._begun))
        self._taken &= self._changed

    def end_changes(self) -> None:
        self._end_reading()
        super().end_changes()

    def close(self) -> None:
        self._end_reading()
        super().close()

    def _end_reading(self) -> None:
        # Before the task of `begin_histories`, which may wait for it.
        if self._reading is not None:
            self._reading.stop()

    def _read_history(self, place: TopicIdPartition) -> TieredHistory | None:
        """The history as it is now; None if it stays as it was. Raises RemoteStorageError if the
        store does not answer."""
        before = self._histories.get(place)
        if not self._metadata.is_ready(place):
            # Its last segment was deleted.
            return before and before._replace(log_start_offset=before.end_offset)
        last = self._metadata.last_finished_segment(place)
        assert last is not None, "a partition without segments is not ready"
        try:
            return read_history(place, last, self._metadata, self.storage)
        except (CorruptDataError, RemoteResourceNotFoundError) as error:
            _logger.error(  # noqa: TRY400 - one line: the error names the place
                "new records are not shown, the last segment is damaged partition=%s reason='%s'",
                place,
                error,
            )
            return None

    def _tell_left_out(self, newest: set[TopicOfId]) -> None:
        topics = {_topic_of(place) for place in self._metadata.partitions}
        for topic, topic_id in topics - newest - self._left_out:
            _logger.warning(
                "an older topic of this name is ignored topic=%s topic_id=%s", topic, topic_id
            )
        self._left_out = topics - newest

    def publish_led(self, led: Mapping[TopicIdPartition, object]) -> None:
        own = self._own_broker()
        histories = {place: self._histories[place] for place in led}
        unread = [place for place in self._unread.partitions if place not in histories]
        topics = _topic_images(histories, unread, self._config.node_id)
        offsets = offsets_topic(self._config)
        self.publish(
            topics=[*topics, self._offsets_topic],
            # Before its topic: a log that is made has to know that it is tiered.
            configs={place.topic: HISTORY_SETTINGS for place in (*self._histories, *unread)}
            | {offsets.name: offsets.configs},
            brokers={own.broker_id: own},
        )

    def _offsets_topic_image(self) -> TopicImage:
        topic, own = offsets_topic(self._config), (self._config.node_id,)
        return TopicImage(
            topic.name,
            random_uuid(self._surroundings.rng),
            tuple(PartitionImage(n, own, own, own[0], 0, 0) for n in range(topic.partitions)),
        )


def _topic_of(place: TopicIdPartition) -> TopicOfId:
    return place.topic, place.topic_id


def _is_served(topic: str) -> bool:
    return topic not in REMOTE_LOG_METADATA_TOPICS


def _topic_images(
    histories: Mapping[TopicIdPartition, TieredHistory],
    unread: Iterable[TopicIdPartition],
    node_id: int,
) -> list[TopicImage]:
    """The topics. Partition numbers have no gaps, so a partition without a history between others
    is there without a leader. An unread partition has one, which has no log of it."""
    owned: dict[tuple[str, object], dict[int, TopicIdPartition]] = defaultdict(dict)
    for place in (*unread, *histories):
        owned[place.topic, place.topic_id][place.partition] = place
    images = []
    for places in owned.values():
        any_place = next(iter(places.values()))
        partitions = []
        for number in range(max(places) + 1):
            own = (node_id,)
            if number not in places:
                partitions.append(PartitionImage(number, own, (), NO_LEADER, 0, 0))
            elif places[number] in histories:
                epoch = histories[places[number]].leader_epochs[-1].epoch
                partitions.append(PartitionImage(number, own, own, node_id, epoch, 0))
            else:
                partitions.append(PartitionImage(number, (), (), node_id, 0, 0))
        images.append(TopicImage(any_place.topic, any_place.topic_id, tuple(partitions)))
    return images
