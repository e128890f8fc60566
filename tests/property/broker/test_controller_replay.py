"""A restarted controller has every change that was answered with success, and nothing else.

The model is a dict of topics, made from the answers: created and not deleted since.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.broker.metadata.cluster_metadata_topic import (
    METADATA_LOG_CONFIG,
    METADATA_TOPIC_ID,
    METADATA_TOPIC_PARTITION,
)
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.broker import BrokerConfig
from isotherm.errors import RejectedError
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.testing.sim_clock import SimClock

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "", "ü"])
CONFIGS = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "bad.key"]), st.sampled_from(["1", "x"])
)
NEW_TOPICS = st.builds(NewTopic, name=NAMES, num_partitions=st.integers(-2, 3), configs=CONFIGS)
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), st.lists(NEW_TOPICS, max_size=3)),
    st.tuples(st.just("delete"), st.lists(NAMES, max_size=2)),
    st.tuples(st.just("alter"), st.tuples(NAMES, st.sampled_from(["1", "2", None]))),
    st.tuples(st.just("producer id"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


class Cluster:
    """A controller over one metadata log, restarted at will, and the model of its topics."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / str(METADATA_TOPIC_PARTITION)
        self.directory.mkdir()
        self.ids = random.Random(1)
        self.model: dict[str, tuple[int, dict[str, str]]] = {}
        self.producer_ids: set[int] = set()
        self.restart()

    def replayed(self) -> Controller:
        clock = SimClock()
        log = load_log(
            LogEnvironment(FileCache(OsFileSystem()), clock, random.Random(0)),
            PartitionDirectory(
                LogDir(self.directory.parent), self.directory, METADATA_TOPIC_PARTITION
            ),
            METADATA_LOG_CONFIG,
            topic_id=METADATA_TOPIC_ID,
        )
        return Controller(
            log,
            config=BrokerConfig(),
            clock=clock,
            rng=self.ids,
        )

    def restart(self) -> None:
        self.controller = self.replayed()
        self.controller.register_broker([])

    def create(self, topics: list[NewTopic]) -> None:
        results = self.controller.create_topics(topics)
        for topic, result in zip(topics, results, strict=True):
            if result.error is None:
                self.model[topic.name] = (len(result.plan.replicas), dict(topic.configs))

    def delete(self, names: list[str]) -> None:
        for result in self.controller.delete_topics(names):
            if result.error is None:
                del self.model[result.name]

    def alter(self, name: str, value: str | None) -> None:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        try:
            change = ConfigChange("retention.ms", operation, value)
            self.controller.alter_topic_config(name, [change])
        except RejectedError:
            assert name not in self.model
            return
        configs = self.model[name][1]
        configs.pop("retention.ms", None)
        if value is not None:
            configs["retention.ms"] = value

    def step(self, operation: str, argument) -> None:
        if operation == "create":
            self.create(argument)
        elif operation == "delete":
            self.delete(argument)
        elif operation == "alter":
            self.alter(*argument)
        elif operation == "producer id":
            producer_id = self.controller.generate_producer_id()
            assert producer_id not in self.producer_ids
            self.producer_ids.add(producer_id)
        else:
            self.restart()

    def check(self) -> None:
        image = self.controller.image
        assert self.replayed().image == image
        assert {
            name: (len(topic.partitions), dict(self.controller.topic_texts(name)))
            for name, topic in image.topics_by_name.items()
        } == self.model
        assert {t.topic_id for t in image.topics_by_name.values()} == set(image.topics_by_id)


@settings(max_examples=25)
@given(st.lists(OPERATIONS, max_size=8))
def test_image_is_the_model_and_survives_a_restart(operations):
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        for operation, argument in operations:
            cluster.step(operation, argument)
        cluster.check()
