"""The protocol's error code of each error class. The codes are Kafka's."""

from __future__ import annotations

import inspect

import pytest
from kio.schema.errors import ErrorCode

from isotherm import errors
from isotherm.broker.error_mapping import ERROR_CODES, error_code, error_message

# Errors that no response contains: their callers handle them, or only jobs raise them.
GROUPS = {
    errors.IsothermError,
    errors.RetriableError,
    errors.FencedError,
    errors.CorruptDataError,
    errors.LogCleaningAbortedError,
    errors.SparkJobError,
    errors.SchemaRegistryError,
    errors.TableOvertakenError,
}

LEAVES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.IsothermError) and found not in GROUPS | {errors.RejectedError}
]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_has_a_code(kind: type[Exception]) -> None:
    assert any(ancestor in ERROR_CODES for ancestor in kind.__mro__)


@pytest.mark.parametrize("kind", [k for k in LEAVES if issubclass(k, errors.RetriableError)])
def test_retriable_errors_have_retriable_codes(kind: type[Exception]) -> None:
    assert error_code(kind()).retriable


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.OffsetOutOfRangeError, 1),
        (errors.CorruptMessageError, 2),
        (errors.UnknownTopicOrPartitionError, 3),
        (errors.NotLeaderOrFollowerError, 6),
        (errors.RequestTimedOutError, 7),
        (errors.RecordTooLargeError, 10),
        (errors.InvalidTopicError, 17),
        (errors.RecordListTooLargeError, 18),
        (errors.NotEnoughReplicasError, 19),
        (errors.InvalidTimestampError, 32),
        (errors.UnsupportedVersionError, 35),
        (errors.TopicAlreadyExistsError, 36),
        (errors.InvalidPartitionsError, 37),
        (errors.InvalidReplicationFactorError, 38),
        (errors.ConfigError, 40),
        (errors.UnknownConfigError, 40),
        (errors.InvalidRequestError, 42),
        (errors.UnsupportedForMessageFormatError, 43),
        (errors.PolicyViolationError, 44),
        (errors.OutOfOrderSequenceError, 45),
        (errors.InvalidProducerEpochError, 47),
        (errors.LogDirFailedError, 56),
        (errors.FencedLeaderEpochError, 74),
        (errors.UnknownLeaderEpochError, 75),
        (errors.UnsupportedCompressionTypeError, 76),
        (errors.InvalidRecordError, 87),
        (errors.UnknownTopicIdError, 100),
    ],
)
def test_codes_are_kafkas(kind: type[Exception], code: int) -> None:
    assert error_code(kind()) == code


def test_subclass_is_answered_like_its_parent() -> None:
    class Special(errors.OffsetOutOfRangeError):
        pass

    assert error_code(Special()) == ErrorCode.offset_out_of_range


def test_unexpected_error_tells_a_client_nothing_of_itself() -> None:
    error = KeyError("secret")
    assert error_code(error) == ErrorCode.unknown_server_error
    assert "secret" not in error_message(error)
    assert error_message(errors.ConfigError("value is wrong")) == "value is wrong"
