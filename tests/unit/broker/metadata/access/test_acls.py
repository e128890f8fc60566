"""The index of ACLs against the rules applied to each ACL in turn, and the examples of Kafka's own
tests.

Source of the examples: Kafka StandardAuthorizerTest, AuthorizerTest (authorizeByResourceType).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.metadata.access.acls import (
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord

ALICE = Principal("User", "alice")
HOST = "10.1.1.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(
    name: str,
    operation: Operation,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
    *,
    resource: ResourceType = TOPIC,
    principal: str = "User:alice",
    host: str = "*",
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=uuid.uuid4(),
        resource_type=resource,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def decided(
    acls: Iterable[AccessControlEntryRecord], operation: Operation, name: str
) -> bool | None:
    decision = AclIndex(acls).decide(ALICE, HOST, operation, TOPIC, name)
    return None if decision is None else decision.is_allowed


def by_the_rules(
    acls: Iterable[AccessControlEntryRecord], operation: Operation, name: str
) -> bool | None:
    """The decision by the rules of Kafka's documentation, from every ACL alone. None if no ACL
    matches the resource."""
    of_resource = [
        each
        for each in acls
        if each.resource_type == TOPIC
        and (
            (each.pattern_type == LITERAL and each.resource_name in (name, "*"))
            or (each.pattern_type == PREFIXED and name.startswith(each.resource_name))
        )
    ]
    if not of_resource:
        return None
    applying = [
        each
        for each in of_resource
        if each.principal in ("User:alice", "User:*") and each.host in (HOST, "*")
    ]
    denied = {each.operation for each in applying if each.permission_type == DENY}
    allowed = {each.operation for each in applying if each.permission_type == ALLOW}
    if allowed & {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}:
        allowed.add(Operation.DESCRIBE)
    if Operation.ALTER_CONFIGS in allowed:
        allowed.add(Operation.DESCRIBE_CONFIGS)
    return not denied & {operation, Operation.ALL} and bool(allowed & {operation, Operation.ALL})


NAMES = st.sampled_from(["*", "f", "fo", "foo", "foobar", "g", "**"])
ACLS = st.lists(
    st.builds(
        acl,
        NAMES,
        st.sampled_from([each for each in Operation if each >= Operation.ALL]),
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([LITERAL, PREFIXED]),
        resource=st.sampled_from([TOPIC, TOPIC, TOPIC, GROUP]),
        principal=st.sampled_from(["User:alice", "User:*", "User:bob", "Group:alice"]),
        host=st.sampled_from(["*", HOST, "10.1.1.2"]),
    ),
    max_size=8,
)


@given(ACLS, NAMES, st.sampled_from([each for each in Operation if each > Operation.ALL]))
def test_index_decides_by_the_rules(
    acls: list[AccessControlEntryRecord], name: str, operation: Operation
) -> None:
    assert decided(acls, operation, name) == by_the_rules(acls, operation, name)


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl("a", Operation.WRITE)], True),
        ([acl("a", Operation.ALL)], True),
        ([acl("a", Operation.READ)], False),
        ([acl("a", Operation.WRITE, host="10.9.9.9")], False),
        ([acl("a", Operation.WRITE, principal="User:bob")], False),
        ([acl("a", Operation.WRITE), acl("*", Operation.WRITE, DENY)], False),
        ([acl("*", Operation.WRITE), acl("a", Operation.WRITE, DENY)], True),
        ([acl("a", Operation.WRITE), acl("a", Operation.WRITE, DENY)], False),
        ([acl("abc", Operation.WRITE), acl("a", Operation.WRITE, DENY, PREFIXED)], False),
        ([acl("a", Operation.WRITE), acl("abc", Operation.WRITE, DENY, PREFIXED)], True),
        (
            [acl("a", Operation.WRITE, ALLOW, PREFIXED), acl("a", Operation.WRITE, DENY, PREFIXED)],
            False,
        ),
        (
            [acl("a", Operation.WRITE, ALLOW, PREFIXED), acl("a", Operation.WRITE, DENY)],
            True,
        ),
        ([acl("a", Operation.WRITE, resource=GROUP)], False),
    ],
)
def test_any_resource_of_a_type(acls: list[AccessControlEntryRecord], expected: bool) -> None:
    assert AclIndex(acls).allows_any(ALICE, HOST, Operation.WRITE, TOPIC) is expected


@pytest.mark.slow
@given(ACLS, ACLS, st.data())
def test_index_that_was_changed_decides_like_a_new_one(
    first: list[AccessControlEntryRecord],
    second: list[AccessControlEntryRecord],
    data: st.DataObject,
) -> None:
    index = AclIndex(first)
    for each in second:
        index.add(each)
    present = [*first, *second]
    for each in data.draw(st.permutations(present)):
        index.remove(each)
        present.remove(each)
        for name in ("foo", "g"):
            decision = index.decide(ALICE, HOST, Operation.READ, TOPIC, name)
            found = None if decision is None else decision.is_allowed
            assert found == by_the_rules(present, Operation.READ, name)
        anew = AclIndex(present).allows_any(ALICE, HOST, Operation.WRITE, TOPIC)
        assert index.allows_any(ALICE, HOST, Operation.WRITE, TOPIC) == anew
