"""Formats the log directories of a broker, and reports formatted ones.

Only a cluster id joins a broker to a cluster: every directory gets a `meta.properties` with it, the
node's id, and an id of its own. Kafka's tool and this one make the same file, and either may have
made it. The metadata that a controller starts with is in the metadata directory of a broker with the
embedded controller, and no matter of another.
Source: Kafka StorageTool, Formatter, MetaPropertiesEnsemble.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.broker.startup.bootstrap_metadata import write_bootstrap
from isotherm.broker.startup.identity import agreed_cluster_id
from isotherm.errors import ConfigError, CorruptCheckpointError
from isotherm.log.checkpoints import MetaProperties, load_meta_properties, save_meta_properties
from isotherm.log.fs import FileSystem
from isotherm.types import uuid_to_text


def format_directories(
    fs: FileSystem,
    directories: Iterable[Path],
    cluster_id: str,
    node_id: int,
    new_id: Callable[[], uuid.UUID],
    *,
    ignore_formatted: bool,
    first_credentials: tuple[Path, Sequence[UserScramCredentialRecord]] | None = None,
) -> list[Path]:
    """The directories that were formatted; nothing is written if one of them may not be.

    `first_credentials` are those of the users that a new cluster has, and the directory of its metadata
    log; they are left out if that was formatted before.

    Raises ConfigError for directories of another node or cluster, and, unless `ignore_formatted`, for
    one that is formatted already; CorruptCheckpointError for a damaged file; OSError.
    """
    if not cluster_id.strip():
        raise ConfigError("You must specify the cluster id.")
    found = {path: load_meta_properties(fs, path) for path in dict.fromkeys(directories)}
    formatted = [path for path, properties in found.items() if properties is not None]
    existing = agreed_cluster_id(found, node_id)
    if existing is not None and existing != cluster_id:
        raise ConfigError(
            f"Invalid cluster.id in: {formatted[0]}/meta.properties. Expected {cluster_id}, but read"
            f" {existing}"
        )
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore"
            " this directory and format the others."
        )
    new = [path for path, properties in found.items() if properties is None]
    for path in new:
        fs.make_directory(path)
        if first_credentials is not None and path == first_credentials[0]:
            write_bootstrap(fs, *first_credentials)
        save_meta_properties(fs, path, MetaProperties(cluster_id, node_id, uuid_to_text(new_id())))
    return new


class StorageInfo(NamedTuple):
    """`metadata` is that of the first directory that has any, as its file has it."""

    directories: list[Path]
    metadata: Mapping[str, str] | None
    problems: list[str]


def storage_info(fs: FileSystem, directories: Iterable[Path]) -> StorageInfo:
    """The found directories and their problems. Raises OSError."""
    info = StorageInfo([], None, [])
    first: MetaProperties | None = None
    for path in sorted(set(directories)):
        if not path.is_dir():
            what = "is not a directory" if fs.exists(path) else "does not exist"
            info.problems.append(f"{path} {what}")
            continue
        info.directories.append(path)
        try:
            properties = load_meta_properties(fs, path)
        except CorruptCheckpointError as error:
            info.problems.append(f"Error loading {path / 'meta.properties'}: {error}")
            continue
        if properties is None:
            info.problems.append(f"{path} is not formatted.")
        elif first is None:
            first = properties
        elif first.cluster_id != properties.cluster_id:
            info.problems.append("Mismatched cluster IDs between storage directories.")
        elif first.node_id != properties.node_id:
            info.problems.append("Mismatched node IDs between storage directories.")
    return info._replace(metadata=None if first is None else _as_texts(first))


def _as_texts(properties: MetaProperties) -> Mapping[str, str]:
    texts = {"cluster.id": properties.cluster_id}
    if properties.directory_id is not None:
        texts["directory.id"] = properties.directory_id
    return {**texts, "node.id": str(properties.node_id), "version": "1"}
