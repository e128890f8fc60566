"""Every error that crosses a package border, classed by what the caller does about it.

    IsothermError
    ├── RetriableError                    try again later: nothing is wrong with the request
    │   ├── RemoteStorageError                a call to the object store failed
    │   │   └── RemoteStorageThrottledError      the store asked for fewer requests
    │   ├── RemoteStorageNotReadyError        the metadata of this partition is still being read
    │   ├── NotEnoughMemoryError              a bounded buffer or queue is full
    │   ├── SegmentKeyTakenError              an earlier copy of a remote segment is there still
    │   ├── RequestTimedOutError
    │   ├── BrokerUnreachableError            no broker of a cluster that we are a client of answers
    │   ├── CoordinatorLoadInProgressError · CoordinatorNotAvailableError
    │   ├── NotEnoughReplicasError
    │   ├── ConcurrentTransactionsError
    │   ├── LogCleaningAbortedError           the log is wanted for something else: clean it later
    │   └── NotLeaderOrFollowerError
    ├── FencedError                       somebody newer exists: stop
    │   ├── FencedLeaderEpochError · UnknownLeaderEpochError
    │   └── InvalidProducerEpochError · ProducerFencedError · TransactionCoordinatorFencedError
    ├── RejectedError                     the request or the configuration is wrong: change it
    │   ├── ConfigError
    │   │   └── UnknownConfigError
    │   ├── OffsetOutOfRangeError · UnknownTopicOrPartitionError · UnknownTopicIdError
    │   │   InvalidTopicError · TopicAlreadyExistsError · InvalidPartitionsError
    │   │   InvalidReplicationFactorError · InvalidReplicaAssignmentError
    │   │   TopicDeletionDisabledError · PolicyViolationError · InvalidRequestError
    │   │   NoReassignmentInProgressError · ThrottlingQuotaExceededError
    │   ├── CorruptMessageError               a produced batch that fails its checks
    │   ├── RefusedRecordsError               records of a batch may not be here; names them
    │   │   └── InvalidRecordError · InvalidTimestampError
    │   ├── RecordTooLargeError · RecordListTooLargeError · UnsupportedForMessageFormatError
    │   │   UnsupportedCompressionTypeError
    │   ├── OutOfOrderSequenceError
    │   ├── InvalidTxnStateError · InvalidProducerIdMappingError · TransactionAbortableError
    │   │   InvalidTransactionTimeoutError · TransactionalIdNotFoundError
    │   │   TransactionalIdAuthorizationError · InvalidRegularExpressionError
    │   ├── UnsupportedVersionError · InvalidUpdateVersionError · InvalidGroupIdError
    │   └── RemoteResourceNotFoundError       the tier does not hold this segment or index
    ├── CorruptDataError                  stored data is damaged: quarantine or rebuild it
    │   ├── CorruptRecordError                a batch on disk or in the bucket
    │   ├── CorruptLogError                   files of a partition's log: it is offline, the broker is not
    │   ├── CorruptIndexError · CorruptSnapshotError · CorruptCheckpointError
    │   ├── CorruptMetadataError              a metadata record or manifest
    │   ├── CorruptObjectError                an object is missing bytes or disagrees with metadata
    │   └── RemoteHoleError                   no segment of the remote tier holds an offset of the log
    ├── LogDirFailedError                 a log directory cannot be used: take it offline
    └── SparkJobError                     Spark, or something in its tasks, failed: see the reason

Messages are a lowercase fact followed by key=value pairs; the cause is chained, not repeated.
Which Kafka error code a client gets for each is decided in `isotherm.broker.error_mapping` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class IsothermError(Exception):
    """Root of every error that Isotherm raises on purpose."""


class RetriableError(IsothermError):
    """Nothing is wrong with the request: the same call may succeed later."""


class RemoteStorageError(RetriableError):
    """A call to the object store failed. Kafka: RemoteStorageException.

    `reason` are the store's words, where it said any; `is_refusal` tells that they stay the same
    until the configuration or the rights are changed.
    """

    reason: str = ""
    is_refusal: bool = False


class RemoteStorageThrottledError(RemoteStorageError):
    """The object store asked for fewer requests."""


class RemoteStorageNotReadyError(RetriableError):
    """The remote metadata of this partition is not read yet. Kafka: ReplicaNotAvailable."""


class NotEnoughMemoryError(RetriableError):
    """A bounded buffer or queue is full."""


class SegmentKeyTakenError(RetriableError):
    """An earlier copy of this segment, as a crash may leave one, holds its key: ask what it is."""


class RequestTimedOutError(RetriableError):
    """The work did not end within the time the request allowed."""


class BrokerUnreachableError(RetriableError):
    """No broker answers at the address, or it answered with an error; the message says why."""


class CoordinatorLoadInProgressError(RetriableError):
    """The coordinator's state is still being loaded."""


class CoordinatorNotAvailableError(RetriableError):
    """The coordinator's topic is not there, or cannot be written."""


class ConcurrentTransactionsError(RetriableError):
    """The transaction of this id is just being ended."""


class LogCleaningAbortedError(RetriableError):
    """Somebody deletes, truncates or reconfigures the log, or the broker stops."""


class NotLeaderOrFollowerError(RetriableError):
    """This broker does not lead the partition (now): refresh metadata."""


class NotEnoughReplicasError(RetriableError):
    """acks=all asks for more in-sync replicas than the partition has."""


class FencedError(IsothermError):
    """Somebody with a newer epoch exists: the caller stops."""


class FencedLeaderEpochError(FencedError):
    """The request carries an older leader epoch than the broker's."""


class UnknownLeaderEpochError(FencedError):
    """The request carries a newer leader epoch than the broker's."""


class InvalidProducerEpochError(FencedError):
    """A newer instance of this producer id exists."""


class ProducerFencedError(FencedError):
    """A newer producer uses this transactional id. Kafka: ProducerFencedException."""


class TransactionCoordinatorFencedError(FencedError):
    """A marker comes from a coordinator that has been replaced."""


class RejectedError(IsothermError):
    """The request or configuration is wrong and stays wrong until it is changed."""


class ConfigError(RejectedError):
    """A configuration value is outside what its key allows."""


class UnknownConfigError(ConfigError):
    """No configuration key has this name; the message names the nearest one."""


class OffsetOutOfRangeError(RejectedError):
    """The offset is below the (local) log start or beyond the log end."""


class UnknownTopicOrPartitionError(RejectedError):
    """No such topic or partition."""


class UnknownTopicIdError(RejectedError):
    """No topic has this id."""


class InvalidTopicError(RejectedError):
    """The topic name is not legal."""


class TopicAlreadyExistsError(RejectedError):
    """A topic of this name exists."""


class InvalidPartitionsError(RejectedError):
    """The number of partitions is not legal."""


class InvalidReplicationFactorError(RejectedError):
    """More replicas are asked for than there are brokers."""


class InvalidReplicaAssignmentError(RejectedError):
    """The replicas a topic is to have are not legal."""


class TopicDeletionDisabledError(RejectedError):
    """delete.topic.enable is false."""


class PolicyViolationError(RejectedError):
    """The request breaks a rule of this broker's configuration."""


class ThrottlingQuotaExceededError(RejectedError):
    """The client is over a quota: it asks again after the throttle time of the answer."""


class NoReassignmentInProgressError(RejectedError):
    """No partition is being moved, so there is nothing to cancel."""


class InvalidRequestError(RejectedError):
    """The request contradicts itself or the protocol."""


class CorruptMessageError(RejectedError):
    """A produced batch fails its CRC, length or structure checks."""


class RecordFault(NamedTuple):
    """A record for which its batch is refused; `batch_index` counts the batch's records, from 0."""

    batch_index: int
    message: str


class RefusedRecordsError(RejectedError):
    """Records of a batch may not be here. Kafka: RecordValidationException.

    `faults` are the records that are known to be at fault: none where it is the batch as a whole.
    """

    def __init__(self, message: str = "", faults: Sequence[RecordFault] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidRecordError(RefusedRecordsError):
    """A record is well-formed but not allowed here (no key on a compacted topic, ...)."""


class InvalidTimestampError(RefusedRecordsError):
    """A record's timestamp is outside message.timestamp.before/after.max.ms."""


class RecordTooLargeError(RejectedError):
    """A batch is larger than max.message.bytes."""


class RecordListTooLargeError(RejectedError):
    """The batches of one partition together are larger than a segment."""


class UnsupportedForMessageFormatError(RejectedError):
    """The batch has an old format (magic 0 or 1)."""


class UnsupportedCompressionTypeError(RejectedError):
    """The codec bits name no codec, or one that the request's version does not allow."""


class OutOfOrderSequenceError(RejectedError):
    """An idempotent producer's sequence numbers have a gap."""


class InvalidTxnStateError(RejectedError):
    """The producer does what the state of its transaction does not allow."""


class InvalidProducerIdMappingError(RejectedError):
    """The producer id is not the one that this transactional id has now."""


class TransactionAbortableError(RejectedError):
    """The producer has to abort its transaction, and can go on after that (KIP-890)."""


class InvalidTransactionTimeoutError(RejectedError):
    """The transaction timeout is not positive, or above transaction.max.timeout.ms."""


class TransactionalIdNotFoundError(RejectedError):
    """No producer has this transactional id."""


class TransactionalIdAuthorizationError(RejectedError):
    """Transactional records came in a request that names no transactional id."""


class InvalidRegularExpressionError(RejectedError):
    """The text is no pattern of RE2's."""


class UnsupportedVersionError(RejectedError):
    """This version of the API or format is not served."""


class InvalidUpdateVersionError(RejectedError):
    """A feature cannot have this level, or cannot be changed to it."""


class InvalidGroupIdError(RejectedError):
    """No group can have this name."""


class RemoteResourceNotFoundError(RejectedError):
    """The remote tier does not hold this segment or index."""


class CorruptDataError(IsothermError):
    """Stored data is damaged: the caller quarantines or rebuilds it."""


class CorruptRecordError(CorruptDataError):
    """A record batch on disk or in the bucket is damaged."""


class CorruptLogError(CorruptDataError):
    """A file of a partition's log is damaged or lost, and cannot be made again: the partition is
    offline. `hint` says what an operator can do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class CorruptIndexError(CorruptDataError):
    """An index file is damaged: rebuild it from the log, or fetch it again."""


class CorruptSnapshotError(CorruptDataError):
    """A producer snapshot is damaged: use an older one."""


class CorruptCheckpointError(CorruptDataError):
    """A checkpoint file is malformed."""


class CorruptMetadataError(CorruptDataError):
    """A metadata record or a manifest cannot be decoded."""


class CorruptObjectError(CorruptDataError):
    """A bucket object is short, or disagrees with its metadata."""


class RemoteHoleError(CorruptDataError):
    """Offsets above the log start that neither tier holds. `place` names the hole, whichever of
    its offsets was asked for."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class LogDirFailedError(IsothermError):
    """A log directory cannot be read or written: it goes offline."""


class SparkJobError(IsothermError):
    """A Spark job failed for a reason that is none of Isotherm's own errors."""
