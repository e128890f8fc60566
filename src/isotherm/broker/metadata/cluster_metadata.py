"""The broker's current view of the cluster's metadata, and the configurations derived from it.

It is fed by the embedded controller (`isotherm.broker.metadata.controller`) or by a KRaft quorum of
other processes (`isotherm.broker.metadata.quorum`). Readers see no difference. Source: Kafka
KRaftMetadataCache, with the listeners as its MetadataPublisher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from isotherm.broker.metadata.image import ConfigResource, MetadataImage, TopicImage
from isotherm.broker.metadata.metadata_records import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from isotherm.config.broker import BrokerConfig
from isotherm.config.dynamic import with_dynamic_texts
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.config.listener_tls import check_key_material
from isotherm.config.reload import ReloadedConfig, reload_config
from isotherm.config.server_properties import warn_of_inert_keys
from isotherm.config.topic import TopicConfig

logger = logging.getLogger(__name__)

ALL_BROKERS = ""  # the name of the resource with the settings of all brokers


class MetadataChange(NamedTuple):
    """A change of the metadata, as listeners receive it: the new image, and its differences from
    the last one.

    `grown` are the topics that have more partitions. `moved` are the topics whose replicas, leaders
    or in-sync replicas differ; only a quorum reports them. `broker_config` is this broker's
    configuration if it has changed.
    """

    image: MetadataImage
    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    grown: tuple[TopicImage, ...] = ()
    moved: tuple[TopicImage, ...] = ()
    reconfigured: tuple[str, ...] = ()
    broker_config: BrokerConfig | None = None
    quotas_changed: bool = False
    features_changed: bool = False
    brokers_changed: bool = False


MetadataListener: TypeAlias = Callable[[MetadataChange], None]


class _CachedTopicConfig(NamedTuple):
    texts: Mapping[str, str]
    defaults: TopicConfig
    config: TopicConfig


class _CachedGroupConfig(NamedTuple):
    texts: Mapping[str, str]
    broker: GroupConfig
    config: GroupLevelConfig


class ClusterMetadata:
    """The image, its listeners and the effective configurations.

    It is changed on the control thread only. `image` and the configurations may be read on any
    thread.
    """

    def __init__(self, config: BrokerConfig, image: MetadataImage) -> None:
        """Raises ConfigError if a stored setting of a topic or of this broker is invalid."""
        self._static_config = config
        self._image = image
        self._listeners: list[MetadataListener] = []
        self._topic_configs: dict[str, _CachedTopicConfig] = {}
        # Only of groups with settings, which bound the entries. "" has that of all others.
        self._group_configs: dict[str, _CachedGroupConfig] = {}
        self._config = self._effective_config(
            self.broker_texts(ALL_BROKERS), self.broker_texts(str(config.node_id))
        )
        warn_of_inert_keys({**self._config.dynamic_for_all, **self._config.dynamic_for_this})
        # Parsed at once: an illegal setting must end the start, not the
        # first request for its topic.
        for topic in image.topics_by_name:
            self.topic_config(topic)

    @property
    def image(self) -> MetadataImage:
        """The current metadata. An image is never changed; a later change makes a new one."""
        return self._image

    @property
    def broker_config(self) -> BrokerConfig:
        """The broker's effective configuration: the configuration file and the dynamic settings."""
        return self._config

    def add_listener(self, listener: MetadataListener) -> None:
        """Call `listener` with every later change, on the thread that makes the change and
        before that returns.
        """
        self._listeners.append(listener)

    def texts_of(self, resource: ConfigResource) -> Mapping[str, str]:
        """The settings of one resource, by key, without defaults."""
        return self._image.configs.get(resource, {})

    def topic_texts(self, topic: str) -> Mapping[str, str]:
        return self.texts_of(ConfigResource(TOPIC_RESOURCE, topic))

    def topic_config(self, topic: str) -> TopicConfig:
        """The effective configuration of a topic. A topic that does not exist has the defaults."""
        texts = self.topic_texts(topic)
        defaults = self._config.topic_defaults
        if not texts:
            return defaults
        # Any thread. Texts and defaults are never changed in place, so identity shows whether the
        # entry is current. Two threads may parse the same texts, with equal results.
        cached = self._topic_configs.get(topic)
        if cached is None or cached.texts is not texts or cached.defaults is not defaults:
            config = self._parsed_topic_config(topic, texts, defaults)
            cached = _CachedTopicConfig(texts, defaults, config)
            self._topic_configs[topic] = cached
        return cached.config

    def group_config(self, group_id: str) -> GroupLevelConfig:
        """The effective configuration of a group. A group without settings has the broker's."""
        texts = self.texts_of(ConfigResource(GROUP_RESOURCE, group_id))
        broker = self._config.groups
        name = group_id if texts else ""
        # Any thread, as `topic_config`.
        cached = self._group_configs.get(name)
        if cached is None or cached.texts != texts or cached.broker is not broker:
            config, differences = GroupLevelConfig.stored(texts, broker)
            for difference in differences:
                logger.warning(
                    "setting of a group is not in effect group_id=%s reason='%s'",
                    group_id,
                    difference,
                )
            cached = self._group_configs[name] = _CachedGroupConfig(texts, broker, config)
        return cached.config

    def broker_texts(self, broker: str) -> Mapping[str, str]:
        """The dynamic settings of one broker, or of ALL_BROKERS."""
        return self.texts_of(ConfigResource(BROKER_RESOURCE, broker))

    def config_with(
        self, *, for_all: Mapping[str, str], for_this: Mapping[str, str]
    ) -> BrokerConfig:
        """The configuration that this broker would have with these dynamic settings.

        Raises ConfigError if one is illegal, or does not fit to another or to the file.
        """
        return with_dynamic_texts(self._static_config, for_all=for_all, for_this=for_this)

    def reload_broker_config(self, reread: BrokerConfig) -> ReloadedConfig:
        """Apply the dynamic keys of the configuration file that was read again. Dynamic settings
        take precedence.

        Raises ConfigError, with nothing changed, if the resulting configuration is invalid.
        """
        reloaded = reload_config(self._static_config, reread)
        if reloaded.applied:
            before, self._static_config = self._static_config, reloaded.config
            try:
                new_config = self._effective_config(
                    self.broker_texts(ALL_BROKERS), self.broker_texts(str(self._config.node_id))
                )
                check_key_material(self._config, new_config)
            except BaseException:
                self._static_config = before
                raise
            self._config = new_config
            self._notify_listeners(MetadataChange(self._image, broker_config=new_config))
        return reloaded

    def announce_keys_again(self) -> None:
        """Report the present configuration to the listeners once more, so that they read key files
        again.

        A setting that names the same file again means, as in Kafka, that the file has new content.
        Call it on the thread that changes the metadata.
        """
        self._notify_listeners(MetadataChange(self._image, broker_config=self._config))

    def _effective_config(
        self, for_all: Mapping[str, str], for_this: Mapping[str, str]
    ) -> BrokerConfig:
        return with_dynamic_texts(self._static_config, for_all=for_all, for_this=for_this)

    def _parsed_topic_config(
        self, topic: str, texts: Mapping[str, str], defaults: TopicConfig
    ) -> TopicConfig:
        return TopicConfig.parse(texts, defaults)

    def _notify_listeners(self, change: MetadataChange) -> None:
        for topic in change.deleted:
            self._topic_configs.pop(topic.name, None)
        for listener in self._listeners:
            listener(change)
