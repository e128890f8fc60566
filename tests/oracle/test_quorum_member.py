"""A member of a cluster with Apache Kafka's own controllers."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.directory_ids import UNASSIGNED
from isotherm.broker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, TopicImage
from isotherm.broker.metadata.quorum.broker_lifecycle import BrokerState
from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    CoordinatorLoadInProgressError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.types import TopicIdPartition
from oracle.kafka import CLUSTER_ID, dump_log_segments, run_tool
from oracle.kafka_cluster import (
    CONTROLLER_NODE_ID,
    ControllerOracle,
    QuorumOracle,
    format_directories,
)
from oracle.tools import CLUSTER, METADATA_QUORUM, run_tools
from tests.support.conditions import wait_until
from tests.support.quorum_node import WAIT_S, QuorumNode

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.fixture(scope="module")
def controller(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControllerOracle]:
    # Sessions end soon, but not in a pause of a busy machine; and so do the batches that a snapshot
    # does not have.
    settings = {
        "broker.session.timeout.ms": "6000",
        "metadata.log.max.record.bytes.between.snapshots": "20000",
    }
    oracle = ControllerOracle(tmp_path_factory.mktemp("controller"), settings)
    oracle.start()
    try:
        yield oracle
    finally:
        oracle.stop()


@pytest.fixture
def start_node(controller: ControllerOracle, tmp_path: Path) -> Iterator[Callable[..., QuorumNode]]:
    """Starts nodes. Nodes with the same id share a folder, as restarts of a broker do."""
    started: list[QuorumNode] = []

    def start(
        node_id: int, cluster_id: str = CLUSTER_ID, settings: Mapping[str, str] | None = None
    ) -> QuorumNode:
        folder = tmp_path / f"node-{node_id}"
        started.append(
            QuorumNode(folder, controller.address, cluster_id, node_id=node_id, settings=settings)
        )
        return started[-1]

    yield start
    for node in started:
        node.crash()


def await_image(node: QuorumNode, holds: Callable[[MetadataImage], object]) -> MetadataImage:
    def is_there() -> object:
        nonlocal image
        assert not node.failures, node.failures
        image = node.metadata.image
        return holds(image)

    image = node.metadata.image
    wait_until(is_there, lambda: f"metadata, have {image.brokers}", timeout_s=WAIT_S)
    return image


def own(node: QuorumNode, image: MetadataImage | None = None) -> BrokerImage | None:
    return (image or node.metadata.image).brokers.get(node.config.node_id)


def create_topic(node: QuorumNode, name: str, replicas: Sequence[Sequence[int]]) -> TopicImage:
    assignments = [
        {"partition_index": number, "broker_ids": tuple(each)}
        for number, each in enumerate(replicas)
    ]
    request = entity_of(
        request_class(ApiKey.CREATE_TOPICS, 7),
        {
            "topics": [
                {
                    "name": name,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": assignments,
                    "configs": [],
                }
            ],
            "timeout": datetime.timedelta(seconds=30),
            "validate_only": False,
        },
    )
    codes = [ErrorCode.not_controller]

    def is_answered() -> bool:
        (topic,) = node.member.requests.send(request, timeout_s=WAIT_S).result(WAIT_S).topics
        codes.append(topic.error_code)
        # A controller that has just started leads its quorum before it is active.
        return topic.error_code != ErrorCode.not_controller

    wait_until(is_answered, "an active controller", timeout_s=WAIT_S)
    assert codes[-1] == ErrorCode.none
    image = await_image(node, lambda image: image.topic(name))
    found = image.topic(name)
    assert found is not None
    return found


def test_member_joins_leads_leaves_and_comes_back(start_node):
    node = start_node(5)
    node.join()
    assert node.member.state is BrokerState.RUNNING
    image = await_image(node, lambda image: own(node, image) and not own(node, image).fenced)
    registered = own(node)
    assert registered.broker_epoch == node.member.broker_epoch
    assert registered.endpoints == tuple(node.endpoints)
    assert registered.log_dirs == tuple(node.identity.directory_ids.values())
    assert image.features["metadata.version"] == 30
    assert image.features["kraft.version"] == 1
    assert node.member.leader.leader_id == CONTROLLER_NODE_ID

    topic = create_topic(node, "joins", [[5], [5]])
    for partition in topic.partitions:
        assert (partition.leader, partition.isr, partition.replicas) == (5, (5,), (5,))
        assert partition.directories == registered.log_dirs
    # Listeners are notified of a change once it is in the image.
    await_image(node, lambda _: created_in(node))
    assert created_in(node) == ["joins"]

    assert node.stop()
    marker = json.loads((node.log_dir / ".kafka_cleanshutdown").read_bytes())
    assert marker == {"version": 0, "brokerEpoch": registered.broker_epoch}

    again = start_node(5)
    assert again.previous_broker_epoch == registered.broker_epoch
    assert not (again.log_dir / ".kafka_cleanshutdown").exists()
    again.follow()
    assert own(again).fenced
    assert own(again).in_controlled_shutdown
    stopped = again.metadata.image.topic("joins").partitions
    assert {each.leader for each in stopped} == {NO_LEADER}
    # A clean stop keeps the replica eligible: it may lead again without a loss.
    assert {each.elr for each in stopped} == {(5,)}
    again.join_followed()
    image = await_image(again, leads(5, "joins"))
    await_image(
        again, lambda _: "joins" in [each.name for change in again.changes for each in change.moved]
    )
    assert again.member.broker_epoch > registered.broker_epoch
    await_image(again, lambda _: any(change.brokers_changed for change in again.changes))


def created_in(node: QuorumNode) -> list[str]:
    return [each.name for change in node.changes for each in change.created]


def leads(broker_id: int, topic: str) -> Callable[[MetadataImage], bool]:
    return lambda image: (
        {partition.leader for partition in image.topic(topic).partitions} == {broker_id}
    )


def test_controllers_tools_see_the_member(controller, start_node):
    node = start_node(6)
    node.join()
    (printed,) = run_tools(
        [CLUSTER, "list-endpoints", "--bootstrap-controller", controller.address]
    )
    # The tool lists the controllers' endpoints only. The quorum's observers show the registration
    # below.
    assert controller.address.partition(":")[2] in printed
    (replication,) = run_tools(
        [METADATA_QUORUM, "--bootstrap-controller", controller.address, "describe",
         "--replication"]
    )  # fmt: skip
    observers = {line.split()[0] for line in replication.splitlines() if "Observer" in line}
    assert "6" in observers


def test_silent_member_is_fenced_and_an_unclean_restart_costs_eligibility(start_node):
    watcher, node = start_node(7), start_node(8)
    watcher.follow()
    node.join()
    topic = create_topic(node, "silent", [[8]])
    assert topic.partitions[0].leader == 8
    node.crash()
    image = await_image(watcher, lambda image: own(node, image).fenced)
    assert image.topic("silent").partitions[0].elr == (8,)
    again = start_node(8)
    assert again.previous_broker_epoch == -1
    again.follow()
    again.member.register(again.endpoints)
    await_image(watcher, lambda image: image.topic("silent").partitions[0].elr == ())


def test_second_process_of_a_node_is_asked_to_wait_for_the_first(start_node, tmp_path, caplog):
    node = start_node(9)
    node.join()
    twin = QuorumNode(
        tmp_path / "twin",
        str(node.config.controller_quorum_bootstrap_servers[0]),
        CLUSTER_ID,
        node_id=9,
        settings={"initial.broker.registration.timeout.ms": "5000"},
    )
    try:
        twin.follow()
        with pytest.raises(BrokerUnreachableError, match="another process with this"):
            twin.member.register(twin.endpoints)
    finally:
        twin.crash()
    assert node.member.state is BrokerState.RUNNING


def test_controllers_of_another_cluster_are_reported_apart(start_node):
    node = start_node(10, cluster_id="4L6g3nShT-eMCtK--X86sw")
    node.member.start()
    with pytest.raises(ConfigError, match="of another cluster"):
        node.member.wait_until_caught_up(WAIT_S)
    assert [type(failure) for failure in node.failures] == [ConfigError]


def snapshots_in(log_dir: Path) -> list[Path]:
    """The metadata snapshots, without the empty one of the controllers' start."""
    found = sorted((log_dir / "__cluster_metadata-0").glob("*.checkpoint"))
    return [each for each in found if not each.name.startswith("0" * 20)]


def test_snapshot_of_the_controller_and_one_of_its_own_give_the_same_image(
    controller, start_node, caplog
):
    caplog.set_level("INFO")
    node = start_node(11)
    node.join()
    numbers = itertools.count()
    create_topic(node, f"snapshot-{next(numbers)}", [[11]] * 10)
    while not snapshots_in(controller.log_dir):
        create_topic(node, f"snapshot-{next(numbers)}", [[11]] * 10)
    pieces = {"controller.quorum.fetch.snapshot.max.bytes": "700"}
    small = {**pieces, "metadata.log.max.record.bytes.between.snapshots": "5000"}
    caplog.clear()  # on a slow machine the first node has fetched a snapshot as well
    fresh = start_node(12, settings=small)
    fresh.follow()
    logged = re.search(r"metadata snapshot is fetched end_offset=(\d+) epoch=(\d+)", caplog.text)
    assert logged is not None
    # A snapshot of the controller's own may have replaced it already.
    fetched = f"{int(logged[1]):020}-{int(logged[2]):010}.checkpoint"
    assert fetched in {snapshot.name for snapshot in snapshots_in(controller.log_dir)}
    assert_same_image(fresh, node)

    while not {snapshot.name for snapshot in snapshots_in(fresh.log_dir)} - {fetched}:
        create_topic(node, f"snapshot-{next(numbers)}", [[11]] * 10)
    # The crash waits for the observer: the file has its name before the line is in the log.
    fresh.crash()
    assert "metadata snapshot is written" in caplog.text
    (own_snapshot,) = snapshots_in(fresh.log_dir)
    dumped = dump_log_segments([own_snapshot], "--cluster-metadata-decoder")
    for word in ("SnapshotHeader", "SnapshotFooter", "KRaftVersion", "snapshot-0", "invalid"):
        assert (word in dumped) == (word != "invalid"), word
    again = start_node(12, settings=small)
    again.follow()
    assert_same_image(again, node)


def assert_same_image(node: QuorumNode, other: QuorumNode) -> None:
    """Wait until `node` has the current end offset of `other`, and compare their images."""
    expected = other.metadata.image
    image = await_image(node, lambda image: image.end_offset >= expected.end_offset)
    assert image.topics_by_name == expected.topics_by_name
    assert image.features == expected.features
    assert image.brokers.keys() == expected.brokers.keys()
    assert image.controllers == expected.controllers
    assert image.next_producer_id == expected.next_producer_id
    assert image.configs == expected.configs


def test_snapshot_that_a_dying_controller_cuts_short_is_fetched_to_its_end(controller, start_node):
    node = start_node(17)
    node.join()
    numbers = itertools.count()
    while not snapshots_in(controller.log_dir):
        create_topic(node, f"cut-{next(numbers)}", [[17]] * 10)
    # Hundreds of requests: the controller dies among them.
    fresh = start_node(18, settings={"controller.quorum.fetch.snapshot.max.bytes": "40"})
    fresh.member.start()
    folder = fresh.log_dir / "__cluster_metadata-0"
    wait_until(lambda: list(folder.glob("*.part")) or snapshots_in(fresh.log_dir), pause_s=0.001)
    controller.kill()
    controller.start()
    fresh.metadata = fresh.member.wait_until_caught_up(WAIT_S)
    fresh.member.publish_on(fresh.executor)
    assert_same_image(fresh, node)
    assert not list(folder.glob("*.part"))


def test_old_epoch_of_a_broker_is_refused(start_node):
    """A zombie's requests about its partitions have no effect."""
    node = start_node(19)
    node.join()
    topic = create_topic(node, "zombie", [[19]])
    old_epoch = node.member.broker_epoch
    node.stop()
    again = start_node(19)
    again.join()
    (partition,) = (
        await_image(again, lambda image: image.topic("zombie").partitions[0].leader == 19)
        .topic("zombie")
        .partitions
    )
    change = {
        "partition_index": 0,
        "leader_epoch": partition.leader_epoch,
        "new_isr_with_epochs": [{"broker_id": 19, "broker_epoch": old_epoch}],
        "leader_recovery_state": 0,
        "partition_epoch": partition.partition_epoch,
    }
    request = entity_of(
        request_class(ApiKey.ALTER_PARTITION, 3),
        {
            "broker_id": 19,
            "broker_epoch": old_epoch,
            "topics": [{"topic_id": topic.topic_id, "partitions": [change]}],
        },
    )
    answer = again.member.requests.send(request, timeout_s=WAIT_S).result(WAIT_S)
    assert answer.error_code == ErrorCode.stale_broker_epoch
    assert again.metadata.image.topic("zombie").partitions == (partition,)


def test_member_outlives_its_controller(controller, start_node):
    node = start_node(13)
    node.join()
    epoch = node.member.leader.epoch
    controller.kill()
    controller.start()
    create_topic(node, "after", [[13]])
    assert node.member.leader.epoch > epoch
    assert node.member.state is BrokerState.RUNNING
    assert own(node).broker_epoch == node.member.broker_epoch


def test_two_directories_are_reported_and_a_failed_one_is_reported(start_node, tmp_path):
    dirs = [tmp_path / "a", tmp_path / "b"]
    node = start_node(14, settings={"log.dirs": ",".join(map(str, dirs))})
    node.join()
    first, second = (node.identity.directory_ids[log_dir] for log_dir in dirs)
    topic = create_topic(node, "directories", [[14], [14]])
    assert {each.directories for each in topic.partitions} == {(UNASSIGNED,)}
    for number, path in enumerate(dirs):
        partition = TopicIdPartition(topic.topic_id, topic.name, number)
        node.member.note_directory(partition, path)
    image = await_image(
        node,
        lambda image: (
            [each.directories for each in image.topic("directories").partitions]
            == [(first,), (second,)]
        ),
    )
    assert set(own(node, image).log_dirs) == {first, second}
    node.member.note_log_dir_failure(dirs[1])
    image = await_image(node, lambda image: own(node, image).log_dirs == (first,))
    image = await_image(node, lambda image: image.topic("directories").partitions[1].leader == -1)
    assert image.topic("directories").partitions[0].leader == 14


def test_producer_ids_come_in_blocks_that_no_other_member_gets(start_node):
    node, other = start_node(15), start_node(16)
    node.join()
    other.join()
    ids = [producer_id(node) for _ in range(1500)]
    others = [producer_id(other) for _ in range(10)]
    assert len({*ids, *others}) == 1510
    assert ids[:1000] == list(range(ids[0], ids[0] + 1000))
    await_image(node, lambda image: image.next_producer_id > max(*ids, *others))


def producer_id(node: QuorumNode) -> int:
    ids: list[int] = []

    def is_given() -> bool:
        with contextlib.suppress(CoordinatorLoadInProgressError):
            ids.append(node.member.generate_producer_id())
        return bool(ids)

    wait_until(is_given, "a producer id", timeout_s=WAIT_S)
    return ids[0]


def test_directories_that_kafkas_tool_formatted_are_taken(controller, tmp_path):
    node_directory = tmp_path / "node"
    node_directory.mkdir()
    properties = node_directory / "server.properties"
    properties.write_text(
        "process.roles=broker\nnode.id=17\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers={controller.address}\n"
        f"listeners=PLAINTEXT://localhost:9092\nlog.dirs={node_directory / 'log'}\n"
    )
    format_directories(properties)
    node = QuorumNode(node_directory, controller.address, "is not written", node_id=17)
    try:
        node.join()
        assert node.identity.cluster_id == CLUSTER_ID
        info = run_tool("kafka.tools.StorageTool", "info", f"--config={properties}")
        assert f"cluster.id={CLUSTER_ID}" in info
        assert "problem" not in info
    finally:
        node.crash()


@pytest.mark.soak
def test_member_of_three_controllers_outlives_their_leader(kafka_tools, tmp_path):
    quorum = QuorumOracle(tmp_path / "quorum")
    quorum.start()
    node = None
    try:
        node = QuorumNode(tmp_path / "node", quorum.addresses, CLUSTER_ID, node_id=5)
        node.join()
        create_topic(node, "before", [[5]])
        killed, epoch = node.member.leader.leader_id, node.member.leader.epoch
        quorum.controllers[killed].kill()
        create_topic(node, "after", [[5]])
        assert node.member.leader.leader_id != killed
        assert node.member.leader.epoch > epoch
        assert node.member.state is BrokerState.RUNNING
        assert own(node).broker_epoch == node.member.broker_epoch
        # The controller that comes back has to catch up, and does not lead at once.
        quorum.controllers[killed].start()
        assert node.metadata.image.topic("before").partitions[0].leader == 5
        assert node.stop()
    finally:
        if node is not None:
            node.crash()
        quorum.stop()
