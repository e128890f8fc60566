"""`meta.properties` of a member: the refusals are those of Kafka's MetaPropertiesEnsemble."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from isotherm.broker.startup.identity import NodeIdentity, read_identity
from isotherm.errors import ConfigError, CorruptCheckpointError
from isotherm.log.checkpoints import load_meta_properties
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir
from isotherm.types import random_uuid, uuid_from_text, uuid_to_text

FS = OsFileSystem()
CLUSTER = "SXNvdGhlcm1PcmFjbGUwMA"
NEW_ID = random_uuid(random.Random(7))
IDS = [uuid.UUID(int=number << 100) for number in (1, 2)]


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    return paths


def own(path: Path, directory_id: object, cluster_id: str = CLUSTER, node_id: int = 5) -> None:
    text = uuid_to_text(directory_id) if isinstance(directory_id, uuid.UUID) else directory_id
    lines = ["version=1", f"cluster.id={cluster_id}", f"node.id={node_id}"]
    lines += [f"directory.id={text}"] if text else []
    (path / "meta.properties").write_text("\n".join(lines) + "\n")


def identity(dirs: list[Path]) -> NodeIdentity:
    return read_identity(
        FS, [LogDir(log_dir) for log_dir in dirs], 5, random.Random(7), metadata_log_dir=dirs[0]
    )


def test_directories_tell_the_cluster_and_their_ids(dirs):
    for path, directory_id in zip(dirs, IDS, strict=True):
        own(path, directory_id)
    assert identity(dirs) == (CLUSTER, dict(zip(dirs, IDS, strict=True)))


@pytest.mark.parametrize("has_file", [False, True])
def test_directory_without_an_id_gets_one(dirs, has_file):
    own(dirs[0], IDS[0])
    if has_file:
        own(dirs[1], None)
    assert identity(dirs).directory_ids == {dirs[0]: IDS[0], dirs[1]: NEW_ID}
    written = load_meta_properties(FS, dirs[1])
    assert (written.cluster_id, written.node_id) == (CLUSTER, 5)
    assert uuid_from_text(written.directory_id) == NEW_ID


def test_directories_that_were_never_formatted_are_refused_with_the_command(dirs):
    with pytest.raises(ConfigError, match=r"No readable meta\.properties.*isotherm storage format"):
        identity(dirs)
    assert not (dirs[0] / "meta.properties").exists()


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ({"directory_id": IDS[1], "cluster_id": "4L6g3nShT-eMCtK--X86sw"}, "different clusters"),
        ({"directory_id": IDS[1], "node_id": 6}, "another broker"),
        ({"directory_id": IDS[0]}, "Duplicate directory ID"),
        ({"directory_id": uuid.UUID(int=1)}, "Invalid reserved directory ID"),
    ],
)
def test_directory_that_does_not_go_with_the_others_is_refused(dirs, second, named):
    own(dirs[0], IDS[0])
    own(dirs[1], **second)
    with pytest.raises(ConfigError, match=named):
        identity(dirs)


def test_metadata_log_in_another_directory_is_refused(dirs):
    for path, directory_id in zip(dirs, IDS, strict=True):
        own(path, directory_id)
    (dirs[1] / "__cluster_metadata-0").mkdir()
    with pytest.raises(ConfigError, match="Found unexpected metadata location"):
        identity(dirs)


def test_id_that_is_none_is_damage(dirs):
    own(dirs[0], "none")
    with pytest.raises(CorruptCheckpointError, match="value=none"):
        identity(dirs[:1])
