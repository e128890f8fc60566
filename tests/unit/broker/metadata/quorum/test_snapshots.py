"""Metadata snapshots: a loaded snapshot equals its image, and a damaged or unfinished one is not
loaded."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.image_records import image_records
from isotherm.broker.metadata.metadata_records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaEntity,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from isotherm.broker.metadata.quorum.metadata_fetch import SnapshotId
from isotherm.broker.metadata.quorum.metadata_loader import MetadataLoader
from isotherm.broker.metadata.quorum.snapshots import SnapshotFiles, write_snapshot
from isotherm.errors import CorruptMetadataError
from isotherm.log.fs import OsFileSystem

ID = SnapshotId(17, 3)
TOPIC_ID, DIRECTORY = uuid.UUID(int=1 << 100), uuid.UUID(int=2 << 100)
ENDPOINTS = (BrokerEndpoint(name="P", host="h", port=1, security_protocol=0),)
FEATURES = (BrokerFeature(name="f", min_supported_version=0, max_supported_version=1),)
RECORDS: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord(name="group.version", feature_level=1),
    FeatureLevelRecord(name="metadata.version", feature_level=30),
    RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=uuid.UUID(int=7),
        broker_epoch=5,
        end_points=ENDPOINTS,
        features=FEATURES,
        rack="r",
        fenced=False,
        in_controlled_shutdown=True,
        log_dirs=(DIRECTORY,),
        cordoned_log_dirs=(DIRECTORY,),
    ),
    RegisterControllerRecord(
        controller_id=100,
        incarnation_id=None,
        zk_migration_ready=False,
        end_points=ENDPOINTS,
        features=FEATURES,
    ),
    TopicRecord(name="t", topic_id=TOPIC_ID),
    PartitionRecord(
        partition_id=0,
        topic_id=TOPIC_ID,
        replicas=(1, 2),
        isr=(1,),
        removing_replicas=(2,),
        adding_replicas=(1,),
        leader=1,
        leader_epoch=2,
        partition_epoch=9,
        directories=(DIRECTORY, None),
    ),
    PartitionChangeRecord(
        partition_id=0,
        topic_id=TOPIC_ID,
        leader_recovery_state=1,
        eligible_leader_replicas=(2,),
        last_known_elr=(1,),
    ),
    ConfigRecord(resource_type=2, resource_name="t", name="a", value="b"),
    ConfigRecord(resource_type=4, resource_name="", name="c", value="d"),
    ClientQuotaRecord(
        entity=(ClientQuotaEntity(entity_type="user", entity_name=None),),
        key="producer_byte_rate",
        value=1.5,
        remove=False,
    ),
    ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=2000),
    AccessControlEntryRecord(
        id=uuid.UUID(int=5),
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    ),
    UserScramCredentialRecord(
        name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    ),
    DelegationTokenRecord(
        owner="User:a",
        requester="User:a",
        renewers=("User:b",),
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id="i",
    ),
)


def image_of_everything() -> MetadataImage:
    delta = MetadataDelta(MetadataImage())
    for record in RECORDS:
        delta.replay(record)
    delta.set_kraft_version(1)
    return delta.apply(ID.end_offset)


def write(directory: Path, image: MetadataImage, snapshot_id: SnapshotId = ID) -> Path:
    target = SnapshotFiles(OsFileSystem(), directory).begin(snapshot_id)
    write_snapshot(target, snapshot_id.epoch, 1, image_records(image), timestamp_ms=99)
    target.finish()
    return directory / f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}.checkpoint"


def load(directory: Path) -> MetadataImage:
    files = SnapshotFiles(OsFileSystem(), directory)
    latest = files.latest()
    assert latest is not None
    loader = MetadataLoader()
    loader.load_snapshot(latest, files.batches(latest))
    return loader.image()


def test_snapshot_has_everything_that_the_image_has(tmp_path):
    image = image_of_everything()
    assert write(tmp_path, image).exists()
    assert load(tmp_path) == image


def test_records_begin_with_the_metadata_version():
    first, *rest = image_records(image_of_everything())
    assert first == FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert "kraft.version" not in {getattr(each, "name", None) for each in rest}


def test_latest_snapshot_wins_and_the_rest_is_removed(tmp_path):
    fs = OsFileSystem()
    for snapshot_id in (SnapshotId(5, 9), SnapshotId(17, 3), SnapshotId(17, 2)):
        write(tmp_path, MetadataImage(), snapshot_id)
    for name in ("0" * 20 + "-" + "0" * 10 + ".checkpoint", "leader-epoch-checkpoint", "x.log"):
        fs.write_bytes(tmp_path / name, b"")
    files = SnapshotFiles(fs, tmp_path)
    files.begin(SnapshotId(20, 3)).append(b"cut off")
    assert files.latest() == (17, 3)
    files.clean_up(files.latest())
    kept = f"{17:020d}-{3:010d}.checkpoint"
    assert set(fs.list_names(tmp_path)) == {kept, "leader-epoch-checkpoint", "x.log"}


def test_snapshot_begins_empty_after_one_that_was_cut_off(tmp_path):
    files = SnapshotFiles(OsFileSystem(), tmp_path)
    files.begin(ID).append(b"x" * 1_000_000)
    write(tmp_path, image_of_everything())
    assert load(tmp_path) == image_of_everything()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda data: data[:-70], "damaged", id="cut in a batch"),
        pytest.param(lambda data: b"", "no footer", id="empty"),
        pytest.param(lambda data: data[:-5] + b"\xff" + data[-4:], "damaged", id="changed"),
        pytest.param(lambda data: data + b"\0" * 5, "damaged", id="bytes after it"),
        pytest.param(lambda data: data[:8] + b"\x7f" + data[9:], "damaged", id="huge batch"),
    ],
)
def test_damaged_snapshot_is_not_loaded(tmp_path, damage, reason):
    path = write(tmp_path, image_of_everything())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptMetadataError, match=reason):
        load(tmp_path)


def test_snapshot_without_its_end_is_not_loaded(tmp_path):
    path = write(tmp_path, image_of_everything())
    files = SnapshotFiles(OsFileSystem(), tmp_path)
    sizes = [len(batch.records) for batch in files.batches(ID)]
    path.write_bytes(path.read_bytes()[: -sizes[-1]])
    with pytest.raises(CorruptMetadataError, match="no footer"):
        load(tmp_path)
