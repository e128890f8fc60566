"""The coordinator of transactional producers (Kafka: TransactionCoordinator).

`transaction_state` decides how a transaction may change. This module appends the decision to
`__transaction_state`, keeps it in memory and carries it out. A decision and its append are one step
of the event loop, so requests never see a state that is not in the log. They are answered once that
state is committed. A broker that takes over the partition resumes open transactions and prepared
ends (`transaction_endings`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.coordinators.coordinator_shards import Election
from isotherm.broker.coordinators.topic_coordinator import TopicCoordinator
from isotherm.broker.coordinators.transactions.transaction_endings import (
    MarkerWriter,
    TransactionEndings,
)
from isotherm.broker.coordinators.transactions.transaction_log import TransactionLog
from isotherm.broker.coordinators.transactions.transaction_shard import TransactionShard
from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V2,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    add_partitions,
    begin_producer,
    check_partition_added,
    complete_transaction,
    end_transaction,
    fence,
    new_transaction_metadata,
)
from isotherm.broker.shared_futures import shared_result
from isotherm.clock import Clock
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    IsothermError,
    PolicyViolationError,
    TransactionalIdNotFoundError,
)
from isotherm.remote.outages import Outages, log_failure
from isotherm.types import ProducerId, TopicPartition

logger = logging.getLogger(__name__)

# Kafka's request.timeout.ms, which bounds the appends of its transaction coordinator.
COMMIT_TIMEOUT_S = 30.0
# The delay before the abort of a late transaction, whose record the log refused, is retried.
ABORT_RETRY_S = 1.0
# Tombstones in one batch, of about 50 bytes each: far below the limit of a batch.
FORGOTTEN_PER_BATCH = 1000


class TransactionCoordinator(TopicCoordinator[TransactionShard]):
    """Event loop thread only. Call `stop` at the end."""

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        markers: MarkerWriter,
        *,
        clock: Clock,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
    ) -> None:
        super().__init__(log.partitions)
        self.new_producer_id = new_producer_id
        self._config = config
        self._log = log
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._endings = TransactionEndings(markers, self._complete, self._loop)
        self._expiration: asyncio.TimerHandle | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._late_aborts = Outages(
            logger,
            clock,
            failing="a timed-out transaction is not aborted yet transactional_id={}",
            working="a timed-out transaction is aborted transactional_id={}",
        )
        self._is_stopped = False
        self._expire_later()

    async def stop(self) -> None:
        """Stop timers and markers. The next coordinator resumes interrupted ends."""
        self._is_stopped = True
        if self._expiration is not None:
            self._expiration.cancel()
        await super().stop()
        for task in self._aborts:
            task.cancel()

    def _empty_shard(self, index: int) -> TransactionShard:
        return TransactionShard(index)

    def _fold(self, index: int, election: Election) -> TransactionShard:
        shard = TransactionShard(index)
        shard.by_id.update(self._log.read(index, election))
        return shard

    def _resume(self, shard: TransactionShard) -> None:
        for metadata in tuple(shard.by_id.values()):
            # The timeout counts from the start time in the record, so a new coordinator does not
            # extend it.
            if metadata.state is TransactionState.ONGOING:
                self._arm_timeout(shard, metadata)
            elif metadata.is_prepared:
                # In a later loop iteration, since the markers of many transactions must not delay
                # the loading.
                self._loop.call_soon(self._resume_end, shard, metadata)

    def _resume_end(self, shard: TransactionShard, prepared: TransactionMetadata) -> None:
        if not shard.is_closed:
            self._endings.begin(shard, prepared)

    # ---- requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """The producer id and epoch for a starting producer. Raises what `begin_producer` raises.

        Creates the topic if it does not exist. An open transaction of the previous producer is
        aborted first, and ConcurrentTransactionsError makes the client retry.
        """
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction timeout is out of bounds timeout_ms={timeout_ms}"
                f" transaction.max.timeout.ms={self._config.transaction_max_timeout_ms}"
            )
        await self.ensure_topic()
        metadata = self._shard_of(transactional_id).by_id.get(transactional_id)
        fresh = None
        if metadata is None:
            self._check_room(transactional_id)
        if metadata is None or metadata.is_epoch_exhausted:
            fresh = await self.new_producer_id()
        # Looked up again, because other requests may have run during the await above.
        shard = self._shard_of(transactional_id)
        now_ms = self._clock.now_ms()
        metadata = shard.by_id.get(transactional_id)
        if metadata is None:
            # Without an await above nothing has run since a look-up that found the id's metadata.
            assert fresh is not None
            self._check_room(transactional_id)
            metadata = new_transaction_metadata(transactional_id, fresh, timeout_ms, now_ms)
        begun = begin_producer(
            metadata,
            timeout_ms=timeout_ms,
            expected=expected,
            fresh_producer_id=fresh,
            now_ms=now_ms,
        )
        self._store(shard, begun)
        if begun.is_prepared:
            # A client that disconnects must not stop the markers.
            await shared_result(self._endings.begin(shard, begun))
            raise ConcurrentTransactionsError(
                f"the transaction of an earlier producer was aborted"
                f" transactional_id={transactional_id}"
            )
        if not shard.is_committed:
            await shard.wait_committed(COMMIT_TIMEOUT_S)
        return begun.producer

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add partitions to the producer's transaction; see `transaction_state`. The caller waits
        for `uncommitted`."""
        shard, metadata = self._find(transactional_id)
        changed = add_partitions(
            metadata, producer, partitions, self._clock.now_ms(), client_version=client_version
        )
        if changed is not metadata:
            self._store(shard, changed)

    def uncommitted(self, transactional_id: str) -> Coroutine[Any, Any, None] | None:
        """The wait before an answer about the transaction may be sent, until its records are
        committed; None if they are.

        To be called right after the answer was made. The wait raises what
        `CoordinatorShard.wait_committed` raises, and the client then gets that error instead of the
        answer.
        """
        count = self._partitions.partition_count
        if count is None:
            return None
        shard = self._shards.find(coordinator_partition(transactional_id, count))
        if shard is None or shard.is_committed:
            return None
        return shard.wait_committed(COMMIT_TIMEOUT_S)

    def check_partition_added(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> None:
        """See `transaction_state.check_partition_added`."""
        _, metadata = self._find(transactional_id)
        check_partition_added(metadata, producer, partition)

    async def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: int,
    ) -> ProducerIdAndEpoch:
        """End the producer's transaction; returns its next id and epoch. Raises what
        `transaction_state` raises.

        On return the decision is committed, and every marker that needs no other broker or replica
        is written.
        """
        _, metadata = self._find(transactional_id)
        fresh = None
        if client_version >= TRANSACTION_V2 and metadata.is_epoch_exhausted:
            fresh = await self.new_producer_id()
        # Looked up again, because the transaction may have changed during the await above.
        shard, metadata = self._find(transactional_id)
        ended = end_transaction(
            metadata,
            producer,
            self._clock.now_ms(),
            commit=commit,
            client_version=client_version,
            fresh_producer_id=fresh,
        )
        if ended.metadata is not None:
            self._store(shard, ended.metadata)
            # A client that disconnects must not stop the markers.
            await shared_result(self._endings.begin(shard, ended.metadata))
        if not shard.is_committed:
            await shard.wait_committed(COMMIT_TIMEOUT_S)
        return ended.producer

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """The metadata of a transactional id.

        Raises TransactionalIdNotFoundError for an unknown id.
        """
        if self._partitions.partition_count is not None:
            metadata = self._shard_of(transactional_id).by_id.get(transactional_id)
            if metadata is not None:
                return metadata
        raise TransactionalIdNotFoundError(
            f"no producer has the transactional id transactional_id={transactional_id}"
        )

    def transactions(self) -> Iterator[TransactionMetadata]:
        """The transactions of all shards.

        Raises CoordinatorLoadInProgressError while a shard is being loaded.
        """
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("transaction state is being loaded")
        for shard in self._shards.active():
            yield from shard.by_id.values()

    @property
    def id_count(self) -> int:
        """Transactional ids that this broker coordinates. Any thread."""
        return sum(len(shard.by_id) for shard in self._shards.active())

    # ---- state

    def _check_room(self, transactional_id: str) -> None:
        """Raise PolicyViolationError if there is no room for a further transactional id."""
        count = self.id_count
        if count >= self._config.transaction_coordinator_transactional_ids_max:
            raise PolicyViolationError(
                "this broker has its maximum of transactional ids"
                f" transactional_id={transactional_id} count={count}"
                " key=transaction.coordinator.transactional.ids.max"
            )

    def _shard_of(self, transactional_id: str) -> TransactionShard:
        count = self._partitions.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(
                f"there are no transactions yet transactional_id={transactional_id}"
            )
        return self._shards.at(coordinator_partition(transactional_id, count))

    def _find(self, transactional_id: str) -> tuple[TransactionShard, TransactionMetadata]:
        if self._partitions.partition_count is not None:
            shard = self._shard_of(transactional_id)
            metadata = shard.by_id.get(transactional_id)
            if metadata is not None:
                return shard, metadata
        raise InvalidProducerIdMappingError(
            f"the transactional id has no producer id transactional_id={transactional_id}"
        )

    def _store(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        # First: a refused append leaves the transaction in memory as it was.
        self._log.append(shard, metadata)
        was_ongoing = metadata.transactional_id in shard.timeouts
        shard.by_id[metadata.transactional_id] = metadata
        if metadata.state is TransactionState.ONGOING:
            if not was_ongoing:
                self._arm_timeout(shard, metadata)
        elif was_ongoing:
            shard.timeouts.pop(metadata.transactional_id).cancel()

    def _complete(self, shard: TransactionShard, prepared: TransactionMetadata) -> None:
        self._store(shard, complete_transaction(prepared, self._clock.now_ms()))

    # ---- time

    def _arm_timeout(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        delay_s = max(0, metadata.deadline_ms - self._clock.now_ms()) / 1000
        shard.timeouts[metadata.transactional_id] = self._loop.call_later(
            delay_s, self._on_timeout, shard, metadata.transactional_id
        )

    def _on_timeout(self, shard: TransactionShard, transactional_id: str) -> None:
        # The timer that has fired stays in `timeouts`: `_store` finds there
        # that the transaction is open.
        metadata = shard.by_id[transactional_id]
        now_ms = self._clock.now_ms()
        if now_ms < metadata.deadline_ms:  # the wall clock is behind the loop's
            self._arm_timeout(shard, metadata)
            return
        logger.info(
            "transaction timed out and is aborted transactional_id=%s producer_id=%d timeout_ms=%d",
            transactional_id,
            metadata.producer_id,
            metadata.timeout_ms,
        )
        if metadata.is_epoch_exhausted:
            task = self._loop.create_task(self._abort_under_new_id(shard, transactional_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
        else:
            self._abort_late(shard, metadata, None)

    async def _abort_under_new_id(self, shard: TransactionShard, transactional_id: str) -> None:
        try:
            fresh = await self.new_producer_id()
        except IsothermError as error:
            if self._late(shard, transactional_id) is not None:
                self._abort_again_later(shard, transactional_id, error)
            return
        if (metadata := self._late(shard, transactional_id)) is not None:
            self._abort_late(shard, metadata, fresh)

    def _late(self, shard: TransactionShard, transactional_id: str) -> TransactionMetadata | None:
        """The transaction if it is still late, since other requests have run in between; else
        None.
        """
        metadata = shard.by_id.get(transactional_id)
        if shard.is_closed or metadata is None or metadata.state is not TransactionState.ONGOING:
            return None
        return metadata if metadata.deadline_ms <= self._clock.now_ms() else None

    def _abort_late(
        self, shard: TransactionShard, metadata: TransactionMetadata, fresh: ProducerId | None
    ) -> None:
        # The higher epoch fences the producer, so that its late records are refused.
        fenced = fence(metadata, self._clock.now_ms(), fresh)
        try:
            self._store(shard, fenced)
        except IsothermError as error:
            self._abort_again_later(shard, metadata.transactional_id, error)
            return
        self._late_aborts.worked(metadata.transactional_id)
        self._endings.begin(shard, fenced)

    def _abort_again_later(
        self, shard: TransactionShard, transactional_id: str, error: IsothermError
    ) -> None:
        self._late_aborts.failed(transactional_id, error)
        shard.timeouts[transactional_id].cancel()
        shard.timeouts[transactional_id] = self._loop.call_later(
            ABORT_RETRY_S, self._on_timeout, shard, transactional_id
        )

    def _expire_later(self) -> None:
        if not self._is_stopped:
            self._expiration = self._loop.call_later(
                self._config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
                self._expire_ids,
            )

    def _expire_ids(self) -> None:
        """Remove transactional ids that have not been used for transactional.id.expiration.ms."""
        for shard in self._shards.active():
            try:
                self._expire_ids_of(shard)
            except IsothermError as error:
                log_failure(
                    logger, error, f"transactional ids cannot be expired partition={shard.index}"
                )
        self._expire_later()

    def _expire_ids_of(self, shard: TransactionShard) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._config.transactional_id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, metadata in shard.by_id.items()
            if metadata.is_expired(now_ms, expiration_ms)
        ]
        for start in range(0, len(expired), FORGOTTEN_PER_BATCH):
            batch = expired[start : start + FORGOTTEN_PER_BATCH]
            # The tombstones are appended first. If that fails, the ids stay known.
            self._log.forget(shard, batch)
            for transactional_id in batch:
                del shard.by_id[transactional_id]
