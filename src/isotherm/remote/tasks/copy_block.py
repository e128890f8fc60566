"""Why a partition cannot be copied now, in words of a closed set: labels of a metric. Pure.

The text of an error has no bound. It names objects, and is in the log.
"""

from __future__ import annotations

from isotherm.errors import RejectedError, RemoteStorageError, RemoteStorageNotReadyError
from isotherm.remote.storage.store_reasons import known_reason

METADATA_UNREAD = "metadata not read"
"""The leader has not read the partition's remote metadata to its end."""
METADATA_TOO_LARGE = "custom metadata too large"
OTHER = "another reason"


class CustomMetadataTooLargeError(RejectedError):
    """The storage manager returned more than remote.log.metadata.custom.metadata.max.bytes."""


def block_reason(error: BaseException) -> str:
    """The reason of a failed copy, as a label."""
    if isinstance(error, RemoteStorageNotReadyError):
        return METADATA_UNREAD
    if isinstance(error, CustomMetadataTooLargeError):
        return METADATA_TOO_LARGE
    if isinstance(error, RemoteStorageError):
        return known_reason(error.reason) or OTHER
    return OTHER
