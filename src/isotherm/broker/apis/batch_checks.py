"""Where the records of a request are checked: on the event loop, in another thread if that would
hold up the loop, or in Python while the kernels are not loaded.

A batch of some kilobytes may have gigabytes of records when it is decompressed. Whether a request's
batches stay below LOOP_SIZE_MAX is seen without decompressing them
(`compression.decompressed_size_bound`). If they do not, their checks are made in a thread, and the
append takes the results. Kafka decompresses in the thread of the request handler, without a bound
(docs/decisions/0205).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from isotherm.errors import InvalidRequestError, IsothermError
from isotherm.record.batch_header import (
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    BatchHeader,
)
from isotherm.record.compression import COMPRESSION_TYPE_MAX, decompressed_size_bound
from isotherm.record.few_records import FEW_RECORDS_MAX
from isotherm.record.validation import CheckedBatch, check_batch, count_without_kernels

if TYPE_CHECKING:
    from isotherm.broker.server.requests.context import RequestContext
    from isotherm.protocol.produce import ProduceRequest

# Bytes of records that the checks of one request may touch on the event loop: a millisecond or two.
LOOP_SIZE_MAX = 1024 * 1024
# The results by the identity of the request's partitions: the check, or why the batch is refused.
BatchChecks: TypeAlias = "Mapping[int, CheckedBatch | IsothermError]"
NO_CHECKS: BatchChecks = {}


def needs_thread(request: ProduceRequest) -> bool:
    """Whether checks on the event loop could touch more than LOOP_SIZE_MAX bytes of records.

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
                left -= _size_bound(header, records[HEADER_SIZE:])
            else:
                left -= len(records)
    if len(partitions) < count:
        raise InvalidRequestError("a produce request names a partition twice")
    return left < 0


def _size_bound(header: BatchHeader, payload: memoryview) -> int:
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
            try:
                checks[id(produced)] = await loop.run_in_executor(services.batch_executor, check)
            except IsothermError as error:
                checks[id(produced)] = error
    return checks
