"""`bootstrap.checkpoint`: what a new cluster's metadata begins with, left by the formatting tool.

    metadata.log.dir/bootstrap.checkpoint     a snapshot: header, records, footer

The embedded controller takes the credentials of users from it at its first start, when the metadata log
is empty, and has no use for it later. Either Kafka's tool or this one may have made the file. The levels
of features in it are not taken: a new cluster of this broker has its own.
Source: Kafka BootstrapDirectory, BatchFileWriter, ActivationRecordsGenerator.
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
from isotherm.broker.quorum.snapshots import PartialSnapshot, write_snapshot
from isotherm.errors import CorruptMetadataError, CorruptRecordError
from isotherm.log.fs import FileSystem
from isotherm.record.batch import iterate_batches, read_records, verify_batch_crc

BOOTSTRAP_FILE = "bootstrap.checkpoint"


def write_bootstrap(
    fs: FileSystem, directory: Path, credentials: Sequence[UserScramCredentialRecord]
) -> None:
    """Raises OSError, with the earlier file, if there was one, in place."""
    path = directory / BOOTSTRAP_FILE
    partial = path.with_name(path.name + ".tmp")
    fs.remove(partial)
    target = PartialSnapshot(fs, partial, path)
    # Without a level of this feature Kafka's controllers refuse the file.
    version = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    try:
        write_snapshot(target, 0, 0, [version, *credentials], 0)
        target.finish()
    finally:
        target.discard()


def read_bootstrap_credentials(
    fs: FileSystem, directory: Path
) -> Sequence[UserScramCredentialRecord]:
    """Nothing without a file. Raises CorruptMetadataError for a damaged one, or OSError."""
    path = directory / BOOTSTRAP_FILE
    if not fs.exists(path):
        return ()
    data = memoryview(fs.read_bytes(path))
    found: list[MetadataRecord] = []
    end = 0
    try:
        for position, header in iterate_batches(data):
            verify_batch_crc(data, position, header)
            if not header.is_control:
                records = read_records(data, position, header)
                found += [decode_record(record.value or b"") for record in records]
            end = position + header.size_in_bytes
    except (CorruptRecordError, CorruptMetadataError) as error:
        raise CorruptMetadataError(f"bootstrap metadata is damaged file={path}") from error
    if end != len(data):
        raise CorruptMetadataError(f"bootstrap metadata is cut off file={path} at={end}")
    return [each for each in found if isinstance(each, UserScramCredentialRecord)]
