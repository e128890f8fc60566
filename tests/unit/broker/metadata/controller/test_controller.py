"""The embedded controller: every change is in the metadata log before it is visible, and a restart
replays it."""

from __future__ import annotations

import uuid

import pytest

from isotherm.broker.metadata.access.acl_changes import AclBinding
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.cluster_metadata_topic import METADATA_TOPIC_PARTITION
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.controller import PRODUCER_ID_BLOCK_SIZE
from isotherm.broker.metadata.controller.partition_growth import NewPartitions
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.features import FeatureUpdate, UpgradeType
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.metadata.metadata_records import (
    TOPIC_RESOURCE,
    FenceBrokerRecord,
    PartitionRecord,
    TopicRecord,
)
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    LogDirFailedError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownConfigError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import build_batch
from isotherm.types import REMOTE_LOG_METADATA_TOPIC

FEATURES = {
    "metadata.version": 30,
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
    "eligible.leader.replicas.version": 1,
    "remote.log.metadata.compaction": 1,
}
MIN_INSYNC_OF_ALL = {ConfigResource(4, ""): {"min.insync.replicas": "1"}}
TIERED = BrokerConfig(remote=RemoteLogManagerConfig(remote_log_storage_system_enable=True))


def create(controller, name="t", **fields):
    (result,) = controller.create_topics([NewTopic(name=name, **fields)])
    if result.error is not None:
        raise result.error
    return controller.image.topics_by_name[name]


def test_first_start_records_the_features_and_the_broker(cluster_metadata):
    controller = cluster_metadata.start()
    image = controller.image
    assert image.features == FEATURES
    assert image.brokers[1].fenced is False
    assert image.configs == MIN_INSYNC_OF_ALL
    assert image.end_offset == len(FEATURES) + 2


def test_min_insync_replicas_of_the_file_becomes_the_clusters(cluster_metadata):
    """Kafka writes it with eligible leader replicas, so that all brokers agree on it (KIP-966)."""
    file = parse_broker_config({"min.insync.replicas": "2"})
    controller = cluster_metadata.start(file)
    assert controller.broker_texts("") == {"min.insync.replicas": "2"}
    assert controller.broker_config.dynamic_for_all == {"min.insync.replicas": "2"}
    # From then on it is the cluster's, whatever the file says.
    later = cluster_metadata.start(parse_broker_config({"min.insync.replicas": "1"}))
    assert later.broker_config.topic_defaults.min_insync_replicas == 2
    for broker, change, words in (
        ("", ConfigChange("min.insync.replicas", ConfigOperation.DELETE, None), "removed"),
        ("1", ConfigChange("min.insync.replicas", ConfigOperation.SET, "1"), "altered"),
    ):
        with pytest.raises(ConfigError, match=f"cannot be {words} while ELR is enabled"):
            later.alter_broker_config(broker, [change])


def test_cluster_that_turns_eligible_replicas_on_gets_the_setting(cluster_metadata):
    """A cluster of an earlier release does not have the feature, and a broker's own value is
    dropped.
    """
    controller = cluster_metadata.start()
    name = "eligible.leader.replicas.version"
    controller.update_features([FeatureUpdate(name, 0, UpgradeType.SAFE_DOWNGRADE)])
    controller.alter_broker_config(
        "", [ConfigChange("min.insync.replicas", ConfigOperation.DELETE, None)]
    )
    controller.alter_broker_config(
        "1", [ConfigChange("min.insync.replicas", ConfigOperation.SET, "3")]
    )
    assert controller.broker_config.topic_defaults.min_insync_replicas == 3
    controller.update_features([FeatureUpdate(name, 1, UpgradeType.UPGRADE)])
    assert controller.image.features[name] == 1
    assert controller.image.configs == MIN_INSYNC_OF_ALL
    assert controller.broker_config.topic_defaults.min_insync_replicas == 1


@pytest.mark.parametrize(("level", "recorded"), [(0, None), (1, 1)])
def test_new_cluster_starts_metadata_compaction_where_it_is_configured(
    cluster_metadata, level, recorded
):
    name = "remote.log.metadata.compaction"
    remote = RemoteLogManagerConfig(remote_log_metadata_compaction_initial_level=level)
    controller = cluster_metadata.start(BrokerConfig(remote=remote))
    assert controller.image.features.get(name) == recorded
    # An existing cluster keeps its level, whatever the key now says.
    other = RemoteLogManagerConfig(remote_log_metadata_compaction_initial_level=1 - level)
    replayed = cluster_metadata.replayed(BrokerConfig(remote=other))
    replayed.register_broker([])
    assert replayed.image.features.get(name) == recorded


def test_change_of_a_feature_is_reported(cluster_metadata):
    remote = RemoteLogManagerConfig(remote_log_metadata_compaction_initial_level=0)
    controller = cluster_metadata.start(BrokerConfig(remote=remote))
    seen_changes = []
    controller.add_listener(seen_changes.append)
    controller.update_features([FeatureUpdate("remote.log.metadata.compaction", 1, 1)])
    assert [change.features_changed for change in seen_changes] == [True]
    assert seen_changes[0].image.features["remote.log.metadata.compaction"] == 1


def test_topic_is_made_with_the_brokers_defaults(cluster_metadata):
    topic = create(cluster_metadata.start(BrokerConfig(num_partitions=3)))
    assert [p.partition for p in topic.partitions] == [0, 1, 2]
    first = topic.partitions[0]
    assert (first.replicas, first.isr, first.leader, first.leader_epoch) == ((1,), (1,), 1, 0)


def test_restart_replays_to_the_same_image_but_for_the_epochs(cluster_metadata):
    controller = cluster_metadata.start()
    topic = create(controller, num_partitions=2, configs={"retention.ms": "5"})
    create(controller, "gone")
    controller.delete_topics(["gone"])
    before = controller.image

    replayed = cluster_metadata.replayed()
    assert replayed.image == before
    replayed.register_broker([])

    again = replayed.image.topics_by_id[topic.topic_id]
    assert [p.leader_epoch for p in again.partitions] == [1, 1]
    assert [p.partition_epoch for p in again.partitions] == [1, 1]
    assert replayed.image.topics_by_name["t"] is again
    assert replayed.topic_config("t").retention_ms == 5
    assert set(replayed.image.topics_by_name) == {"t"}
    assert replayed.image.brokers[1].incarnation_id != before.brokers[1].incarnation_id


def test_start_with_another_node_id_is_refused(cluster_metadata):
    cluster_metadata.start()
    with pytest.raises(ConfigError, match=r"node.id=2 found=\[1\]"):
        cluster_metadata.start(BrokerConfig(node_id=2))


def test_topics_of_one_request_are_one_batch(cluster_metadata):
    controller = cluster_metadata.start()
    segment = cluster_metadata.log.segments()[-1]
    before = cluster_metadata.log.view().active_size
    controller.create_topics([NewTopic(name="a"), NewTopic(name="b", num_partitions=2)])
    raw = segment.log_path.read_bytes()[before:]
    assert int.from_bytes(raw[8:12], "big") + 12 == len(raw)


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_torn_batch_leaves_no_half_topic(cluster_metadata, cut):
    controller = cluster_metadata.start()
    create(controller, "kept")
    create(controller, "torn", num_partitions=5)
    path = cluster_metadata.log.segments()[-1].log_path
    path.write_bytes(path.read_bytes()[:-cut])
    image = cluster_metadata.replayed().image
    assert set(image.topics_by_name) == {"kept"}
    assert len(image.topics_by_id) == 1


def test_topic_that_is_not_durable_is_not_shown(cluster_metadata, monkeypatch):
    controller = cluster_metadata.start()
    heard = []
    controller.add_listener(heard.append)
    monkeypatch.setattr(type(cluster_metadata.log), "flush", fail)
    with pytest.raises(LogDirFailedError):
        controller.create_topics([NewTopic(name="t")])
    assert controller.image.topics_by_name == {}
    assert heard == []


def fail(_log):
    raise LogDirFailedError("log directory failed")


def test_listener_hears_of_created_changed_and_deleted_topics_after_the_image(cluster_metadata):
    controller = cluster_metadata.start()
    heard: list[MetadataChange] = []

    def listen(change):
        assert change.image is controller.image
        heard.append(change)

    controller.add_listener(listen)
    topic = create(controller)
    controller.alter_topic_config("t", [ConfigChange("retention.ms", ConfigOperation.SET, "1")])
    controller.delete_topics(["t"])
    assert heard[0].created == (topic,)
    assert heard[1].reconfigured == ("t",)
    assert heard[2].deleted == (topic,)


def test_validating_makes_nothing(cluster_metadata):
    controller = cluster_metadata.start()
    before = controller.image
    good, bad = controller.create_topics(
        [NewTopic(name="t", num_partitions=2), NewTopic(name="bad name")], validate_only=True
    )
    assert good.error is None
    assert len(good.plan.replicas) == 2
    assert isinstance(bad.error, InvalidTopicError)
    assert controller.image is before


def test_bad_topic_of_a_request_does_not_keep_the_others_from_being_made(cluster_metadata):
    controller = cluster_metadata.start()
    results = controller.create_topics(
        [NewTopic(name="a"), NewTopic(name=".."), NewTopic(name="b")]
    )
    assert [result.error is None for result in results] == [True, False, True]
    assert set(controller.image.topics_by_name) == {"a", "b"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, InvalidTopicError),
        ({"name": "."}, InvalidTopicError),
        ({"name": "a b"}, InvalidTopicError),
        ({"name": "ü"}, InvalidTopicError),
        ({"name": "x" * 250}, InvalidTopicError),
        ({"name": "__cluster_metadata"}, InvalidRequestError),
        ({"name": "old.name"}, TopicAlreadyExistsError),
        ({"name": "old_name"}, InvalidTopicError),
        ({"num_partitions": 0}, InvalidPartitionsError),
        ({"num_partitions": -2}, InvalidPartitionsError),
        ({"replication_factor": 0}, InvalidReplicationFactorError),
        ({"replication_factor": 2}, InvalidReplicationFactorError),
        ({"assignments": ((0, (1,)),), "num_partitions": 1}, InvalidRequestError),
        ({"assignments": ((0, (1,)),), "replication_factor": 1}, InvalidRequestError),
        ({"assignments": ((1, (1,)),)}, InvalidReplicaAssignmentError),
        ({"assignments": ((0, (2,)),)}, InvalidReplicaAssignmentError),
        ({"assignments": ((0, (1, 1)),)}, InvalidReplicaAssignmentError),
        ({"assignments": ((0, ()),)}, InvalidReplicaAssignmentError),
        ({"assignments": ((0, (1,)), (0, (1,)))}, InvalidReplicaAssignmentError),
        ({"configs": {"retention.mss": "1"}}, UnknownConfigError),
        ({"configs": {"retention.ms": "soon"}}, ConfigError),
        ({"configs": {"retention.ms": None}}, ConfigError),
        ({"configs": {"remote.storage.enable": "true"}}, ConfigError),
    ],
)
def test_topic_that_breaks_a_rule_is_refused_with_kafkas_error(cluster_metadata, fields, error):
    controller = cluster_metadata.start()
    create(controller, "old.name")
    with pytest.raises(error):
        create(controller, **fields)
    assert set(controller.image.topics_by_name) == {"old.name"}


def test_topic_name_of_the_longest_length_is_taken(cluster_metadata):
    create(cluster_metadata.start(), "x" * 249)


def test_names_that_collide_within_a_request_are_not_both_made(cluster_metadata):
    controller = cluster_metadata.start()
    first, second = controller.create_topics([NewTopic(name="a.b"), NewTopic(name="a_b")])
    assert first.error is None
    assert isinstance(second.error, InvalidTopicError)


def test_topic_named_twice_in_a_request_is_not_made(cluster_metadata):
    controller = cluster_metadata.start()
    results = controller.create_topics([NewTopic(name="a"), NewTopic(name="a")])
    assert all(isinstance(result.error, InvalidRequestError) for result in results)


def test_assignment_by_hand_fixes_the_partitions(cluster_metadata):
    topic = create(cluster_metadata.start(), assignments=((1, (1,)), (0, (1,))))
    assert len(topic.partitions) == 2


def test_request_for_more_than_10000_partitions_is_refused_as_a_whole(cluster_metadata):
    controller = cluster_metadata.start()
    topics = [NewTopic(name="a", num_partitions=10_000), NewTopic(name="b")]
    with pytest.raises(PolicyViolationError, match="count=10001"):
        controller.create_topics(topics)
    controller.create_topics(topics[:1])
    assert len(controller.image.topics_by_name["a"].partitions) == 10_000


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact"},
        {"retention.bytes": "100", "local.retention.bytes": "200"},
        {"retention.ms": "100", "local.retention.ms": "-1"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "1000"},
        {"local.retention.ms": "1000", "remote.copy.lag.ms": "2000"},
    ],
)
def test_tiered_topic_that_breaks_a_tiering_rule_is_refused(cluster_metadata, configs):
    controller = cluster_metadata.start(TIERED)
    create(controller, "good", configs={"remote.storage.enable": "true"})
    with pytest.raises(ConfigError):
        create(controller, "bad", configs={"remote.storage.enable": "true", **configs})


def test_topic_is_deleted_by_name_or_id_with_its_settings(cluster_metadata):
    controller = cluster_metadata.start()
    create(controller, "a", configs={"retention.ms": "1"})
    topic = create(controller, "b")
    results = controller.delete_topics(["a", topic.topic_id])
    assert [(r.name, r.error) for r in results] == [("a", None), ("b", None)]
    assert controller.image.topics_by_id == {}
    assert controller.image.configs == MIN_INSYNC_OF_ALL
    create(controller, "a")
    assert controller.topic_config("a") == BrokerConfig().topic_defaults


def test_deleting_what_is_not_there_names_what_was_asked_for(cluster_metadata):
    controller = cluster_metadata.start()
    unknown = uuid.UUID(int=5)
    by_name, by_id = controller.delete_topics(["nope", unknown])
    assert isinstance(by_name.error, UnknownTopicOrPartitionError)
    assert by_name.name == "nope"
    assert isinstance(by_id.error, UnknownTopicIdError)
    assert by_id.topic_id == unknown


def test_deleting_a_topic_twice_in_a_request_is_refused(cluster_metadata):
    controller = cluster_metadata.start()
    topic = create(controller)
    results = controller.delete_topics(["t", topic.topic_id])
    assert all(isinstance(result.error, InvalidRequestError) for result in results)
    assert "t" in controller.image.topics_by_name


def test_deleting_when_it_is_disabled_is_refused(cluster_metadata):
    controller = cluster_metadata.start(BrokerConfig(delete_topic_enable=False))
    with pytest.raises(TopicDeletionDisabledError):
        controller.delete_topics(["t"])


def test_metadata_topic_of_the_remote_tier_is_not_deleted_while_in_use(cluster_metadata):
    controller = cluster_metadata.start(TIERED)
    create(controller, REMOTE_LOG_METADATA_TOPIC)
    (result,) = controller.delete_topics([REMOTE_LOG_METADATA_TOPIC])
    assert isinstance(result.error, PolicyViolationError)


def test_producer_ids_come_in_recorded_blocks_and_never_repeat(cluster_metadata):
    controller = cluster_metadata.start()
    end_before = controller.image.end_offset
    ids = [controller.generate_producer_id() for _ in range(PRODUCER_ID_BLOCK_SIZE + 1)]
    assert ids == list(range(PRODUCER_ID_BLOCK_SIZE + 1))
    assert controller.image.end_offset == end_before + 2
    assert cluster_metadata.start().generate_producer_id() == 2 * PRODUCER_ID_BLOCK_SIZE


def change(name, value=None, operation=ConfigOperation.SET):
    return ConfigChange(name, operation, value)


def test_config_is_changed_incrementally_and_survives_a_restart(cluster_metadata):
    controller = cluster_metadata.start()
    create(controller, configs={"retention.ms": "1", "segment.ms": "2"})
    controller.alter_topic_config(
        "t",
        [
            change("retention.ms", operation=ConfigOperation.DELETE),
            change("max.message.bytes", "77"),
            change("cleanup.policy", "compact", ConfigOperation.APPEND),
        ],
    )
    resource = ConfigResource(TOPIC_RESOURCE, "t")
    expected = {"segment.ms": "2", "max.message.bytes": "77", "cleanup.policy": "delete,compact"}
    assert controller.image.configs[resource] == expected
    assert controller.topic_config("t").cleanup_policy == ("delete", "compact")
    controller.alter_topic_config(
        "t", [change("cleanup.policy", "delete", ConfigOperation.SUBTRACT)]
    )
    assert controller.topic_config("t").cleanup_policy == ("compact",)
    assert cluster_metadata.replayed().topic_config("t") == controller.topic_config("t")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([change("nope", "1")], UnknownConfigError),
        ([change("retention.ms", "x")], ConfigError),
        ([change("retention.ms")], InvalidRequestError),
        ([change("retention.ms", "1", ConfigOperation.APPEND)], ConfigError),
        ([change("retention.ms", "1"), change("retention.ms", "2")], InvalidRequestError),
    ],
)
def test_config_change_that_is_not_legal_changes_nothing(cluster_metadata, changes, error):
    controller = cluster_metadata.start()
    create(controller)
    before = controller.image
    with pytest.raises(error):
        controller.alter_topic_config("t", changes)
    assert controller.image is before


def test_config_change_to_what_is_set_already_writes_nothing(cluster_metadata):
    controller = cluster_metadata.start()
    create(controller, configs={"retention.ms": "1"})
    before = controller.image
    controller.alter_topic_config("t", [change("retention.ms", "1")])
    assert controller.image is before


def test_config_of_an_unknown_topic_is_not_changed(cluster_metadata):
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster_metadata.start().alter_topic_config("t", [change("retention.ms", "1")])


def test_tiering_is_turned_off_only_with_leave_to_delete_the_remote_data(cluster_metadata):
    controller = cluster_metadata.start(TIERED)
    create(controller, configs={"remote.storage.enable": "true"})
    off = change("remote.storage.enable", "false")
    with pytest.raises(ConfigError, match=r"remote\.log\.delete\.on\.disable"):
        controller.alter_topic_config("t", [off])
    controller.alter_topic_config("t", [off, change("remote.log.delete.on.disable", "true")])
    assert controller.topic_config("t").remote_storage_enable is False


def append_raw(cluster_metadata, *values):
    log = cluster_metadata.log
    batch = build_batch([(0, None, value, ()) for value in values])
    log.append_as_leader(batch, 1, now_ms=cluster_metadata.clock.now_ms())


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x01\x02", id="cut short"),
        pytest.param(b"\x01\x63\x00\x00", id="unknown kind"),
        pytest.param(
            encode_framed(FenceBrokerRecord(id=1, epoch=1)),
            id="kind that is not kept",
        ),
        pytest.param(
            encode_framed(
                PartitionRecord(
                    partition_id=0,
                    topic_id=uuid.UUID(int=9),
                    replicas=(1,),
                    isr=(1,),
                    leader=1,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=(None,),
                )
            ),
            id="partition of no topic",
        ),
        pytest.param(encode_framed(TopicRecord(name="t", topic_id=None)), id="topic without id"),
    ],
)
def test_log_that_cannot_be_understood_stops_the_start(cluster_metadata, value):
    cluster_metadata.start()
    append_raw(cluster_metadata, value)
    with pytest.raises(CorruptMetadataError):
        cluster_metadata.replayed()


def test_damaged_record_is_named_by_its_offset(cluster_metadata):
    cluster_metadata.start()
    append_raw(cluster_metadata, b"\x01\x63\x00\x00")
    with pytest.raises(CorruptMetadataError, match=f"{METADATA_TOPIC_PARTITION} offset=8"):
        cluster_metadata.replayed()


def test_partitions_and_acls_of_the_cluster_are_bounded(cluster_metadata):
    file = parse_broker_config({"cluster.partitions.max": "5", "cluster.acls.max": "2"})
    controller = cluster_metadata.start(file)
    new = [NewTopic(name=name, num_partitions=2) for name in ("a", "b", "c")]
    *kept, refused = controller.create_topics(new)
    assert [each.error for each in kept] == [None, None]
    named = r"count_max=5 key=cluster\.partitions\.max"
    with pytest.raises(PolicyViolationError, match=named):
        raise refused.error
    more, one = controller.create_partitions(
        [NewPartitions(topic="a", total_count=4), NewPartitions(topic="b", total_count=3)]
    )
    with pytest.raises(PolicyViolationError, match=named):
        raise more
    assert one is None
    # Groups need their topic.
    (internal,) = controller.create_topics([NewTopic(name="__consumer_offsets", num_partitions=3)])
    assert internal.error is None
    bindings = [AclBinding(2, topic, 3, "User:a", "*", 3, 3) for topic in ("a", "b", "c")]
    assert controller.create_acls(bindings[:2]) == [None, None]
    # Those that exist are no more.
    (again, acl) = controller.create_acls(bindings[1:])
    assert again is None
    with pytest.raises(PolicyViolationError, match=r"count=2 key=cluster\.acls\.max"):
        raise acl
