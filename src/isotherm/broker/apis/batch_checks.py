"""Checks of produced batches: the rules that depend on the request and not on the log, and where
records are checked: on the event loop, in another thread if that would hold up the loop, or in
Python while the kernels are not loaded.

A batch of some kilobytes may have gigabytes of records when it is decompressed. Whether a request's
batches stay below LOOP_SIZE_MAX is seen without decompressing them
(`compression.decompressed_size_bound`). If they do not, their checks are made in a thread, and the
append takes the results. Kafka decompresses in the thread of the request handler, without a bound
(docs/decisions/0205).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from isotherm.broker.metadata.internal_topics import INTERNAL_TOPICS
from isotherm.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    IsothermError,
    UnsupportedCompressionTypeError,
)
from isotherm.record.batch_header import (
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from isotherm.record.compression import COMPRESSION_TYPE_MAX, decompressed_size_bound
from isotherm.record.few_records import FEW_RECORDS_MAX
from isotherm.record.validation import CheckedBatch, check_batch, count_without_kernels
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

if TYPE_CHECKING:
    from isotherm.broker.server.requests.context import RequestContext
    from isotherm.protocol.produce import ProduceRequest


# Bytes of records that the checks of one request may touch on the event loop: a millisecond or two.
LOOP_SIZE_MAX = 1024 * 1024
# The results by the identity of the request's partitions: the check, or why the batch is refused.
BatchChecks: TypeAlias = "Mapping[int, CheckedBatch | IsothermError]"
NO_CHECKS: BatchChecks = {}


def needs_thread(request: ProduceRequest, decompressed_size_max: int) -> bool:
    """Whether checks on the event loop could touch more than LOOP_SIZE_MAX bytes of records, or
    more of a batch than message.decompressed.max.bytes, which `check_batches` alone knows.

    Raises InvalidRequestError if a partition is repeated. (Kafka stores the last batch and drops
    the others, without a word.)
    """
    left, count = LOOP_SIZE_MAX, 0
    partitions = set()
    # Two loops and no comprehension: uncompressed batches cost no call (docs/decisions/0136).
    for topic in request.topics:
        for produced in topic.partitions:
            count += 1
            partitions.add((topic.name or topic.topic_id, produced.partition))
            records, header = produced.records, produced.header
            if records is None or header is None or left < 0:
                continue
            if header.attributes & CODEC_MASK:
                bound = size_bound(header, records[HEADER_SIZE:])
                left = left - bound if bound <= decompressed_size_max else -1
            else:
                left -= len(records)
    if len(partitions) < count:
        raise InvalidRequestError("a produce request names a partition twice")
    return left < 0


def size_bound(header: BatchHeader, payload: memoryview) -> int:
    """An upper bound of the size of a compressed batch's records; more than LOOP_SIZE_MAX says only
    that the size may be larger."""
    codec = header.attributes & CODEC_MASK
    if codec > COMPRESSION_TYPE_MAX or not payload:
        return 0  # refused before anything else
    return decompressed_size_bound(CODECS[codec], payload, LOOP_SIZE_MAX)


def needs_kernels(context: RequestContext, request: ProduceRequest) -> bool:
    """Whether the records must be checked by the compiled kernels, which then have to be loaded
    first.

    False for a few records that the checks in Python accept. If they refuse any, the kernels give
    the exact error.
    """
    services, left = context.services, FEW_RECORDS_MAX
    for topic in request.topics:
        for produced in topic.partitions:
            try:
                partition = services.replica_manager.find_partition(
                    topic.name, topic.topic_id, produced.partition
                )
            except IsothermError:
                return True
            count = count_without_kernels(
                produced.records or memoryview(b""),
                partition.topic_partition,
                config=partition.log.config,
                now_ms=services.clock.now_ms(),
                count_max=left,
            )
            if count is None:
                return True
            left -= count
    return False


async def check_batches(context: RequestContext, request: ProduceRequest) -> BatchChecks:
    """Check the batches of the partitions that this broker leads, in another thread.

    One after the other, each in its turn among those of other requests: a request of many large
    ones does not hold up another.
    """
    services, loop = context.services, asyncio.get_running_loop()
    checks: dict[int, CheckedBatch | IsothermError] = {}
    for topic in request.topics:
        for produced in topic.partitions:
            if not produced.records or len(produced.records) <= HEADER_SIZE:
                continue
            try:
                partition = services.replica_manager.find_partition(
                    topic.name, topic.topic_id, produced.partition
                )
                partition.check_is_leader()
            except IsothermError:
                continue  # the append meets it again
            check = partial(
                check_batch,
                produced.records,
                partition.topic_partition,
                config=partition.log.config,
                now_ms=services.clock.now_ms(),
                decompressed_size_max=services.config.message_decompressed_max_bytes,
            )
            checks[id(produced)] = await loop.run_in_executor(
                services.batch_executor, _outcome, check
            )
    return checks


def _outcome(check: Callable[[], CheckedBatch]) -> CheckedBatch | IsothermError:
    """The result of a check, or its error without a traceback.

    The errors of a request are kept until its answer. The frames of a traceback would keep the
    records of each batch in memory, and with a cycle until the next garbage collection.
    """
    try:
        return check()
    except IsothermError as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


FIRST_ZSTD_VERSION = 7
WRITTEN_BY_BROKER_ALONE = frozenset({*REMOTE_LOG_METADATA_TOPICS, *INTERNAL_TOPICS})


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
