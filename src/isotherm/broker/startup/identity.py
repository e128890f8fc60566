"""The identity of log directories: `meta.properties`, as Kafka writes it.

All directories of a broker have its node id and its cluster id. Each has its own directory id. A
directory without the file is new and gets the cluster id of the others. If no directory has the
file, the cluster is new.
Source: Kafka MetaPropertiesEnsemble.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from isotherm.broker.metadata.directory_ids import NodeIdentity, is_directory
from isotherm.errors import ConfigError, CorruptCheckpointError, LogDirFailedError
from isotherm.log.checkpoints import (
    META_PROPERTIES_HINT,
    MetaProperties,
    load_meta_properties,
    save_meta_properties,
)
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.segment.file_names import LOG_SUFFIX, parse_partition_directory
from isotherm.types import CLUSTER_METADATA_TOPIC, random_uuid, uuid_from_text, uuid_to_text


def establish_identity(
    fs: FileSystem, log_dirs: Iterable[LogDir], node_id: int, rng: random.Random
) -> str:
    """Return the cluster id, and write `meta.properties` to new directories.

    Call it with the directories locked. Raises ConfigError if one belongs to another node or
    cluster, since writing there would damage that broker's data. Raises CorruptCheckpointError if a
    directory with logs has a damaged file or none. A directory that cannot be read or written goes
    offline.
    """
    by_path: dict[Path, MetaProperties | None] = {}
    new_dirs = []
    for log_dir in log_dirs:
        with _left_out(log_dir):
            properties = by_path[log_dir.path] = load_meta_properties(fs, log_dir.path)
            if properties is None:
                _check_unused(fs, log_dir.path)
                new_dirs.append(log_dir)
    # All files are read before the first is written: no file may be added
    # beside another broker's data.
    cluster_id = agreed_cluster_id(by_path, node_id) or uuid_to_text(random_uuid(rng))
    for log_dir in new_dirs:
        with _left_out(log_dir):
            directory_id = uuid_to_text(random_uuid(rng))
            properties = MetaProperties(cluster_id, node_id, directory_id)
            save_meta_properties(fs, log_dir.path, properties)
    return cluster_id


def directory_id_of(fs: FileSystem, directory: Path) -> uuid.UUID | None:
    """The id of a directory; None if it was formatted by Kafka before 3.7. Raises
    CorruptCheckpointError and OSError."""
    properties = load_meta_properties(fs, directory)
    if properties is None or properties.directory_id is None:
        return None
    return uuid_from_text(properties.directory_id)


def read_identity(
    fs: FileSystem,
    log_dirs: Iterable[LogDir],
    node_id: int,
    rng: random.Random,
    *,
    metadata_log_dir: Path,
) -> NodeIdentity:
    """The identity of a member of a quorum's cluster, whose directories were formatted for that
    cluster.

    A directory that was added later gets a file. Call it with the directories locked. Raises
    ConfigError if none is formatted, if one belongs to another node or cluster, or if the metadata
    log is in another directory than `metadata_log_dir`. Raises CorruptCheckpointError like
    `establish_identity`. Source: Kafka KafkaRaftServer.initializeLogDirs.
    """
    dirs = {log_dir.path: log_dir for log_dir in log_dirs}
    by_path: dict[Path, MetaProperties | None] = {}
    for path, log_dir in dirs.items():
        with _left_out(log_dir):
            by_path[path] = load_meta_properties(fs, path)
            if by_path[path] is None:
                _check_unused(fs, path)
            _check_metadata_log(fs, path, metadata_log_dir)
    cluster_id = agreed_cluster_id(by_path, node_id)
    if cluster_id is None:
        raise ConfigError(
            "No readable meta.properties files found. The log directories were not formatted for a"
            f" cluster dirs={','.join(map(str, dirs))}"
            " hint='isotherm storage format --cluster-id <id of the controllers> --config <file>'"
        )
    for path, properties in by_path.items():
        if properties is None or properties.directory_id is None:
            with _left_out(dirs[path]):
                named = MetaProperties(cluster_id, node_id, uuid_to_text(random_uuid(rng)))
                save_meta_properties(fs, path, named)
                by_path[path] = named
    return NodeIdentity(cluster_id, _directory_ids(by_path))


def _check_metadata_log(fs: FileSystem, path: Path, metadata_log_dir: Path) -> None:
    other = path / f"{CLUSTER_METADATA_TOPIC}-0"
    if path != metadata_log_dir and fs.exists(other):
        raise ConfigError(
            f"Found unexpected metadata location in data directory `{other}` (the configured"
            f" metadata directory is {metadata_log_dir})."
        )


def _directory_ids(by_path: Mapping[Path, MetaProperties | None]) -> Mapping[Path, uuid.UUID]:
    by_id: dict[uuid.UUID, Path] = {}
    for path, properties in by_path.items():
        if properties is None or properties.directory_id is None:
            continue  # it went offline while the file was being written
        try:
            directory_id = uuid_from_text(properties.directory_id)
        except ValueError as error:
            raise CorruptCheckpointError(
                f"meta.properties has no directory id dir={path} value={properties.directory_id}"
                f" hint='{META_PROPERTIES_HINT}'"
            ) from error
        if not is_directory(directory_id):
            raise ConfigError(
                f"Invalid reserved directory ID {properties.directory_id} found in {path}"
            )
        other = by_id.setdefault(directory_id, path)
        if other != path:
            raise ConfigError(
                f"Duplicate directory ID {properties.directory_id} found. It was the ID of {other},"
                f" but also of {path}"
            )
    return {path: directory_id for directory_id, path in by_id.items()}


def _check_unused(fs: FileSystem, directory: Path) -> None:
    """Refuse a directory that has logs but no `meta.properties`: it may belong to any broker. Kafka
    does the same."""
    for name in fs.list_names(directory):
        parsed = parse_partition_directory(name)
        # The first start opens the metadata log before it writes the file. So an empty metadata log
        # is allowed: it is left when that start was interrupted.
        if parsed is not None and (
            parsed.topic_partition.topic != CLUSTER_METADATA_TOPIC
            or any(
                file_name.endswith(LOG_SUFFIX) and fs.file_size(directory / name / file_name)
                for file_name in fs.list_names(directory / name)
            )
        ):
            raise CorruptCheckpointError(
                f"meta.properties is lost, though there are logs dir={directory}"
                f" hint='{META_PROPERTIES_HINT}'"
            )


@contextmanager
def _left_out(log_dir: LogDir) -> Iterator[None]:
    """Skip a directory that fails.

    Its failure is logged, it goes offline, and the other directories are used.
    """
    with suppress(LogDirFailedError), log_dir.errors_fail_it("identify the broker"):
        yield


def agreed_cluster_id(by_path: Mapping[Path, MetaProperties | None], node_id: int) -> str | None:
    """The cluster id in all formatted directories;

    None if all are new. Raises ConfigError if they disagree.
    """
    cluster_id: str | None = None
    for path, properties in by_path.items():
        if properties is None:
            continue
        if properties.node_id != node_id:
            raise ConfigError(
                f"log directory belongs to another broker dir={path}"
                f" node_id={properties.node_id} key=node.id value={node_id}"
            )
        if cluster_id not in (None, properties.cluster_id):
            raise ConfigError(
                f"log directories belong to different clusters dir={path}"
                f" cluster_id={properties.cluster_id} other_cluster_id={cluster_id}"
            )
        cluster_id = properties.cluster_id
    return cluster_id
