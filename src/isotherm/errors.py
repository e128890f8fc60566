"""Every error that crosses a package border, classified by what the caller does.

    IsothermError
    ├── RetriableError                    try again later: nothing is wrong with the request
    │   ├── RemoteStorageError                a call to the object store failed
    │   │   └── RemoteStorageThrottledError      the store asked for fewer requests
    │   ├── RemoteStorageNotReadyError        the metadata of this partition is still being read
    │   │   └── EventOvertakenError              other brokers write to the metadata partition
    │   ├── NotEnoughMemoryError              a bounded buffer or queue is full
    │   ├── SegmentKeyTakenError              an earlier copy of a remote segment exists
    │   ├── RequestTimedOutError
    │   ├── BrokerUnreachableError            no broker of another cluster answers
    │   ├── SchemaRegistryError               the schema registry does not answer, or refuses
    │   ├── PeerDisconnectedError · PeerTimeoutError
    │   ├── CoordinatorLoadInProgressError · CoordinatorNotAvailableError · NotCoordinatorError
    │   ├── NotEnoughReplicasError
    │   ├── ConcurrentTransactionsError
    │   ├── LogCleaningAbortedError           another operation needs the log: clean it later
    │   ├── OffsetNotAvailableError           a new leader does not know yet what is committed
    │   ├── ShareSessionLimitReachedError
    │   └── NotLeaderOrFollowerError · NotControllerError
    ├── FencedError                       a newer epoch exists: stop
    │   ├── FencedLeaderEpochError · UnknownLeaderEpochError
    │   ├── InvalidProducerEpochError · ProducerFencedError · TransactionCoordinatorFencedError
    │   │   FencedStateEpochError
    │   └── TableOvertakenError               another run has written to the table
    ├── RejectedError                     the request or the configuration is wrong: change it
    │   ├── ConfigError
    │   │   ├── UnknownConfigError
    │   │   └── KeyPairNotConfiguredError         an encrypted segment's; UnreadableDataError too
    │   ├── OffsetOutOfRangeError · UnknownTopicOrPartitionError · UnknownTopicIdError
    │   │   InvalidTopicError · TopicAlreadyExistsError · InvalidPartitionsError
    │   │   InvalidReplicationFactorError · InvalidReplicaAssignmentError
    │   │   TopicDeletionDisabledError · PolicyViolationError · InvalidRequestError
    │   │   NoReassignmentInProgressError · ThrottlingQuotaExceededError
    │   ├── CorruptMessageError               a produced batch that fails its checks
    │   ├── RefusedRecordsError               records of a batch are not allowed; names them
    │   │   └── InvalidRecordError · InvalidTimestampError
    │   ├── RecordTooLargeError · RecordListTooLargeError · UnsupportedForMessageFormatError
    │   │   UnsupportedCompressionTypeError
    │   ├── OutOfOrderSequenceError
    │   ├── OffsetsOutOfOrderError · UnexpectedAppendOffsetError   of batches that a leader sent
    │   ├── LogEndMovedError                  a conditional append: the log does not end there
    │   ├── InvalidTxnStateError · InvalidProducerIdMappingError · TransactionAbortableError
    │   │   InvalidTransactionTimeoutError · TransactionalIdNotFoundError
    │   │   TransactionalIdAuthorizationError · InvalidRegularExpressionError
    │   ├── SaslAuthenticationError · IllegalSaslStateError
    │   ├── UnsupportedVersionError
    │   │   └── UnknownObjectVersionError         an object's; UnreadableDataError too
    │   ├── InvalidUpdateVersionError · InvalidGroupIdError · InvalidRecordStateError
    │   └── ShareSessionNotFoundError · InvalidShareSessionEpochError
    ├── UnreadableDataError               this piece of stored data cannot be used: report it, go on
    │   ├── RemoteResourceNotFoundError       the remote tier lacks this segment or index
    │   ├── ShareStateError                   the coordinator refuses a share partition's state
    │   └── CorruptDataError                  stored data is damaged: quarantine or rebuild it
    │       ├── CorruptRecordError                a batch on disk or in the bucket
    │       │   └── DecompressedSizeError            larger than allowed when decompressed
    │       ├── CorruptLogError                   files of a partition's log: only it is offline
    │       ├── CorruptIndexError · CorruptSnapshotError · CorruptCheckpointError
    │       ├── CorruptMetadataError              a metadata record or manifest
    │       ├── CorruptObjectError                an object lacks bytes or contradicts its metadata
    │       └── RemoteHoleError                   no remote segment has this offset of the log
    ├── LogDirFailedError                 a log directory cannot be used: take it offline
    └── SparkJobError                     Spark or one of its tasks failed: see the reason

Messages are a lowercase fact followed by key=value pairs. The cause is chained, not repeated.
`isotherm.broker.error_mapping` alone decides the Kafka error code that a client gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.printable import without_passwords


class IsothermError(Exception):
    """Root of all errors of Isotherm. Any other exception is a bug.

    Its text has no passwords of addresses, also in a program that only calls Isotherm. Its cause
    may.
    """

    def __str__(self) -> str:
        return without_passwords(super().__str__())


class RetriableError(IsothermError):
    """Nothing is wrong with the request: the same call may succeed later."""


class RemoteStorageError(RetriableError):
    """A call to the object store failed. Kafka: RemoteStorageException.

    `reason` is the store's own message, if it sent one. With `is_refusal` the error persists until
    the configuration or the permissions change.
    """

    reason: str = ""
    is_refusal: bool = False


class RemoteStorageThrottledError(RemoteStorageError):
    """The object store asked for fewer requests."""


class RemoteStorageNotReadyError(RetriableError):
    """The remote metadata of this partition is still being read. Kafka: ReplicaNotAvailable."""


class EventOvertakenError(RemoteStorageNotReadyError):
    """Another broker has recorded a metadata event since this one was decided. Nothing is
    recorded."""


class NotEnoughMemoryError(RetriableError):
    """A bounded buffer or queue is full."""


class SegmentKeyTakenError(RetriableError):
    """An earlier copy of this segment, perhaps left by a crash, has its key: check its state."""


class RequestTimedOutError(RetriableError):
    """The operation took longer than the timeout of the request."""


class BrokerUnreachableError(RetriableError):
    """No broker answers at the address, or it answered with an error. The message has the cause."""


class SchemaRegistryError(RetriableError):
    """The schema registry does not answer, or refuses the request. The message has the cause."""


class PeerDisconnectedError(RetriableError):
    """The connection to another node of the cluster was refused, lost or closed, or its answer is
    malformed. The node may have processed the request."""


class PeerTimeoutError(RetriableError):
    """Another node of the cluster did not accept a connection, or did not answer, in time. It may
    have processed the request."""


class CoordinatorLoadInProgressError(RetriableError):
    """The coordinator's state is still being loaded."""


class CoordinatorNotAvailableError(RetriableError):
    """The coordinator's topic does not exist, or cannot be written."""


class ShareSessionLimitReachedError(RetriableError):
    """This broker has its maximum of share sessions."""


class NotCoordinatorError(RetriableError):
    """This broker is not the coordinator of the group or transactional id (now): look for it."""


class ConcurrentTransactionsError(RetriableError):
    """The transaction of this id is being ended."""


class LogCleaningAbortedError(RetriableError):
    """The log is deleted, truncated or reconfigured, or the broker stops."""


class NotLeaderOrFollowerError(RetriableError):
    """This broker is not the leader of the partition (now): refresh metadata."""


class NotControllerError(RetriableError):
    """This process is not the active controller: ask the one that is."""


class OffsetNotAvailableError(RetriableError):
    """A new leader's high watermark is below the start of its epoch: followers have yet to
    fetch."""


class NotEnoughReplicasError(RetriableError):
    """acks=all requires more in-sync replicas than the partition has."""


class FencedError(IsothermError):
    """A newer epoch exists: the caller stops."""


class FencedLeaderEpochError(FencedError):
    """The request carries an older leader epoch than the broker's."""


class FencedStateEpochError(FencedError):
    """The state of a share partition has begun anew since the epoch of the request."""


class UnknownLeaderEpochError(FencedError):
    """The request carries a newer leader epoch than the broker's."""


class InvalidProducerEpochError(FencedError):
    """A newer instance of this producer id exists."""


class ProducerFencedError(FencedError):
    """A newer producer uses this transactional id. Kafka: ProducerFencedException."""


class TransactionCoordinatorFencedError(FencedError):
    """A marker comes from a coordinator that was replaced."""


class TableOvertakenError(FencedError):
    """Another run has written to the table of a topic since this one read the covered offsets."""


class RejectedError(IsothermError):
    """The request or configuration is wrong and stays wrong until it is changed."""


class LogEndMovedError(RejectedError):
    """A conditional append was refused: the log does not end at the offset that it names."""


class ConfigError(RejectedError):
    """A configuration value is outside what its key allows."""


class UnknownConfigError(ConfigError):
    """No configuration key has this name. The message suggests the nearest one."""


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
    """More replicas are requested than there are brokers."""


class InvalidReplicaAssignmentError(RejectedError):
    """The requested replicas of a topic are not legal."""


class TopicDeletionDisabledError(RejectedError):
    """delete.topic.enable is false."""


class PolicyViolationError(RejectedError):
    """The request breaks a rule of this broker's configuration."""


class ThrottlingQuotaExceededError(RejectedError):
    """The client is over a quota: it retries after the throttle time of the response."""


class NoReassignmentInProgressError(RejectedError):
    """No partition is being reassigned, so there is nothing to cancel."""


class InvalidRequestError(RejectedError):
    """The request contradicts itself or the protocol."""


class InvalidRecordStateError(RejectedError):
    """A member of a share group acknowledges records that it has not acquired."""


class ShareSessionNotFoundError(RejectedError):
    """The member has no share session here: it begins one."""


class InvalidShareSessionEpochError(RejectedError):
    """A request of a share session is out of step: the member begins a new session."""


class CorruptMessageError(RejectedError):
    """A produced batch fails its CRC, length or structure checks."""


class RecordFault(NamedTuple):
    """An invalid record of a refused batch. `batch_index` is its index in the batch, from 0."""

    batch_index: int
    message: str


class RefusedRecordsError(RejectedError):
    """Records of a batch are not allowed. Kafka: RecordValidationException.

    `faults` are the invalid records; empty if the batch is invalid as a whole.
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


class OffsetsOutOfOrderError(RejectedError):
    """The offsets of batches that a leader sent do not rise."""


class UnexpectedAppendOffsetError(RejectedError):
    """The first batch that a leader sent begins below the log end.

    `first_offset` and `last_offset` (inclusive) are those of the batches: a follower whose log is
    empty can begin it anew there.
    """

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class InvalidTxnStateError(RejectedError):
    """The state of the producer's transaction does not allow the request."""


class InvalidProducerIdMappingError(RejectedError):
    """The producer id is not the present one of this transactional id."""


class TransactionAbortableError(RejectedError):
    """The producer must abort its transaction, and can then continue (KIP-890)."""


class InvalidTransactionTimeoutError(RejectedError):
    """The transaction timeout is not positive, or above transaction.max.timeout.ms."""


class TransactionalIdNotFoundError(RejectedError):
    """No producer has this transactional id."""


class TransactionalIdAuthorizationError(RejectedError):
    """A request has transactional records but no transactional id."""


class InvalidRegularExpressionError(RejectedError):
    """The text is not a regular expression in RE2's syntax."""


class SaslAuthenticationError(RejectedError):
    """The client failed to authenticate. The message is for the client and reveals nothing about
    users."""


class IllegalSaslStateError(RejectedError):
    """A request comes before its client has authenticated, or after its session has ended."""


class UnsupportedVersionError(RejectedError):
    """This version of the API or format is not supported."""


class InvalidUpdateVersionError(RejectedError):
    """A feature does not have this level, or cannot be changed to it."""


class InvalidGroupIdError(RejectedError):
    """The group id is not legal."""


class UnreadableDataError(IsothermError):
    """A piece of stored data cannot be used. What one object of a bucket contains, or its absence,
    raises nothing else: a job reports it and goes on with the other objects."""


class ShareStateError(UnreadableDataError):
    """The state of a share partition cannot be read or written: its coordinator refuses it."""


class RemoteResourceNotFoundError(UnreadableDataError):
    """The remote tier does not have this segment or index."""


class UnknownObjectVersionError(UnsupportedVersionError, UnreadableDataError):
    """An object has a version that this software does not know. It is not damaged: newer software
    may read it."""


class KeyPairNotConfiguredError(ConfigError, UnreadableDataError):
    """A segment is encrypted under a key pair that the settings lack. With the key pair it can be
    read, so a query never leaves its records out."""


class CorruptDataError(UnreadableDataError):
    """Stored data is damaged: the caller quarantines or rebuilds it."""


class CorruptRecordError(CorruptDataError):
    """A record batch on disk or in the bucket is damaged."""


class DecompressedSizeError(CorruptRecordError):
    """A batch is larger than allowed when it is decompressed."""


class CorruptLogError(CorruptDataError):
    """A file of a partition's log is damaged or lost and cannot be rebuilt: the partition is
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
    """Offsets above the log start are in neither tier. `place` identifies the hole, for any of its
    offsets."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class LogDirFailedError(IsothermError):
    """A log directory cannot be read or written: it goes offline."""


class SparkJobError(IsothermError):
    """A Spark job failed for a reason that is none of Isotherm's own errors."""
