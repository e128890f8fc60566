"""Authorizes requests by the ACLs in the cluster's metadata, and logs the decisions as Kafka does.

Behaviour
- A principal in super.users may do everything. A resource without any ACL is open to everyone if
  allow.everyone.if.no.acl.found is set, else closed.
- A changed ACL applies from the next request on: each check compares the metadata's ACLs with those
  of the index by identity.
- Decisions are cached until the ACLs change, at most DECISIONS_MAX of each kind, because clients
  use the same topics again and again.
- Topics that a client may write to or read are also kept in a set per client, by name or id. So a
  request for allowed topics costs one look-up per topic.
- The index is updated with the changed ACLs only. A change costs a comparison of the ids.
- `kafka.authorizer.logger` gets Kafka's lines: a denied request at INFO, an allowed one at DEBUG.
  Checks that only filter a list, or compute the authorized operations, are not logged.

Source: Kafka StandardAuthorizer, AuthHelper.
"""

from __future__ import annotations

import ipaddress
import logging
import uuid
from collections.abc import Collection, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from isotherm.broker.metadata.access.acls import (
    CLUSTER_NAME,
    OPERATIONS_ON,
    AclIndex,
    Decision,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from isotherm.broker.metadata.access.principal import Principal, parse_principal
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.config.security import SecurityConfig
from isotherm.protocol.api_keys import api_name
from isotherm.protocol.framing import RequestHeader

audit_logger = logging.getLogger("kafka.authorizer.logger")

DECISIONS_MAX = 50_000

# A name that no ACL is likely to have, so that a check of it finds permissions on all resources.
_SOME_NAME = "hardcode"

_RESOURCE_NAMES = {
    ResourceType.TOPIC: "Topic",
    ResourceType.GROUP: "Group",
    ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId",
    ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}


_Acls = Mapping[uuid.UUID, AccessControlEntryRecord]


class MetadataWithAcls(Protocol):
    """`ClusterMetadata`, which is built on this package."""

    @property
    def image(self) -> MetadataImage: ...


class Asking(Protocol):
    """The principal, address and header of a request."""

    @property
    def principal(self) -> Principal: ...
    @property
    def client_address(self) -> str: ...
    @property
    def header(self) -> RequestHeader: ...


class _Verdict(NamedTuple):
    is_allowed: bool
    rule: str


class Authorizer:
    """Event loop thread only."""

    def __init__(
        self,
        metadata: MetadataWithAcls,
        *,
        super_users: frozenset[Principal],
        allow_without_acl: bool,
    ) -> None:
        self._metadata = metadata
        self._super_users = super_users
        self._default = _Verdict(
            allow_without_acl, "DefaultAllow" if allow_without_acl else "DefaultDeny"
        )
        self._indexed: _Acls | None = None
        self._version = 0
        self._index = AclIndex()
        self._ids: set[uuid.UUID] = set()
        self._verdicts: dict[tuple[object, ...], _Verdict] = {}
        self._granted: dict[tuple[object, ...], set[Hashable]] = {}
        self._granted_count = 0
        self._any: dict[tuple[object, ...], bool] = {}

    @property
    def acl_version(self) -> int:
        """A number that grows when the ACLs change. Decisions of the same version remain valid."""
        self._current_index()
        return self._version

    def allows(
        self,
        asking: Asking,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        is_logged: bool = True,
        count: int = 1,
    ) -> bool:
        """Whether the operation is allowed. `count` is the number of times the request names the
        resource; only for the log."""
        verdict = self._verdict(asking, operation, resource_type, name)
        if is_logged:
            level = logging.DEBUG if verdict.is_allowed else logging.INFO
            if audit_logger.isEnabledFor(level):
                text = _audit_text(asking, operation, resource_type, name, count, verdict)
                audit_logger.log(level, "%s", text)
        return verdict.is_allowed

    def allows_cluster(
        self, asking: Asking, operation: Operation, *, is_logged: bool = True
    ) -> bool:
        return self.allows(
            asking, operation, ResourceType.CLUSTER, CLUSTER_NAME, is_logged=is_logged
        )

    def allowed(
        self,
        asking: Asking,
        operation: Operation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        is_logged: bool = True,
    ) -> set[str]:
        """The names on which the operation is allowed."""
        self._current_index()
        has_line = is_logged and audit_logger.isEnabledFor(logging.DEBUG)
        remembered = {} if has_line else self._verdicts
        principal, address = asking.principal, asking.client_address
        allowed_names = set()
        for name in set(names):
            # Nearly always the topic was allowed before and nothing is logged. That case needs no
            # call.
            verdict = remembered.get((principal, address, operation, resource_type, name))
            if (verdict is not None and verdict.is_allowed) or self.allows(
                asking, operation, resource_type, name, is_logged=is_logged
            ):
                allowed_names.add(name)
        return allowed_names

    def granted_topics(self, asking: Asking, operation: Operation) -> set[Hashable]:
        """The topics, by name or id, that need no further check because `grant` has added them
        under the same ACLs.

        Empty while every check writes a line to the log.
        """
        self._current_index()
        key = (asking.principal, asking.client_address, operation)
        granted = self._granted.get(key)
        if granted is None:
            granted = self._granted[key] = set()
            self._note_granted(1)
        return set() if audit_logger.isEnabledFor(logging.DEBUG) else granted

    def grant(self, granted: set[Hashable], topics: Collection[Hashable]) -> None:
        """Add allowed topics to the set that `granted_topics` returned. Ids of unknown topics must
        not be added: without a name nothing was checked."""
        granted.update(topics)
        self._note_granted(len(topics))

    def allows_any(self, asking: Asking, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the operation is allowed on some resource of the type."""
        if self.allows(asking, operation, resource_type, _SOME_NAME, is_logged=False):
            return True
        index = self._current_index()
        key = (asking.principal, asking.client_address, operation, resource_type)
        is_allowed = self._any.get(key)
        if is_allowed is None:
            if len(self._any) >= DECISIONS_MAX:
                self._any.clear()
            host = _java_address(asking.client_address)
            is_allowed = self._any[key] = index.allows_any(
                asking.principal, host, operation, resource_type
            )
        return is_allowed

    def operations(self, asking: Asking, resource_type: ResourceType, name: str) -> int:
        """The allowed operations, as a bit field by operation (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS_ON[resource_type]
            if self.allows(asking, operation, resource_type, name, is_logged=False)
        )

    def _verdict(
        self, asking: Asking, operation: Operation, resource_type: ResourceType, name: str
    ) -> _Verdict:
        index = self._current_index()
        key = (asking.principal, asking.client_address, operation, resource_type, name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= DECISIONS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[key] = self._decide(
                index, asking, operation, resource_type, name
            )
        return verdict

    def _current_index(self) -> AclIndex:
        acls = self._metadata.image.acls
        if acls is not self._indexed:
            self._follow(self._indexed, acls)
            self._indexed = acls
            self._version += 1
            self._verdicts.clear()
            self._any.clear()
            self._forget_granted()
        return self._index

    def _note_granted(self, count: int) -> None:
        self._granted_count += count
        if self._granted_count > DECISIONS_MAX:
            self._forget_granted()

    def _forget_granted(self) -> None:
        self._granted.clear()
        self._granted_count = 0

    def _follow(self, before: _Acls | None, after: _Acls) -> None:
        if before is None:
            self._index, self._ids = AclIndex(after.values()), _ids(after)
            return
        # The ids are enough: no record changes an ACL (`MetadataDelta._add_acl` refuses
        # a second one with an id).
        ids = _ids(after)
        for acl_id in self._ids - ids:
            self._index.remove(before[acl_id])
        for acl_id in sorted(ids - self._ids):
            self._index.add(after[acl_id])
        self._ids = ids

    def _decide(
        self,
        index: AclIndex,
        asking: Asking,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> _Verdict:
        if asking.principal in self._super_users:
            return _Verdict(is_allowed=True, rule="SuperUser")
        host = _java_address(asking.client_address)
        decision = index.decide(asking.principal, host, operation, resource_type, name)
        return self._default if decision is None else _verdict_of(decision)


def configured_authorizer(config: SecurityConfig, metadata: MetadataWithAcls) -> Authorizer | None:
    """The authorizer; None if authorizer.class.name is not set, so that access is not checked."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        metadata,
        super_users=frozenset(parse_principal(text) for text in config.super_users),
        allow_without_acl=config.allow_everyone_if_no_acl_found,
    )


def _ids(acls: _Acls) -> set[uuid.UUID]:
    # A copied dictionary keeps the hashes of its keys. Hashing ten thousand UUIDs takes
    # milliseconds.
    return set(acls.copy() if isinstance(acls, MappingProxyType) else acls)


def _verdict_of(decision: Decision) -> _Verdict:
    acl = decision.acl
    if acl is None:
        return _Verdict(is_allowed=False, rule="DefaultDeny")
    rule = (
        f"MatchingAcl(acl=StandardAcl[resourceType={ResourceType(acl.resource_type).name},"
        f" resourceName={acl.resource_name}, patternType={PatternType(acl.pattern_type).name},"
        f" principal={acl.principal}, host={acl.host}, operation={Operation(acl.operation).name},"
        f" permissionType={Permission(acl.permission_type).name}])"
    )
    return _Verdict(decision.is_allowed, rule)


def _audit_text(
    asking: Asking,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    count: int,
    verdict: _Verdict,
) -> str:
    return (
        f"Principal = {asking.principal} is {'Allowed' if verdict.is_allowed else 'Denied'}"
        f" operation = {operation.name} from host = {_java_address(asking.client_address)}"
        f" on resource = {_RESOURCE_NAMES[resource_type]}:LITERAL:{_one_line(name)}"
        f" for request = {api_name(asking.header.api_key)} with resourceRefCount = {count}"
        f" based on rule {verdict.rule}"
    )


def _one_line(name: str) -> str:
    """Escape a name, which clients choose: it must not look like a separate line of the log."""
    return name if name.isprintable() else ascii(name)


def _java_address(text: str) -> str:
    """The address as InetAddress.getHostAddress writes it, with which hosts of ACLs are compared.

    IPv6 addresses are written without `::`, and an IPv4-mapped address as IPv4.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    scope = f"%{address.scope_id}" if address.scope_id else ""
    return (
        ":".join(f"{int(group, 16):x}" for group in address.exploded.split("%")[0].split(":"))
        + scope
    )
