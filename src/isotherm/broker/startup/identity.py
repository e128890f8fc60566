"""The owner of log directories: `meta.properties`, as Kafka writes it.

All directories of a broker have its node id and its cluster id. Each has its own directory id. A
directory without the file is new and joins the cluster of the others. If no directory has the file,
the cluster is new. Source: Kafka MetaPropertiesEnsemble.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

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
from isotherm.types import CLUSTER_METADATA_TOPIC, uuid_to_text


def establish_identity(
    fs: FileSystem, log_dirs: Iterable[LogDir], node_id: int, new_id: Callable[[], uuid.UUID]
) -> str:
    """The cluster id. Writes `meta.properties` to new directories.

    Call it with the directories locked. Raises ConfigError if one belongs to another node or
    cluster: writing there would damage that broker's data. Raises CorruptCheckpointError if the
    file of a directory with logs is damaged or lost. A directory that cannot be read or written
    goes offline.
    """
    found: dict[Path, MetaProperties | None] = {}
    new_dirs = []
    for log_dir in log_dirs:
        with _left_out(log_dir):
            properties = found[log_dir.path] = load_meta_properties(fs, log_dir.path)
            if properties is None:
                _check_unused(fs, log_dir.path)
                new_dirs.append(log_dir)
    cluster_id = agreed_cluster_id(found, node_id) or uuid_to_text(new_id())
    for log_dir in new_dirs:
        with _left_out(log_dir):
            directory_id = uuid_to_text(new_id())
            properties = MetaProperties(cluster_id, node_id, directory_id)
            save_meta_properties(fs, log_dir.path, properties)
    return cluster_id


def _check_unused(fs: FileSystem, directory: Path) -> None:
    """Refuse a directory with logs but without its file: it may be any broker's, as in Kafka."""
    for name in fs.list_names(directory):
        parsed = parse_partition_directory(name)
        # The broker's own first start opens the metadata log before it writes the file.
        if parsed is not None and (
            parsed.topic_partition.topic != CLUSTER_METADATA_TOPIC
            or any(
                each.endswith(LOG_SUFFIX) and fs.file_size(directory / name / each)
                for each in fs.list_names(directory / name)
            )
        ):
            raise CorruptCheckpointError(
                f"meta.properties is lost, though there are logs dir={directory}"
                f" hint='{META_PROPERTIES_HINT}'"
            )


@contextmanager
def _left_out(log_dir: LogDir) -> Iterator[None]:
    """Skip a directory whose failure was logged and that is offline. The others are used."""
    with suppress(LogDirFailedError), log_dir.errors_fail_it("identify the broker"):
        yield


def agreed_cluster_id(found: Mapping[Path, MetaProperties | None], node_id: int) -> str | None:
    """The cluster of all used directories; None if all are new."""
    cluster_id: str | None = None
    for path, properties in found.items():
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
