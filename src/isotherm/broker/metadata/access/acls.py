"""The rules of Kafka's StandardAuthorizer over the ACLs of the cluster's metadata. Pure.

A resource is a type and a name. Its ACLs are those of its type that are

    literal with its name  |  literal with the name *  |  prefixed with a beginning of its name

An ACL applies if it is for the principal or for `User:*`, from its host or from `*`, and for the
operation or ALL. An ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and an ALLOW of
ALTER_CONFIGS allows DESCRIBE_CONFIGS; a DENY denies only its own operation. Any DENY denies, else
any ALLOW allows, else access is denied. If a resource has no ACL for any principal, there is no
decision.

Source: Kafka StandardAuthorizerData, Authorizer.authorizeByResourceType, AclEntry.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord

WILDCARD = "*"
EVERYONE = "User:*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


# For these operations: the operations whose ALLOW allows them as well.
_IMPLIED_BY: Mapping[Operation, frozenset[int]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}

# The operations that a client may ask about ("authorized operations", KIP-430).
OPERATIONS_ON: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Decision(NamedTuple):
    """`acl` decided. None if the resource has ACLs and none of them applies."""

    is_allowed: bool
    acl: AccessControlEntryRecord | None


# The ACLs of one resource pattern, by principal.
_Pattern = dict[str, list[AccessControlEntryRecord]]


class AclIndex:
    """Finds the ACLs of a resource, by its name and by every prefix length that its type has, and
    the ACLs of a principal.

    It is changed ACL by ACL, because a rebuild for one ACL among ten thousand would be too slow.
    """

    def __init__(self, acls: Iterable[AccessControlEntryRecord] = ()) -> None:
        self._literal: dict[tuple[int, str], _Pattern] = {}
        self._prefixed: dict[tuple[int, str], _Pattern] = {}
        self._of_principal: dict[
            tuple[int, str], dict[uuid.UUID | None, AccessControlEntryRecord]
        ] = {}
        # Per resource type: the number of prefixes of each length, and the sorted lengths. A
        # look-up tries one prefix of the name per length.
        self._length_counts: dict[int, Counter[int]] = {}
        self._prefix_lengths: dict[int, list[int]] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: AccessControlEntryRecord) -> None:
        patterns, kind = self._patterns_for(acl), acl.resource_type
        pattern = patterns.setdefault((kind, acl.resource_name), {})
        pattern.setdefault(acl.principal, []).append(acl)
        self._of_principal.setdefault((kind, acl.principal), {})[acl.id] = acl
        if patterns is self._prefixed:
            self._count_length(kind, len(acl.resource_name), 1)

    def remove(self, acl: AccessControlEntryRecord) -> None:
        """Remove an ACL that was added."""
        patterns, kind = self._patterns_for(acl), acl.resource_type
        pattern = patterns[kind, acl.resource_name]
        kept = [entry for entry in pattern.pop(acl.principal) if entry.id != acl.id]
        if kept:
            pattern[acl.principal] = kept
        elif not pattern:
            # An empty entry would count as a resource with ACLs, whose default is different.
            del patterns[kind, acl.resource_name]
        del self._of_principal[kind, acl.principal][acl.id]
        if patterns is self._prefixed:
            self._count_length(kind, len(acl.resource_name), -1)

    def _patterns_for(self, acl: AccessControlEntryRecord) -> dict[tuple[int, str], _Pattern]:
        return self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._literal

    def _count_length(self, kind: int, length: int, change: int) -> None:
        counts = self._length_counts.setdefault(kind, Counter())
        counts[length] += change
        if not counts[length]:
            del counts[length]
        if len(counts) != len(self._prefix_lengths.get(kind, ())):
            self._prefix_lengths[kind] = sorted(counts)

    def decide(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision | None:
        """The decision;

        None if the resource has no ACL at all. `host` is an address in Java's spelling.
        """
        has_acls = False
        allowing = None
        for pattern in self._patterns_of(resource_type, name):
            has_acls = True
            for acl in _of_principal(pattern, principal):
                if acl.host in (WILDCARD, host) and _covers(acl, operation):
                    if acl.permission_type != Permission.ALLOW:
                        return Decision(is_allowed=False, acl=acl)
                    allowing = acl
        if allowing is not None:
            return Decision(is_allowed=True, acl=allowing)
        return Decision(is_allowed=False, acl=None) if has_acls else None

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether the operation is allowed on some resource of the type: by one ALLOW that no DENY
        covers completely."""
        allow_literal, allow_prefixed = set[str](), set[str]()
        deny_literal, deny_prefixed = set[str](), set[str]()
        for acl in self._all_of(resource_type, str(principal)):
            if acl.host not in (WILDCARD, host) or acl.operation not in (operation, Operation.ALL):
                continue
            is_literal = acl.pattern_type == PatternType.LITERAL
            if acl.permission_type == Permission.ALLOW:
                (allow_literal if is_literal else allow_prefixed).add(acl.resource_name)
            else:
                (deny_literal if is_literal else deny_prefixed).add(acl.resource_name)
        if WILDCARD in deny_literal:
            return False
        if WILDCARD in allow_literal:
            return True
        candidates = (allow_literal - deny_literal) | allow_prefixed
        return any(
            not any(name[:length] in deny_prefixed for length in range(1, len(name) + 1))
            for name in candidates
        )

    def _patterns_of(self, resource_type: ResourceType, name: str) -> Iterator[_Pattern]:
        for literal in {name, WILDCARD}:
            if pattern := self._literal.get((resource_type, literal)):
                yield pattern
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                return
            if pattern := self._prefixed.get((resource_type, name[:length])):
                yield pattern

    def _all_of(
        self, resource_type: ResourceType, principal: str
    ) -> Iterator[AccessControlEntryRecord]:
        for name in {principal, EVERYONE}:
            yield from self._of_principal.get((resource_type, name), {}).values()


def _of_principal(pattern: _Pattern, principal: Principal) -> Iterator[AccessControlEntryRecord]:
    name = str(principal)
    yield from pattern.get(name, ())
    if name != EVERYONE:
        yield from pattern.get(EVERYONE, ())


def _covers(acl: AccessControlEntryRecord, operation: Operation) -> bool:
    if acl.operation in (operation, Operation.ALL):
        return True
    is_allow = acl.permission_type == Permission.ALLOW
    return is_allow and acl.operation in _IMPLIED_BY.get(operation, ())
