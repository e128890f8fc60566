"""The small files beside the segments: offset checkpoints, ids, and the clean shutdown marker.

All are replaced atomically. Source: Kafka OffsetCheckpointFile, PartitionMetadataFile,
MetaPropertiesEnsemble, CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import FileSystem, read_if_exists
from isotherm.segment.checkpoint_text import (
    check_not_cut,
    checkpoint_integers,
    encode_checkpoint_entries,
    read_checkpoint_entries,
)
from isotherm.segment.file_names import (
    CLEAN_SHUTDOWN_NAME,
    META_PROPERTIES_NAME,
    PARTITION_METADATA_NAME,
)
from isotherm.types import Offset, TopicPartition, uuid_from_text, uuid_to_text

NO_BROKER_EPOCH = -1

META_PROPERTIES_HINT = (
    "restore it, or write its lines anew: version=1, node.id, cluster.id as another directory or"
    " the broker's log has it, and a directory.id of 22 characters"
)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`meta.properties`: the owner of a log directory. Ids are Kafka's 22-character texts.

    Directories that Kafka formatted before 3.7 have no `directory_id` yet."""

    cluster_id: str
    node_id: int
    directory_id: str | None


def read_offset_checkpoint(data: bytes | str) -> dict[TopicPartition, Offset]:
    """`<topic> <partition> <offset>` per line. Raises CorruptCheckpointError."""
    offsets: dict[TopicPartition, Offset] = {}
    for topic, *numbers in read_checkpoint_entries(data, field_count=3):
        partition, offset = checkpoint_integers(numbers)
        offsets[TopicPartition(topic, partition)] = offset
    return offsets


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    entries = [(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    return encode_checkpoint_entries(sorted(entries))


def load_offset_checkpoint(fs: FileSystem, path: Path) -> dict[TopicPartition, Offset]:
    """The offsets in a file; empty if it does not exist. Raises CorruptCheckpointError."""
    if not fs.exists(path):
        return {}
    data = fs.read_bytes(path)
    check_not_cut(data)
    return read_offset_checkpoint(data)


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """43 bytes, without a newline at the end, as in Kafka."""
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}".encode()


def read_partition_metadata(data: bytes) -> uuid.UUID:
    fields = _properties(data, separator=":")
    if fields.get("version") != "0":
        raise CorruptCheckpointError(
            f"partition metadata has an unknown version version={fields.get('version')!r}"
        )
    try:
        return uuid_from_text(fields.get("topic_id", ""))
    except ValueError as error:
        raise CorruptCheckpointError("partition metadata holds no topic id") from error


def load_partition_metadata(fs: FileSystem, directory: Path) -> uuid.UUID | None:
    data = read_if_exists(fs, directory / PARTITION_METADATA_NAME)
    return None if data is None else read_partition_metadata(data)


def save_partition_metadata(fs: FileSystem, directory: Path, topic_id: uuid.UUID) -> None:
    fs.write_atomically(directory / PARTITION_METADATA_NAME, encode_partition_metadata(topic_id))


def load_meta_properties(fs: FileSystem, log_dir: Path) -> MetaProperties | None:
    """Read the file. None for a directory that was never used. Raises CorruptCheckpointError with
    the fault."""
    path = log_dir / META_PROPERTIES_NAME
    if not fs.exists(path):
        return None
    fields = _properties(fs.read_bytes(path), separator="=")
    try:
        return MetaProperties(
            cluster_id=fields["cluster.id"],
            node_id=int(fields["node.id"]),
            directory_id=fields.get("directory.id"),
        )
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(
            f"meta.properties is damaged file={path} reason='{error!r}'"
            f" hint='{META_PROPERTIES_HINT}'"
        ) from error


def save_meta_properties(fs: FileSystem, log_dir: Path, properties: MetaProperties) -> None:
    lines = (
        "#",
        f"cluster.id={properties.cluster_id}",
        f"directory.id={properties.directory_id}",
        f"node.id={properties.node_id}",
        "version=1",
    )
    data = "".join(f"{line}\n" for line in lines).encode()
    fs.write_atomically(log_dir / META_PROPERTIES_NAME, data)


def save_clean_shutdown(fs: FileSystem, log_dir: Path, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    fs.write_atomically(log_dir / CLEAN_SHUTDOWN_NAME, data.encode())


def take_clean_shutdown(fs: FileSystem, log_dir: Path) -> int | None:
    """The broker epoch of the last stop if that was clean, else None; NO_BROKER_EPOCH if the marker
    has none. Removes the marker, so that a crash leaves none."""
    path = log_dir / CLEAN_SHUTDOWN_NAME
    if not fs.exists(path):
        return None
    try:
        epoch = int(json.loads(fs.read_bytes(path))["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        epoch = NO_BROKER_EPOCH  # older brokers leave the marker empty
    fs.remove(path)
    fs.sync_directory(log_dir)
    return epoch


def _properties(data: bytes, separator: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", errors="replace").splitlines():
        name, equals_sign, value = line.partition(separator)
        if equals_sign and not line.startswith("#"):
            fields[name.strip()] = value.strip()
    return fields
