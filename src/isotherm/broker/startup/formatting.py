"""Formats the log directories of a broker, and describes formatted ones.

Formatting assigns a broker to a cluster: each directory gets a `meta.properties` with the cluster
id, the node id and a directory id of its own. Kafka's tool and this one write the same file, and
each accepts the other's. The first metadata of a cluster is written to the metadata directory of a
broker with the embedded controller, and to no other. Source: Kafka StorageTool, Formatter,
MetaPropertiesEnsemble.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from isotherm.broker.metadata.metadata_records import UserScramCredentialRecord
from isotherm.broker.startup.bootstrap_checkpoint import write_bootstrap
from isotherm.broker.startup.identity import agreed_cluster_id
from isotherm.errors import ConfigError, CorruptCheckpointError
from isotherm.log.checkpoints import MetaProperties, load_meta_properties, save_meta_properties
from isotherm.log.fs import FileSystem
from isotherm.types import random_uuid, uuid_to_text


def format_directories(
    fs: FileSystem,
    directories: Iterable[Path],
    cluster_id: str,
    node_id: int,
    rng: random.Random,
    *,
    ignore_formatted: bool,
    first_credentials: tuple[Path, Sequence[UserScramCredentialRecord]] | None = None,
) -> list[Path]:
    """Format the new directories and return them. Nothing is written if one of `directories` is
    refused.

    `first_credentials` are the metadata log's directory and the credentials of the users that a new
    cluster has. They are not written if that directory is formatted already.

    Raises ConfigError for directories of another node or cluster and, unless `ignore_formatted`,
    for formatted ones. Raises CorruptCheckpointError for a damaged file, and OSError.
    """
    if not cluster_id.strip():
        raise ConfigError("You must specify the cluster id.")
    by_path = {path: load_meta_properties(fs, path) for path in dict.fromkeys(directories)}
    formatted = [path for path, properties in by_path.items() if properties is not None]
    existing = agreed_cluster_id(by_path, node_id)
    if existing is not None and existing != cluster_id:
        raise ConfigError(
            f"Invalid cluster.id in: {formatted[0]}/meta.properties. Expected {cluster_id}, but"
            f" read {existing}"
        )
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore"
            " this directory and format the others."
        )
    new = [path for path, properties in by_path.items() if properties is None]
    for path in new:
        fs.make_directory(path)
        # Before meta.properties: after a crash in between, the directory is still new and is
        # formatted again.
        if first_credentials is not None and path == first_credentials[0]:
            write_bootstrap(fs, *first_credentials)
        directory_id = uuid_to_text(random_uuid(rng))
        save_meta_properties(fs, path, MetaProperties(cluster_id, node_id, directory_id))
    return new


class StorageInfo(NamedTuple):
    """The result of `storage_info`. `metadata` is the content of the first `meta.properties`; None
    if there is none."""

    directories: list[Path]
    metadata: Mapping[str, str] | None
    problems: list[str]


def storage_info(fs: FileSystem, directories: Iterable[Path]) -> StorageInfo:
    """The directories that exist, their metadata and their problems. Raises OSError."""
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
