"""Whose log directories these are: `meta.properties`, as Kafka writes it.

All directories of a broker carry its node id and its cluster's id; each has an id of its own. A
directory without the file is new and joins the others' cluster; without any file the cluster is
new. Source: Kafka MetaPropertiesEnsemble.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from isotherm.errors import ConfigError, LogDirFailedError
from isotherm.log.checkpoints import MetaProperties, load_meta_properties, save_meta_properties
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.types import uuid_to_text


def establish_identity(
    fs: FileSystem, log_dirs: Iterable[LogDir], node_id: int, new_id: Callable[[], uuid.UUID]
) -> str:
    """The cluster id; directories that are new get their `meta.properties`.

    Call it with the directories locked. ConfigError when one belongs to another node or cluster:
    writing there would damage that broker's data. One that cannot be read or written goes offline.
    """
    found: dict[Path, MetaProperties | None] = {}
    new_dirs = []
    for log_dir in log_dirs:
        with _left_out(log_dir):
            properties = found[log_dir.path] = load_meta_properties(fs, log_dir.path)
            if properties is None:
                new_dirs.append(log_dir)
    cluster_id = agreed_cluster_id(found, node_id) or uuid_to_text(new_id())
    for log_dir in new_dirs:
        with _left_out(log_dir):
            directory_id = uuid_to_text(new_id())
            properties = MetaProperties(cluster_id, node_id, directory_id)
            save_meta_properties(fs, log_dir.path, properties)
    return cluster_id


@contextmanager
def _left_out(log_dir: LogDir) -> Iterator[None]:
    """A failure has been logged, and its directory is offline: the others go on."""
    with suppress(LogDirFailedError), log_dir.errors_fail_it("identify the broker"):
        yield


def agreed_cluster_id(found: Mapping[Path, MetaProperties | None], node_id: int) -> str | None:
    """The cluster that every used directory belongs to; None when all are new."""
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
