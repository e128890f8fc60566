"""The rules for produced batches that depend on the request, and not on the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotherm.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTopicError,
    IsothermError,
    UnsupportedCompressionTypeError,
)
from isotherm.record.batch_header import LOG_OVERHEAD, MAGIC, BatchHeader
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

if TYPE_CHECKING:
    from isotherm.broker.server.requests.context import RequestContext

FIRST_ZSTD_VERSION = 7
WRITTEN_BY_BROKER_ALONE = frozenset(
    {*REMOTE_LOG_METADATA_TOPICS, "__consumer_offsets", "__transaction_state"}
)


def check_writer(context: RequestContext, topic: str) -> None:
    """Raise InvalidTopicError for a topic of WRITTEN_BY_BROKER_ALONE.

    In a cluster each broker writes remote log metadata as a producer, to the leader of its
    partition.
    """
    if context.services.embedded_controller is None and topic in REMOTE_LOG_METADATA_TOPICS:
        return
    raise InvalidTopicError(f"only the broker may write to this topic topic={topic}")


def check_zstd(api_version: int) -> None:
    """Raise UnsupportedCompressionTypeError if the version does not allow zstd."""
    if api_version < FIRST_ZSTD_VERSION:
        raise UnsupportedCompressionTypeError(
            f"zstd is not allowed below version {FIRST_ZSTD_VERSION} api_version={api_version}"
        )


def misshapen(records: memoryview | None, header: BatchHeader | None) -> IsothermError:
    """The error for records that do not begin with a whole batch of magic 2. Kafka does not accept
    them as a batch."""
    if not records:
        return InvalidRecordError("no record batch")
    if header is None:
        return InvalidRecordError(f"a record batch is truncated size={len(records)}")
    if header.magic > MAGIC:
        return CorruptMessageError(f"no such magic magic={header.magic}")
    if header.magic < MAGIC:
        return InvalidRecordError(
            f"only record batches of magic {MAGIC} may be produced magic={header.magic}"
        )
    return InvalidRecordError(
        f"a record batch is truncated size={len(records)} announced={header.length + LOG_OVERHEAD}"
    )
