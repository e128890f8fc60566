"""The rules and records for requests that create, find and remove ACLs. Pure.

Source: Kafka AclApis, AclControlManager, ResourcePatternFilter, AccessControlEntryFilter.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.metadata.access.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from isotherm.broker.metadata.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from isotherm.errors import InvalidRequestError, PolicyViolationError, RejectedError
from isotherm.types import random_uuid

RECORDS_MAX = 10_000  # Kafka: QuorumController.MAX_RECORDS_PER_USER_OP

Acls = Mapping[uuid.UUID, AccessControlEntryRecord]


class AclBinding(NamedTuple):
    """An ACL as a client sends it, with the numbers of the protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class AclFilter(NamedTuple):
    """None and ANY match everything.

    MATCH matches every pattern that covers the resource with that name.
    """

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission_type in (Permission.ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: AccessControlEntryRecord) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


def binding_of(acl: AccessControlEntryRecord) -> AclBinding:
    return AclBinding(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


class PlannedAcls(NamedTuple):
    """An error or None for each requested ACL, and the records. An existing ACL needs no record."""

    errors: list[RejectedError | None]
    records: list[AccessControlEntryRecord]


def plan_creations(
    bindings: Sequence[AclBinding],
    existing: Acls,
    rng: random.Random,
    count_max: int,
) -> PlannedAcls:
    """Plan the creation of ACLs. Raises InvalidRequestError for more than RECORDS_MAX. `count_max`
    is cluster.acls.max; a new ACL beyond it has a PolicyViolationError."""
    if len(bindings) > RECORDS_MAX:
        raise InvalidRequestError(f"too many ACLs in one request count_max={RECORDS_MAX}")
    existing_bindings = {binding_of(acl) for acl in existing.values()}
    planned = PlannedAcls([], [])
    for binding in bindings:
        try:
            _check(binding)
        except RejectedError as error:
            planned.errors.append(error)
            continue
        if binding not in existing_bindings and len(existing_bindings) >= count_max:
            planned.errors.append(
                PolicyViolationError(
                    f"the cluster has its maximum of ACLs count={len(existing_bindings)}"
                    " key=cluster.acls.max"
                )
            )
            continue
        planned.errors.append(None)
        if binding not in existing_bindings:
            existing_bindings.add(binding)
            planned.records.append(
                AccessControlEntryRecord(id=random_uuid(rng), **binding._asdict())
            )
    return planned


def _check(binding: AclBinding) -> None:
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        raise InvalidRequestError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not binding.resource_name:
        raise InvalidRequestError("Invalid empty resource name")
    if binding.resource_type == ResourceType.ANY:
        raise InvalidRequestError("Invalid resourceType ANY")
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequestError(f"Invalid patternType {PatternType(binding.pattern_type).name}")
    if binding.operation == Operation.ANY:
        raise InvalidRequestError("Invalid operation ANY")
    if binding.permission_type == Permission.ANY:
        raise InvalidRequestError("Invalid permissionType ANY")
    if ":" not in binding.principal:
        raise InvalidRequestError(
            f"Could not parse principal from `{binding.principal}` (no colon is present separating"
            " the principal type from the principal name)"
        )


class Removals(NamedTuple):
    """The ACLs that each filter matches, and the records that remove them, one per ACL."""

    matched: list[list[AccessControlEntryRecord]]
    records: list[RemoveAccessControlEntryRecord]


def plan_removals(filters: Sequence[AclFilter], existing: Acls) -> Removals:
    """Plan the removal of matching ACLs. Raises InvalidRequestError for more than RECORDS_MAX."""
    matched = [
        [acl for acl in existing.values() if acl_filter.matches(acl)] for acl_filter in filters
    ]
    ids = {acl.id for acls in matched for acl in acls}
    if len(ids) > RECORDS_MAX:
        raise InvalidRequestError(
            f"Cannot remove more than {RECORDS_MAX} acls in a single delete operation."
        )
    return Removals(matched, [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in ids])


# The legal numbers of each field. A client reads 0 (UNKNOWN) for a number that it does not know.
_TYPES, _PATTERNS, _OPERATIONS, _PERMISSIONS = (
    frozenset(int(code) for code in kind) - {0}
    for kind in (ResourceType, PatternType, Operation, Permission)
)


def has_unknown(named: AclBinding | AclFilter) -> bool:
    """Whether a number is undefined in the protocol.

    Kafka closes the connection after such a request.
    """
    return not (
        named.resource_type in _TYPES
        and named.pattern_type in _PATTERNS
        and named.operation in _OPERATIONS
        and named.permission_type in _PERMISSIONS
    )
