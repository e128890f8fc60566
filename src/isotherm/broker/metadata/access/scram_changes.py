"""The rules and records for requests that set and remove SCRAM credentials. Pure.

A client sends the salted password, never the password. Source: KIP-554; Kafka ScramControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.scram_credential import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
)
from isotherm.broker.metadata.image import ScramUser
from isotherm.broker.metadata.metadata_records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

_TWICE = "A user credential cannot be altered twice in the same request"
_NONE_TO_DELETE = "Attempt to delete a user credential that does not exist"


class ScramDeletion(NamedTuple):
    name: str
    mechanism: int


class ScramUpsertion(NamedTuple):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramUpsertion(name={self.name!r}, [hidden])"


class Refused(NamedTuple):
    code: ErrorCode
    message: str


class PlannedCredentials(NamedTuple):
    """The results by user, None for a credential that is changed, and the records."""

    results: dict[str, Refused | None]
    records: list[MetadataRecord]


def plan_credentials(
    deletions: Iterable[ScramDeletion],
    upsertions: Iterable[ScramUpsertion],
    existing: Mapping[ScramUser, UserScramCredentialRecord],
) -> PlannedCredentials:
    changes: list[ScramDeletion | ScramUpsertion] = [*deletions, *upsertions]
    counts = Counter(change.name for change in changes)
    planned = PlannedCredentials({}, [])
    for change in changes:
        if change.name in planned.results:
            continue
        refused = _refusal(change, existing)
        if refused is None and counts[change.name] > 1:
            refused = Refused(ErrorCode.duplicate_resource, _TWICE)
        planned.results[change.name] = refused
        if refused is None:
            planned.records.append(_record(change))
    return planned


def _refusal(
    change: ScramDeletion | ScramUpsertion,
    existing: Mapping[ScramUser, UserScramCredentialRecord],
) -> Refused | None:
    if not change.name:
        return Refused(ErrorCode.unacceptable_credential, "Username must not be empty")
    if change.mechanism not in list(ScramMechanism):
        return Refused(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(change, ScramDeletion):
        if ScramUser(change.mechanism, change.name) not in existing:
            return Refused(ErrorCode.resource_not_found, _NONE_TO_DELETE)
        return None
    if change.iterations < ITERATIONS_MIN:
        return Refused(ErrorCode.unacceptable_credential, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        return Refused(ErrorCode.unacceptable_credential, "Too many iterations")
    return None


def _record(change: ScramDeletion | ScramUpsertion) -> MetadataRecord:
    if isinstance(change, ScramDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    credential = credential_of(
        ScramMechanism(change.mechanism), change.salted_password, change.salt, change.iterations
    )
    return UserScramCredentialRecord(
        name=change.name, mechanism=change.mechanism, **credential._asdict()
    )
