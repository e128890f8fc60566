"""The replay of records that a KRaft quorum writes and the embedded controller never does.

The rules are Kafka's: PartitionRegistration.merge, ClusterDelta, AclsDelta, ScramDelta, TopicDelta.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.directory_ids import LOST, MIGRATING, UNASSIGNED
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import (
    NO_LEADER,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    ScramUser,
)
from isotherm.broker.metadata.metadata_records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionRecordV0,
    RegisterBrokerRecord,
    RegisterBrokerRecordV1,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
    decode_record,
)
from isotherm.errors import CorruptMetadataError
from isotherm.protocol.framed_messages import encode_framed

TOPIC_ID, DIR_1, DIR_2 = (uuid.UUID(int=number << 64) for number in (1, 2, 3))
ENDPOINTS = (BrokerEndpoint(name="P", host="h", port=9092, security_protocol=0),)
FEATURES = (BrokerFeature(name="f", min_supported_version=0, max_supported_version=1),)
TOPIC = TopicRecord(name="t", topic_id=TOPIC_ID)
PARTITION = PartitionRecord(
    partition_id=0,
    topic_id=TOPIC_ID,
    replicas=(1, 2, 3),
    isr=(1, 2),
    removing_replicas=(3,),
    adding_replicas=(2,),
    leader=1,
    leader_epoch=4,
    partition_epoch=7,
    directories=(DIR_1, None, UNASSIGNED),
    eligible_leader_replicas=(3,),
    last_known_elr=(2,),
)
BROKER = RegisterBrokerRecord(
    broker_id=5,
    incarnation_id=uuid.UUID(int=9),
    broker_epoch=50,
    end_points=ENDPOINTS,
    features=FEATURES,
    rack="r",
    log_dirs=(DIR_1,),
)


def replayed(*records: MetadataRecord, base: MetadataImage | None = None) -> MetadataImage:
    """The image after these records. Each is encoded and decoded, as if it came from a controller's
    log."""
    image = base or MetadataImage()
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(decode_record(encode_framed(record)))
    return delta.apply(image.end_offset + len(records))


def partition_after(*records: MetadataRecord) -> PartitionImage:
    (partition,) = replayed(TOPIC, PARTITION, *records).topics_by_id[TOPIC_ID].partitions
    return partition


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **fields)


def test_partition_has_all_that_was_recorded():
    assert partition_after() == PartitionImage(
        partition=0,
        replicas=(1, 2, 3),
        isr=(1, 2),
        leader=1,
        leader_epoch=4,
        partition_epoch=7,
        removing_replicas=(3,),
        adding_replicas=(2,),
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
        directories=(DIR_1, MIGRATING, UNASSIGNED),
        elr=(3,),
        last_known_elr=(2,),
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"isr": (1,)}, {"isr": (1,)}, id="isr"),
        pytest.param({"isr": ()}, {"isr": ()}, id="empty isr"),
        pytest.param({"leader": 2}, {"leader": 2, "leader_epoch": 5}, id="leader"),
        pytest.param({"leader": 1}, {"leader_epoch": 5}, id="same leader"),
        pytest.param(
            {"leader": NO_LEADER}, {"leader": NO_LEADER, "leader_epoch": 5}, id="no leader"
        ),
        pytest.param(
            {"leader_recovery_state": 1},
            {"leader_recovery_state": LeaderRecoveryState.RECOVERING},
            id="recovering",
        ),
        pytest.param(
            {"eligible_leader_replicas": (), "last_known_elr": (1,)},
            {"elr": (), "last_known_elr": (1,)},
            id="elr",
        ),
        pytest.param(
            {"removing_replicas": (), "adding_replicas": ()},
            {"removing_replicas": (), "adding_replicas": ()},
            id="reassignment done",
        ),
        pytest.param(
            {"replicas": (3, 1), "directories": (LOST, DIR_2)},
            {"replicas": (3, 1), "directories": (LOST, DIR_2)},
            id="replicas",
        ),
        pytest.param(
            {"replicas": (3, 1), "directories": (None, None, None)},
            {"replicas": (3, 1), "directories": (MIGRATING, MIGRATING)},
            id="directories of another number, all migrating",
        ),
    ],
)
def test_partition_change_keeps_what_it_does_not_name(fields, expected):
    before = partition_after()
    assert partition_after(change(**fields)) == before._replace(partition_epoch=8, **expected)


def test_recovery_state_stays_until_it_is_recorded():
    recovering = change(leader_recovery_state=1)
    assert partition_after(recovering, change(isr=(1,))).leader_recovery_state == 1
    assert partition_after(recovering, change(leader_recovery_state=0)).leader_recovery_state == 0


def test_directory_of_a_replica():
    partition = partition_after()
    assert partition.directory(3) == UNASSIGNED
    assert partition.directory(9) is None


def test_partition_of_an_old_record_is_migrating():
    old = PartitionRecordV0(
        partition_id=0,
        topic_id=TOPIC_ID,
        replicas=(1, 2),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    (partition,) = replayed(TOPIC, old).topics_by_id[TOPIC_ID].partitions
    assert partition.directories == (MIGRATING, MIGRATING)


@pytest.mark.parametrize("name", ["t", ""])
def test_elr_is_cleared_where_there_is_one(name):
    without = PartitionRecord(
        partition_id=1,
        topic_id=TOPIC_ID,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=3,
        directories=(DIR_1,),
    )
    base = replayed(TOPIC, PARTITION, without)
    image = replayed(ClearElrRecord(topic_name=name), base=base)
    cleared, untouched = image.topics_by_name["t"].partitions
    assert cleared == partition_after()._replace(elr=(), last_known_elr=(), partition_epoch=8)
    assert untouched.partition_epoch == 3
    together = replayed(TOPIC, PARTITION, without, ClearElrRecord(topic_name=name))
    assert together.topics_by_id == image.topics_by_id


def test_broker_has_all_that_was_registered():
    broker = replayed(BROKER).brokers[5]
    assert broker.endpoint("P") == Endpoint("P", "h", 9092)
    assert broker.endpoint("other") is None
    assert (broker.features, broker.log_dirs, broker.cordoned_log_dirs) == (
        FEATURES,
        (DIR_1,),
        None,
    )
    assert broker.fenced
    assert not broker.in_controlled_shutdown


def test_broker_of_an_old_record_has_no_directories():
    old = RegisterBrokerRecordV1(
        broker_id=5, incarnation_id=None, broker_epoch=50, in_controlled_shutdown=True
    )
    broker = replayed(old).brokers[5]
    assert broker.log_dirs == ()
    assert broker.in_controlled_shutdown


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"fenced": -1}, {"fenced": False}, id="unfenced"),
        pytest.param({"fenced": 1}, {"fenced": True}, id="fenced"),
        pytest.param(
            {"in_controlled_shutdown": 1}, {"in_controlled_shutdown": True}, id="shutdown"
        ),
        pytest.param({"log_dirs": (DIR_2,)}, {"log_dirs": (DIR_2,)}, id="directories"),
        pytest.param(
            {"cordoned_log_dirs": (DIR_1,)}, {"cordoned_log_dirs": (DIR_1,)}, id="cordoned"
        ),
        pytest.param({"cordoned_log_dirs": ()}, {"cordoned_log_dirs": ()}, id="none cordoned"),
    ],
)
def test_registration_change_keeps_what_it_does_not_name(fields, expected):
    base = replayed(BROKER)
    record = BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=50, **fields)
    image = replayed(record, base=base)
    assert image.brokers[5] == base.brokers[5]._replace(**expected)
    if "fenced" not in fields:
        unfenced = BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=50, fenced=-1)
        both = replayed(record, unfenced, base=base)
        assert both.brokers[5] == base.brokers[5]._replace(fenced=False, **expected)


def test_old_records_fence_and_unfence():
    base = replayed(BROKER, UnfenceBrokerRecord(id=5, epoch=50))
    assert not base.brokers[5].fenced
    assert replayed(FenceBrokerRecord(id=5, epoch=50), base=base).brokers[5].fenced


def test_controllers_are_kept():
    record = RegisterControllerRecord(
        controller_id=101,
        incarnation_id=None,
        zk_migration_ready=False,
        end_points=ENDPOINTS,
        features=FEATURES,
    )
    assert replayed(record).controllers[101].endpoints == (Endpoint("P", "h", 9092),)


def acl(number: int) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=uuid.UUID(int=number),
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )


CREDENTIAL = UserScramCredentialRecord(
    name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
)
TOKEN = DelegationTokenRecord(
    owner="User:a",
    requester="User:a",
    renewers=(),
    issue_timestamp=1,
    max_timestamp=3,
    expiration_timestamp=2,
    token_id="i",
)


def test_access_records_are_kept_as_they_are_and_removed():
    image = replayed(acl(1), acl(2), CREDENTIAL, TOKEN)
    assert image.acls == {acl(1).id: acl(1), acl(2).id: acl(2)}
    assert image.scram_credentials == {ScramUser(1, "a"): CREDENTIAL}
    assert image.delegation_tokens == {"i": TOKEN}
    image = replayed(
        RemoveAccessControlEntryRecord(id=acl(1).id),
        RemoveUserScramCredentialRecord(name="a", mechanism=1),
        RemoveUserScramCredentialRecord(name="nobody", mechanism=1),
        RemoveDelegationTokenRecord(token_id="i"),
        base=image,
    )
    assert image.acls == {acl(2).id: acl(2)}
    assert not image.scram_credentials
    assert not image.delegation_tokens


def test_kraft_version_is_not_taken_from_feature_records():
    image = replayed(FeatureLevelRecord(name="kraft.version", feature_level=1))
    assert image.features == {}
    delta = MetadataDelta(image)
    delta.set_kraft_version(1)
    assert delta.apply(1).features == {"kraft.version": 1}


def test_records_without_a_meaning_leave_the_image_but_for_its_end():
    base = replayed(TOPIC, PARTITION, BROKER)
    image = replayed(NoOpRecord(), ZkMigrationStateRecord(zk_migration_state=4), base=base)
    assert image.end_offset == base.end_offset + 2
    for name in ("topics_by_id", "topics_by_name", "brokers", "configs", "features", "acls"):
        assert getattr(image, name) is getattr(base, name)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([TOPIC, PARTITION, change(leader_recovery_state=7)], id="recovery state"),
        pytest.param([TOPIC, PARTITION, change(replicas=(1,))], id="directories of other replicas"),
        pytest.param([ClearElrRecord(topic_name="none")], id="elr of no topic"),
        pytest.param(
            [BROKER, BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=49, fenced=-1)],
            id="other broker epoch",
        ),
        pytest.param(
            [BROKER, BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=50, fenced=3)],
            id="unknown fencing",
        ),
        pytest.param([FenceBrokerRecord(id=5, epoch=50)], id="no broker to fence"),
        pytest.param([BROKER, UnregisterBrokerRecord(broker_id=5, broker_epoch=50),
                      UnfenceBrokerRecord(id=5, epoch=50)], id="no broker to unfence"),
        pytest.param([acl(1), acl(1)], id="acl twice"),
        pytest.param([RemoveAccessControlEntryRecord(id=uuid.UUID(int=1))], id="no acl to remove"),
        pytest.param([BeginTransactionRecord()], id="mark of a transaction"),
    ],
)  # fmt: skip
def test_contradiction_stops_the_replay(records: Sequence[MetadataRecord]):
    with pytest.raises(CorruptMetadataError):
        replayed(*records)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        pytest.param(b"\x01\x63\x00\x00", "api_key=99 api_version=0", id="kind"),
        pytest.param(b"\x01\x02\x09\x00", "api_key=2 api_version=9", id="version"),
    ],
)
def test_unknown_record_is_named(value, named):
    with pytest.raises(CorruptMetadataError, match=named):
        decode_record(value)
