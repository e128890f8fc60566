"""`bootstrap.checkpoint`: the first records of a new cluster's metadata, written by the formatting
tool.

    metadata.log.dir/bootstrap.checkpoint     a snapshot: header, records, footer

At its first start, when the metadata log is empty, the embedded controller takes the users'
credentials from it. Later it does not read the file. Both Kafka's tool and this one can write it.
Feature levels in it are ignored: a new cluster of this broker has its own. Source: Kafka
BootstrapDirectory, BatchFileWriter, ActivationRecordsGenerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isotherm.broker.metadata.features import METADATA_VERSION
from isotherm.broker.metadata.metadata_records import (
    METADATA_VERSION_FEATURE,
    FeatureLevelRecord,
    MetadataRecord,
    UserScramCredentialRecord,
    decode_record,
)
from isotherm.broker.metadata.quorum.snapshots import PartialSnapshot, write_snapshot
from isotherm.errors import CorruptMetadataError, CorruptRecordError
from isotherm.log.fs import FileSystem
from isotherm.record.batch import iterate_batches, read_records, verify_batch_crc

BOOTSTRAP_FILE = "bootstrap.checkpoint"


def write_bootstrap(
    fs: FileSystem, directory: Path, credentials: Sequence[UserScramCredentialRecord]
) -> None:
    """Write the file, and replace an existing one.

    Raises OSError; then an existing file is unchanged.
    """
    path = directory / BOOTSTRAP_FILE
    partial = path.with_name(path.name + ".tmp")
    fs.remove(partial)
    target = PartialSnapshot(fs, partial, path)
    # Kafka's controllers reject the file without a level of this feature.
    version = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    try:
        write_snapshot(target, 0, 0, [version, *credentials], 0)
        target.finish()
    finally:
        target.discard()


def read_bootstrap_credentials(
    fs: FileSystem, directory: Path
) -> Sequence[UserScramCredentialRecord]:
    """The credentials in the file; none without a file. Raises CorruptMetadataError if it is
    damaged, or OSError."""
    path = directory / BOOTSTRAP_FILE
    if not fs.exists(path):
        return ()
    data = memoryview(fs.read_bytes(path))
    metadata_records: list[MetadataRecord] = []
    end = 0
    try:
        for position, header in iterate_batches(data):
            verify_batch_crc(data, position, header)
            if not header.is_control:
                records = read_records(data, position, header)
                metadata_records += [decode_record(record.value or b"") for record in records]
            end = position + header.size_in_bytes
    except (CorruptRecordError, CorruptMetadataError) as error:
        raise CorruptMetadataError(f"bootstrap metadata is damaged file={path}") from error
    if end != len(data):
        raise CorruptMetadataError(f"bootstrap metadata is cut off file={path} at={end}")
    return [
        metadata_record
        for metadata_record in metadata_records
        if isinstance(metadata_record, UserScramCredentialRecord)
    ]
