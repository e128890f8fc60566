"""AlterUserScramCredentials and DescribeUserScramCredentials. The oracle of the stored keys is RFC
7677."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.scram_credential import ScramMechanism, salt_password
from isotherm.broker.metadata.image import ScramUser
from isotherm.broker.server.authentication.unknown_users import (
    new_secret,
    recording_request,
    secret_of,
)
from isotherm.protocol.api_keys import ApiKey

SHA_256, SHA_512 = ScramMechanism
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    salted = salt_password(SHA_256, "pencil", SALT, 4096)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": salted,
    }


def alter(broker: Any, *upsertions: Any, deletions: Any = ()) -> dict[str, ErrorCode]:
    response = broker.call(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=upsertions, deletions=deletions
    )
    return {result.user: result.error_code for result in response.results}


def described(broker: Any, *names: str) -> dict[str, Any]:
    users = [{"name": name} for name in names] or None
    response = broker.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert response.error_code is ErrorCode.none
    return {
        result.user: {(info.mechanism, info.iterations) for info in result.credential_infos}
        if result.error_code is ErrorCode.none
        else result.error_code
        for result in response.results
    }


def test_credentials_are_kept_and_described_without_their_keys(broker: Any) -> None:
    assert alter(broker, upsertion("user"), upsertion("other")) == {
        "user": ErrorCode.none,
        "other": ErrorCode.none,
    }
    assert alter(broker, upsertion("user", SHA_512, 5000)) == {"user": ErrorCode.none}
    both = {"user": {(1, 4096), (2, 5000)}, "other": {(1, 4096)}}
    assert described(broker) == both
    broker.configure(broker.services.config)
    assert described(broker) == both
    assert described(broker, "user", "nobody", "other", "other") == {
        "user": both["user"],
        "nobody": ErrorCode.resource_not_found,
        "other": ErrorCode.duplicate_resource,
    }


def test_stored_keys_are_those_of_the_rfc(broker: Any) -> None:
    """RFC 7677: this key signed the RFC's example."""
    alter(broker, upsertion("user"))
    record = broker.services.metadata.image.scram_credentials[ScramUser(SHA_256, "user")]
    assert base64.b64encode(record.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(record.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_credential_is_deleted(broker: Any) -> None:
    alter(broker, upsertion("user"))
    gone = [{"name": "user", "mechanism": 1}]
    assert alter(broker, deletions=gone) == {"user": ErrorCode.none}
    assert alter(broker, deletions=gone) == {"user": ErrorCode.resource_not_found}
    assert described(broker) == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([upsertion("")], ErrorCode.unacceptable_credential),
        ([upsertion("u", 3)], ErrorCode.unsupported_sasl_mechanism),
        ([upsertion("u", iterations=4095)], ErrorCode.unacceptable_credential),
        ([upsertion("u", iterations=16385)], ErrorCode.unacceptable_credential),
        ([upsertion("u"), upsertion("u", SHA_512)], ErrorCode.duplicate_resource),
    ],
)
def test_credential_that_is_not_legal_is_refused(
    broker: Any, changes: list[Any], code: ErrorCode
) -> None:
    assert list(alter(broker, *changes).values()) == [code]
    assert described(broker) == {}


def test_members_ask_the_controller_as_any_client_does(broker: Any) -> None:
    request = recording_request(new_secret())
    (upsertion,) = request.upsertions
    fields = ("name", "mechanism", "iterations", "salt", "salted_password")
    response = broker.call(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        deletions=(),
        upsertions=[{name: getattr(upsertion, name) for name in fields}],
    )
    assert [result.error_code for result in response.results] == [ErrorCode.none]
    assert secret_of(broker.services.metadata.image.scram_credentials) is not None
    listed = broker.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert list(listed.results) == []
