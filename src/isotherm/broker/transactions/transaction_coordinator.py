"""The coordinator of this broker's transactional producers (Kafka: TransactionCoordinator).

`transaction_state` decides how a transaction may change. This module appends the decision to
`__transaction_state`, keeps it in memory and carries it out. A decision and its append are one step
of the event loop, so requests never see a state that is not in the log.

    end decided: PREPARE appended -> markers, some per turn of the loop -> COMPLETE appended

`load` resumes an end that a stop or a crash has interrupted. An end whose markers cannot be
written, because a log directory is offline, is resumed at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from isotherm.broker.coordinator_partition import coordinator_partition
from isotherm.broker.transactions.transaction_log import TransactionLog
from isotherm.broker.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.transactions.transaction_state import (
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
from isotherm.clock import Clock
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    FencedError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    IsothermError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from isotherm.types import ProducerId, TopicPartition

logger = logging.getLogger(__name__)

# A marker takes about 60 µs. This bounds how long one turn may hold up the event loop.
MARKERS_PER_TURN = 32
# Tombstones in one batch, of about 50 bytes each: far below the limit of a batch.
FORGOTTEN_PER_BATCH = 1000


class ControlThread(Protocol):
    """`BrokerServices.run_control`."""

    def __call__(self, function: Callable[[], bool]) -> Awaitable[bool]: ...


@dataclass(slots=True)
class _LoadedPartition:
    """The transactional ids of one partition of `__transaction_state`."""

    index: int
    epoch: int
    by_id: dict[str, TransactionMetadata] = field(default_factory=dict)


@dataclass(slots=True)
class _Ending:
    """A transaction that is being ended. `done` completes once every marker has been tried."""

    partition: _LoadedPartition
    metadata: TransactionMetadata
    unmarked: deque[TopicPartition]
    done: asyncio.Future[None]
    has_failed: bool = False


class TransactionCoordinator:
    """Event loop thread only. Call `start` or `load` once, and `stop` at the end."""

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        markers: TransactionMarkers,
        *,
        clock: Clock,
        run_control: ControlThread,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
    ) -> None:
        self._config = config
        self._log = log
        self._markers = markers
        self._clock = clock
        self._run_control = run_control
        self._new_producer_id = new_producer_id
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[int, _LoadedPartition] = {}
        self._timeouts: dict[str, asyncio.TimerHandle] = {}
        self._expiration: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None
        self._is_closed = False

    # ---- start and stop

    def start(self, offsets_loaded: Awaitable[None]) -> None:
        """Load in the background, after committed offsets: resumed markers may commit some."""

        async def load() -> None:
            await offsets_loaded
            await self.load()

        self._loading = self._loop.create_task(load())

    async def stop(self) -> None:
        """Stop timers and markers. The next start resumes interrupted ends."""
        self._is_closed = True
        if self._loading is not None:
            await self._loading
        for timer in (*self._timeouts.values(), self._expiration):
            if timer is not None:
                timer.cancel()

    async def load(self) -> None:
        """Read `__transaction_state` and resume open transactions and interrupted ends.

        Requests for a partition's ids raise CoordinatorLoadInProgressError until it is loaded. For
        a partition that cannot be read they raise it until the next start.
        """
        for index in range(self._log.partition_count or 0):
            try:
                by_id = await self._loop.run_in_executor(None, self._log.read, index)
                epoch = self._log.coordinator_epoch(index)
            except IsothermError as error:
                logger.error(  # noqa: TRY400
                    "transaction state cannot be loaded partition=%d: %s", index, error
                )
                continue
            if self._is_closed:
                return
            self._install(_LoadedPartition(index, epoch, dict(by_id)))
        self._expire_later()

    def _install(self, partition: _LoadedPartition) -> None:
        self._partitions[partition.index] = partition
        for metadata in tuple(partition.by_id.values()):
            # The timeout counts from the start in the record: a restart does not extend it.
            if metadata.state is TransactionState.ONGOING:
                self._arm_timeout(metadata)
            elif metadata.is_prepared:
                # In a later turn: the markers of many transactions must not hold up the loading.
                self._loop.call_soon(self._end, partition, metadata)

    # ---- requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """The id and epoch for a starting producer. See `begin_producer` for what it raises.

        Creates the topic if it does not exist. If the previous producer's transaction must be
        aborted first, it is, and ConcurrentTransactionsError makes the client retry.
        """
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction timeout is out of bounds timeout_ms={timeout_ms}"
                f" transaction.max.timeout.ms={self._config.transaction_max_timeout_ms}"
            )
        await self._ensure_topic()
        known = self._partition_of(transactional_id).by_id.get(transactional_id)
        fresh = None
        if known is None or known.is_epoch_exhausted:
            fresh = await self._new_producer_id()
        # The await above let other requests run: look the id up again.
        partition = self._partition_of(transactional_id)
        now_ms = self._clock.now_ms()
        known = partition.by_id.get(transactional_id)
        if known is None:
            assert fresh is not None
            known = new_transaction_metadata(transactional_id, fresh, timeout_ms, now_ms)
        begun = begin_producer(
            known, timeout_ms=timeout_ms, expected=expected, fresh_producer_id=fresh, now_ms=now_ms
        )
        self._store(partition, begun)
        if begun.is_prepared:
            await asyncio.shield(self._end(partition, begun))
            raise ConcurrentTransactionsError(
                f"the transaction of an earlier producer was aborted"
                f" transactional_id={transactional_id}"
            )
        return begun.producer

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add partitions to the producer's transaction; see `transaction_state`."""
        partition, metadata = self._find(transactional_id)
        changed = add_partitions(
            metadata, producer, partitions, self._clock.now_ms(), client_version=client_version
        )
        if changed is not metadata:
            self._store(partition, changed)

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
        """End the producer's transaction, and return its next id and epoch.

        See `transaction_state`. When it returns, the decision is in the log, and so is every marker
        unless a partition is offline.
        """
        _, metadata = self._find(transactional_id)
        fresh = None
        if client_version >= TRANSACTION_V2 and metadata.is_epoch_exhausted:
            fresh = await self._new_producer_id()
        # The await above let other requests run: the transaction may have changed.
        partition, metadata = self._find(transactional_id)
        ended = end_transaction(
            metadata,
            producer,
            self._clock.now_ms(),
            commit=commit,
            client_version=client_version,
            fresh_producer_id=fresh,
        )
        if ended.metadata is not None:
            self._store(partition, ended.metadata)
            # Shielded: a client that disconnects must not stop the markers.
            await asyncio.shield(self._end(partition, ended.metadata))
        return ended.producer

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Raises TransactionalIdNotFoundError for an unknown id."""
        if self._log.partition_count is not None:
            found = self._partition_of(transactional_id).by_id.get(transactional_id)
            if found is not None:
                return found
        raise TransactionalIdNotFoundError(
            f"no producer has the transactional id transactional_id={transactional_id}"
        )

    def transactions(self) -> Iterator[TransactionMetadata]:
        """All transactions. Raises CoordinatorLoadInProgressError until all are loaded."""
        if len(self._partitions) < (self._log.partition_count or 0):
            raise CoordinatorLoadInProgressError("transaction state is being loaded")
        for partition in self._partitions.values():
            yield from partition.by_id.values()

    # ---- state

    async def _ensure_topic(self) -> None:
        if self._log.partition_count is None and await self._run_control(self._log.create):
            self._forget_deleted_topic()
            self._install_empty()

    def _forget_deleted_topic(self) -> None:
        """Drop the state of a deleted topic of this name, if there was one."""
        self._partitions.clear()
        for timer in self._timeouts.values():
            timer.cancel()
        self._timeouts.clear()

    def _install_empty(self) -> None:
        for index in range(self._log.partition_count or 0):
            self._install(_LoadedPartition(index, self._log.coordinator_epoch(index)))

    def _partition_of(self, transactional_id: str) -> _LoadedPartition:
        count = self._log.partition_count
        index = coordinator_partition(transactional_id, count or 1)
        partition = self._partitions.get(index)
        if partition is None:
            raise CoordinatorLoadInProgressError(
                f"transaction state is being loaded transactional_id={transactional_id}"
            )
        return partition

    def _find(self, transactional_id: str) -> tuple[_LoadedPartition, TransactionMetadata]:
        if self._log.partition_count is not None:
            partition = self._partition_of(transactional_id)
            metadata = partition.by_id.get(transactional_id)
            if metadata is not None:
                return partition, metadata
        raise InvalidProducerIdMappingError(
            f"the transactional id has no producer id transactional_id={transactional_id}"
        )

    def _store(self, partition: _LoadedPartition, metadata: TransactionMetadata) -> None:
        self._log.append(partition.index, metadata)
        was_ongoing = metadata.transactional_id in self._timeouts
        partition.by_id[metadata.transactional_id] = metadata
        if metadata.state is TransactionState.ONGOING:
            if not was_ongoing:
                self._arm_timeout(metadata)
        elif was_ongoing:
            self._timeouts.pop(metadata.transactional_id).cancel()

    # ---- ending

    def _end(
        self, partition: _LoadedPartition, prepared: TransactionMetadata
    ) -> asyncio.Future[None]:
        """Write the markers of a prepared transaction. The first of them are written at once."""
        unmarked = deque(sorted(prepared.partitions))
        ending = _Ending(partition, prepared, unmarked, self._loop.create_future())
        self._write_markers(ending)
        return ending.done

    def _write_markers(self, ending: _Ending) -> None:
        for _ in range(min(MARKERS_PER_TURN, len(ending.unmarked))):
            if not self._is_closed:
                self._write_marker(ending, ending.unmarked.popleft())
        if self._is_closed:
            ending.done.set_result(None)
        elif ending.unmarked:
            # In another turn of the loop, so that other requests run in between.
            self._loop.call_soon(self._write_markers, ending)
        else:
            self._complete(ending)

    def _write_marker(self, ending: _Ending, partition: TopicPartition) -> None:
        metadata = ending.metadata
        try:
            self._markers.write(
                partition,
                metadata.producer,
                commit=metadata.is_commit,
                coordinator_epoch=ending.partition.epoch,
            )
        except UnknownTopicOrPartitionError:
            # The records of a deleted topic are gone, so there is nothing to mark.
            logger.info("no marker for a deleted partition partition=%s", partition)
        except FencedError as error:
            logger.warning("a newer producer has ended the transaction error=%r", str(error))
        except IsothermError:
            # The state stays PREPARE, so the next start tries all markers again.
            ending.has_failed = True
            logger.exception(
                "a marker cannot be written partition=%s transactional_id=%s",
                partition,
                metadata.transactional_id,
            )

    def _complete(self, ending: _Ending) -> None:
        metadata = ending.metadata
        try:
            if not ending.has_failed:
                self._store(ending.partition, complete_transaction(metadata, self._clock.now_ms()))
        except IsothermError:
            logger.exception(
                "a transaction cannot be completed transactional_id=%s", metadata.transactional_id
            )
        finally:
            ending.done.set_result(None)

    # ---- time

    def _arm_timeout(self, metadata: TransactionMetadata) -> None:
        delay_s = max(0, metadata.deadline_ms - self._clock.now_ms()) / 1000
        self._timeouts[metadata.transactional_id] = self._loop.call_later(
            delay_s, self._on_timeout, metadata.transactional_id
        )

    def _on_timeout(self, transactional_id: str) -> None:
        try:
            partition, metadata = self._find(transactional_id)
        except InvalidProducerIdMappingError:
            return  # the topic was deleted
        now_ms = self._clock.now_ms()
        if now_ms < metadata.deadline_ms:  # the wall clock is behind the loop's
            self._arm_timeout(metadata)
            return
        logger.info(
            "transaction timed out and is aborted transactional_id=%s producer_id=%d timeout_ms=%d",
            transactional_id,
            metadata.producer_id,
            metadata.timeout_ms,
        )
        # The higher epoch fences the producer: its late records are refused.
        fenced = fence(metadata, now_ms)
        try:
            self._store(partition, fenced)
        except IsothermError:
            logger.exception(
                "a transaction cannot be aborted transactional_id=%s", transactional_id
            )
            return
        self._end(partition, fenced)

    def _expire_later(self) -> None:
        if not self._is_closed:
            self._expiration = self._loop.call_later(
                self._config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
                self._expire_ids,
            )

    def _expire_ids(self) -> None:
        """Remove transactional ids that have not been used for transactional.id.expiration.ms."""
        for partition in self._partitions.values():
            try:
                self._expire_ids_of(partition)
            except IsothermError:
                logger.exception(
                    "transactional ids cannot be forgotten partition=%d", partition.index
                )
        self._expire_later()

    def _expire_ids_of(self, partition: _LoadedPartition) -> None:
        now_ms = self._clock.now_ms()
        expiration_ms = self._config.transactional_id_expiration_ms
        expired = [
            transactional_id
            for transactional_id, metadata in partition.by_id.items()
            if metadata.is_expired(now_ms, expiration_ms)
        ]
        for start in range(0, len(expired), FORGOTTEN_PER_BATCH):
            batch = expired[start : start + FORGOTTEN_PER_BATCH]
            # Tombstones first: if the append fails, the ids stay known.
            self._log.forget(partition.index, batch)
            for transactional_id in batch:
                del partition.by_id[transactional_id]
