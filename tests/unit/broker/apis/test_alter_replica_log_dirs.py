"""AlterReplicaLogDirs. The error codes are those of Kafka's ReplicaManager.alterReplicaLogDirs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.partitions.log_dir_moves import LogDirMoves
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.clock import SystemClock
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import TopicPartition


class Hosted:
    """Topic `t` with two partitions, and a broker with two directories."""

    def __init__(self, broker: Any, root: Path) -> None:
        self.dirs = (root / "one", root / "two")
        self._broker = broker
        broker.host(*self.dirs)
        broker.controller.create_topics([NewTopic(name="t", num_partitions=2)])
        self.replicas = broker.services.replica_manager
        # The quota is exceeded, so no thread copies: the tests look at the requested moves alone.
        self.moves: LogDirMoves = self.replicas.start_moves(
            broker.services.control_executor.submit,
            cast("Any", SimpleNamespace(is_exceeded=True)),
            broker.services.clock,
            thread_count=1,
        )

    def alter(
        self, path: object, *, topic: str = "t", partition: int = 0, version: int = 2
    ) -> ErrorCode:
        dirs = [{"path": str(path), "topics": [{"name": topic, "partitions": [partition]}]}]
        answer = self._broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
        (result,) = answer.results
        (found,) = result.partitions
        assert (result.topic_name, found.partition_index) == (topic, partition)
        code: ErrorCode = found.error_code
        return code

    @property
    def here(self) -> Path:
        found: Path = self.replicas.find_partition("t", None, 0).log.log_dir.path
        return found

    @property
    def there(self) -> Path:
        one, two = self.dirs
        return two if self.here == one else one

    def fail(self, path: Path) -> None:
        (log_dir,) = (each for each in self.replicas.log_dirs() if each.path == path)
        log_dir.fail(OSError(5, "Input/output error"), "test")

    def targets(self) -> dict[TopicPartition, Path]:
        return {place: move.log_dir.path for place, move in self.moves._moves.items()}


@pytest.fixture
def hosted(broker: Any, tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(broker, tmp_path)
    yield made
    made.moves.stop()


@pytest.mark.parametrize("version", [1, 2])
def test_move_begins_and_ends_with_a_request(hosted: Hosted, version: int) -> None:
    place = TopicPartition("t", 0)
    assert hosted.alter(hosted.there, version=version) is ErrorCode.none
    assert hosted.targets() == {place: hosted.there}
    assert hosted.alter(hosted.there, version=version) is ErrorCode.none
    assert hosted.targets() == {place: hosted.there}
    assert hosted.alter(hosted.here, version=version) is ErrorCode.none
    assert hosted.targets() == {}


def test_directory_that_is_not_configured_is_not_found(hosted: Hosted, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "three", "one", f"{hosted.there}/"):
        assert hosted.alter(path) is ErrorCode.log_dir_not_found
    assert hosted.targets() == {}


def test_directory_that_is_offline_takes_nothing(hosted: Hosted) -> None:
    hosted.fail(hosted.there)
    assert hosted.alter(hosted.there) is ErrorCode.kafka_storage_error
    # A replica already in the directory needs no move, so the answer is no error.
    assert hosted.alter(hosted.here) is ErrorCode.none


def test_partition_that_is_offline_is_not_moved(hosted: Hosted) -> None:
    there = hosted.there
    log_dir = hosted.replicas.find_partition("t", None, 0).log.log_dir
    hosted.fail(log_dir.path)
    hosted.replicas.take_offline(log_dir)
    assert hosted.alter(there) is ErrorCode.kafka_storage_error


@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("t", 2), ("t", -1)])
def test_partition_that_does_not_exist_is_unknown(
    hosted: Hosted, topic: str, partition: int
) -> None:
    found = hosted.alter(hosted.there, topic=topic, partition=partition)
    assert found is ErrorCode.unknown_topic_or_partition


class _OneTopicElsewhere(ClusterView):
    def find_topic(self, topic: str | uuid.UUID) -> Any:
        del topic
        return SimpleNamespace(partitions=[1])


def test_replica_of_other_brokers_is_not_available(hosted: Hosted) -> None:
    """Kafka answers REPLICA_NOT_AVAILABLE where its internal error is NotLeaderOrFollower."""
    hosted.replicas._cluster = _OneTopicElsewhere(1, SystemClock())
    found = hosted.alter(hosted.there, topic="elsewhere")
    assert found is ErrorCode.replica_not_available


@pytest.mark.parametrize(
    ("length", "code"),
    [(210, ErrorCode.unknown_topic_or_partition), (211, ErrorCode.invalid_topic_exception)],
)
def test_name_has_room_for_the_directory_of_the_copy(
    hosted: Hosted, length: int, code: ErrorCode
) -> None:
    """`<topic>-<partition>.<32 digits>-future` has at most 255 characters. As in Kafka, this check
    comes first."""
    assert hosted.alter(hosted.there, topic="x" * length, partition=1234) is code
    if code is ErrorCode.invalid_topic_exception:
        assert hosted.alter("/nowhere", topic="x" * length, partition=1234) is code


def test_each_partition_has_its_own_answer(hosted: Hosted, broker: Any) -> None:
    dirs = [
        {"path": str(path), "topics": [{"name": "t", "partitions": partitions}]}
        for path, partitions in ((hosted.there, [0, 7]), ("/nowhere", [1]))
    ]
    (result,) = broker.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs).results
    assert [
        (partition.partition_index, partition.error_code) for partition in result.partitions
    ] == [
        (0, ErrorCode.none),
        (7, ErrorCode.unknown_topic_or_partition),
        (1, ErrorCode.log_dir_not_found),
    ]
