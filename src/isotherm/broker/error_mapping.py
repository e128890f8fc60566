"""The single mapping from exceptions to the error codes that clients receive.

An exception gets the code of its nearest listed superclass, so a new subclass has its parent's code
until it is listed. An exception without a listed superclass is a bug and gets UNKNOWN_SERVER_ERROR.
Kafka's Errors.forException also follows the class hierarchy.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from isotherm import errors

ERROR_CODES: dict[type[BaseException], ErrorCode] = {
    # Retriable. If the object store fails, Kafka returns UNKNOWN_SERVER_ERROR, which consumers
    # raise in the application. With these codes every client refreshes its metadata and retries.
    errors.RemoteStorageError: ErrorCode.kafka_storage_error,
    errors.RemoteStorageNotReadyError: ErrorCode.replica_not_available,
    errors.SegmentKeyTakenError: ErrorCode.replica_not_available,
    errors.NotEnoughMemoryError: ErrorCode.replica_not_available,
    errors.RequestTimedOutError: ErrorCode.request_timed_out,
    errors.BrokerUnreachableError: ErrorCode.network_exception,
    errors.PeerDisconnectedError: ErrorCode.network_exception,
    errors.PeerTimeoutError: ErrorCode.network_exception,
    errors.CoordinatorLoadInProgressError: ErrorCode.coordinator_load_in_progress,
    errors.CoordinatorNotAvailableError: ErrorCode.coordinator_not_available,
    errors.NotCoordinatorError: ErrorCode.not_coordinator,
    errors.OffsetNotAvailableError: ErrorCode.offset_not_available,
    errors.NotEnoughReplicasError: ErrorCode.not_enough_replicas,
    errors.ConcurrentTransactionsError: ErrorCode.concurrent_transactions,
    errors.NotLeaderOrFollowerError: ErrorCode.not_leader_or_follower,
    errors.NotControllerError: ErrorCode.not_controller,
    errors.ShareStateError: ErrorCode.unknown_server_error,
    errors.ShareSessionLimitReachedError: ErrorCode.share_session_limit_reached,
    # Fenced.
    errors.FencedLeaderEpochError: ErrorCode.fenced_leader_epoch,
    errors.FencedStateEpochError: ErrorCode.fenced_state_epoch,
    errors.UnknownLeaderEpochError: ErrorCode.unknown_leader_epoch,
    errors.InvalidProducerEpochError: ErrorCode.invalid_producer_epoch,
    errors.ProducerFencedError: ErrorCode.producer_fenced,
    errors.TransactionCoordinatorFencedError: ErrorCode.transaction_coordinator_fenced,
    # Rejected.
    errors.LogEndMovedError: ErrorCode.operation_not_attempted,
    errors.ConfigError: ErrorCode.invalid_config,
    errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
    errors.UnknownTopicOrPartitionError: ErrorCode.unknown_topic_or_partition,
    errors.UnknownTopicIdError: ErrorCode.unknown_topic_id,
    errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
    errors.TopicAlreadyExistsError: ErrorCode.topic_already_exists,
    errors.InvalidPartitionsError: ErrorCode.invalid_partitions,
    errors.InvalidReplicationFactorError: ErrorCode.invalid_replication_factor,
    errors.InvalidReplicaAssignmentError: ErrorCode.invalid_replica_assignment,
    errors.TopicDeletionDisabledError: ErrorCode.topic_deletion_disabled,
    errors.PolicyViolationError: ErrorCode.policy_violation,
    errors.NoReassignmentInProgressError: ErrorCode.no_reassignment_in_progress,
    errors.InvalidRequestError: ErrorCode.invalid_request,
    errors.InvalidRecordStateError: ErrorCode.invalid_record_state,
    errors.ShareSessionNotFoundError: ErrorCode.share_session_not_found,
    errors.InvalidShareSessionEpochError: ErrorCode.invalid_share_session_epoch,
    errors.ThrottlingQuotaExceededError: ErrorCode.throttling_quota_exceeded,
    errors.CorruptMessageError: ErrorCode.corrupt_message,
    errors.InvalidRecordError: ErrorCode.invalid_record,
    errors.InvalidTimestampError: ErrorCode.invalid_timestamp,
    errors.RecordTooLargeError: ErrorCode.message_too_large,
    errors.RecordListTooLargeError: ErrorCode.record_list_too_large,
    errors.UnsupportedForMessageFormatError: ErrorCode.unsupported_for_message_format,
    errors.UnsupportedCompressionTypeError: ErrorCode.unsupported_compression_type,
    errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
    errors.InvalidGroupIdError: ErrorCode.invalid_group_id,
    errors.InvalidTxnStateError: ErrorCode.invalid_txn_state,
    errors.InvalidProducerIdMappingError: ErrorCode.invalid_producer_id_mapping,
    errors.TransactionAbortableError: ErrorCode.transaction_abortable,
    errors.InvalidTransactionTimeoutError: ErrorCode.invalid_transaction_timeout,
    errors.TransactionalIdNotFoundError: ErrorCode.transactional_id_not_found,
    errors.TransactionalIdAuthorizationError: ErrorCode.transactional_id_authorization_failed,
    errors.InvalidRegularExpressionError: ErrorCode.invalid_regular_expression,
    errors.InvalidUpdateVersionError: ErrorCode.invalid_update_version,
    errors.SaslAuthenticationError: ErrorCode.sasl_authentication_failed,
    errors.IllegalSaslStateError: ErrorCode.illegal_sasl_state,
    errors.UnsupportedVersionError: ErrorCode.unsupported_version,
    errors.RejectedError: ErrorCode.invalid_request,
    # Damaged data and disks. Only an operator makes the other version or the key readable:
    # consumers wait for it.
    errors.RemoteResourceNotFoundError: ErrorCode.unknown_server_error,
    errors.UnreadableDataError: ErrorCode.kafka_storage_error,
    errors.UnknownObjectVersionError: ErrorCode.kafka_storage_error,
    errors.KeyPairNotConfiguredError: ErrorCode.kafka_storage_error,
    errors.CorruptDataError: ErrorCode.corrupt_message,
    errors.LogDirFailedError: ErrorCode.kafka_storage_error,
}


def error_code(error: BaseException) -> ErrorCode:
    """The code of the nearest listed superclass of `error`, or UNKNOWN_SERVER_ERROR."""
    for ancestor in type(error).__mro__:
        code = ERROR_CODES.get(ancestor)
        if code is not None:
            return code
    return ErrorCode.unknown_server_error


def error_message(error: BaseException) -> str:
    """The text for a client: an Isotherm error's own message, and no detail of an unexpected
    error.
    """
    if isinstance(error, errors.IsothermError):
        return str(error)
    return "the server met an unexpected error"
