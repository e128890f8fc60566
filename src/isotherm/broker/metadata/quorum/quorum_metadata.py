"""The cluster's metadata as the quorum's controllers write it, published on the control thread.

The controllers may have accepted settings that this broker does not understand. It logs them and
leaves them out (docs/decisions/0099). Source: Kafka KRaftMetadataCache, DynamicConfigPublisher.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from isotherm.broker.metadata.cluster_metadata import ALL_BROKERS, ClusterMetadata
from isotherm.broker.metadata.image import ConfigResource, MetadataImage
from isotherm.broker.metadata.image_difference import change_between, is_empty
from isotherm.broker.metadata.metadata_records import BROKER_RESOURCE
from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import split_understood
from isotherm.config.dynamic import dynamic_broker_keys, with_dynamic_texts
from isotherm.config.group_keys import ASSIGNMENT_INTERVALS, within_limits
from isotherm.config.server_properties import takes_effect_at_a_start, warn_of_inert_keys
from isotherm.config.topic import TopicConfig
from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)


class QuorumMetadata(ClusterMetadata):
    """See ClusterMetadata. `publish` runs on the control thread."""

    def publish(self, image: MetadataImage) -> None:
        """Replace the image by a later one, and call the listeners with the difference."""
        change = change_between(self._image, image)
        texts_before = self._broker_texts_now()
        self._image = image
        if self._broker_texts_now() != texts_before:
            config = self._effective_config(
                self.broker_texts(ALL_BROKERS), self.broker_texts(str(self._config.node_id))
            )
            self._config = config
            warn_of_inert_keys({**config.dynamic_for_all, **config.dynamic_for_this})
            change = change._replace(broker_config=config)
        if not is_empty(change):
            self._notify_listeners(change)

    def _broker_texts_now(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        names = (ALL_BROKERS, str(self._static_config.node_id))
        every, this = (self.texts_of(ConfigResource(BROKER_RESOURCE, name)) for name in names)
        return every, this

    def _effective_config(
        self, for_all: Mapping[str, str], for_this: Mapping[str, str]
    ) -> BrokerConfig:
        every, this = self._capped(_understood(for_all)), self._capped(_understood(for_this))
        try:
            return with_dynamic_texts(self._static_config, for_all=every, for_this=this)
        except ConfigError as error:
            logger.warning("invalid settings of a broker are ignored reason='%s'", error)
        # Another broker checked them, beside the settings of its own file.
        return self._with_fitting(every, this)

    def _capped(self, texts: dict[str, str]) -> dict[str, str]:
        """Settings of groups within the limits of this broker's file. Source: Kafka
        GroupCoordinatorConfig.clampDynamicConfigs."""
        limits = self._static_config.groups
        capped = dict(texts)
        for name in ASSIGNMENT_INTERVALS:
            if name not in texts:
                continue
            value = dynamic_broker_keys()[name].declared.parse(texts[name])
            bounded = within_limits(name, value, limits)
            if bounded != value:
                capped[name] = str(bounded)
                logger.warning(
                    "setting of a broker is outside its limits key=%s value=%d used=%d",
                    name,
                    value,
                    bounded,
                )
        return capped

    def _with_fitting(
        self, for_all: Mapping[str, str], for_this: Mapping[str, str]
    ) -> BrokerConfig:
        """Apply the settings one by one, and leave out those that do not fit to the others. A
        setting that needs another is tried again after it."""
        applied: list[dict[str, str]] = [{}, {}]
        config = self._static_config
        waiting = [(0, *item) for item in for_all.items()] + [
            (1, *item) for item in for_this.items()
        ]
        while True:
            refused = []
            for place, name, text in waiting:
                trial = [dict(texts) for texts in applied]
                trial[place][name] = text
                try:
                    config = with_dynamic_texts(
                        self._static_config, for_all=trial[0], for_this=trial[1]
                    )
                except ConfigError:
                    refused.append((place, name, text))
                else:
                    applied = trial
            if len(refused) == len(waiting):
                return config
            waiting = refused

    def _parsed_topic_config(
        self, topic: str, texts: Mapping[str, str], defaults: TopicConfig
    ) -> TopicConfig:
        understood, errors = split_understood(TopicConfig, texts)
        if errors:
            logger.warning(
                "invalid settings of a topic are ignored topic=%s reason='%s'", topic, errors[0]
            )
        return TopicConfig.parse(understood, defaults)


def _understood(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if _is_understood(name, text)}


def _is_understood(name: str, text: str) -> bool:
    broker_key = dynamic_broker_keys().get(name)
    if broker_key is None and not takes_effect_at_a_start(name):
        # Kept, to be described: it may belong to brokers of another kind.
        return True
    reason = "it cannot be changed while running"
    if broker_key is not None:
        try:
            broker_key.declared.parse(text)
        except ConfigError as error:
            reason = str(error)
        else:
            return True
    logger.warning("setting of a broker is ignored key=%s reason='%s'", name, reason)
    return False


class Publication:
    """Publishes images on an executor. While one is published, only the latest later image is kept;
    images in between are skipped. Thread-safe."""

    def __init__(
        self,
        metadata: QuorumMetadata,
        executor: Executor,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`on_failure` gets the error of a listener: the broker's state then differs from the
        metadata.
        """
        self._metadata = metadata
        self._executor = executor
        self._on_failure = on_failure
        self._waiting: MetadataImage | None = None
        self._is_running = False
        self._is_stopped = False
        self._guard = threading.Condition()

    def offer(self, image: MetadataImage) -> None:
        with self._guard:
            if self._is_stopped:
                return
            self._waiting = image
            if self._is_running:
                return
            self._is_running = True
        self._executor.submit(self._publish)

    def stop(self) -> None:
        """Stop publishing, and wait for an image that is being published.

        Must not be called on the executor.
        """
        with self._guard:
            self._is_stopped = True
            self._guard.wait_for(lambda: not self._is_running)

    def _publish(self) -> None:
        while (image := self._next()) is not None:
            try:
                self._metadata.publish(image)
            # The boundary of a task: the executor's future has no reader, so an error would be
            # lost.
            except Exception as error:
                logger.exception("metadata cannot be applied offset=%d", image.end_offset)
                with self._guard:
                    self._is_stopped = True
                self._on_failure(error)

    def _next(self) -> MetadataImage | None:
        with self._guard:
            image, self._waiting = self._waiting, None
            if image is None or self._is_stopped:
                self._is_running = False
                self._guard.notify_all()
                return None
            return image
