"""Which requests the authorizer allows, what it logs, and when a change of the ACLs takes
effect."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.metadata.access.authorizer import (
    DECISIONS_MAX,
    Authorizer,
    configured_authorizer,
)
from isotherm.broker.metadata.access.principal import ANONYMOUS, Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.broker.server.requests.guarding import guard_of
from isotherm.config.security import STANDARD_AUTHORIZER, SecurityConfig
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.framing import RequestHeader
from isotherm.protocol.produce import ProduceRequest, ProduceTopic

ROOT = Principal("User", "root")
READ, TOPIC = Operation.READ, ResourceType.TOPIC


class Metadata:
    """The metadata of an authorizer, to which a test adds ACLs."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(acls=cast("Mapping[uuid.UUID, Any]", {}))

    def add(self, **changed: Any) -> None:
        record = AccessControlEntryRecord(
            id=uuid.uuid4(),
            resource_type=TOPIC,
            resource_name="t",
            pattern_type=PatternType.LITERAL,
            principal="User:*",
            host="*",
            operation=READ,
            permission_type=Permission.ALLOW,
        )
        record = dataclasses.replace(record, **changed)
        self.image = SimpleNamespace(acls={**self.image.acls, record.id: record})


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


def authorizer(metadata: Metadata, **settings: Any) -> Authorizer:
    config = SecurityConfig(
        authorizer_class_name=STANDARD_AUTHORIZER, super_users=("User:root",), **settings
    )
    made = configured_authorizer(config, metadata)
    assert made is not None
    return made


def asking(principal: Principal = ANONYMOUS, address: str = "10.1.1.1") -> Any:
    header = RequestHeader(ApiKey.FETCH, 12, 1, "client")
    return SimpleNamespace(principal=principal, client_address=address, header=header)


def test_nothing_is_checked_without_an_authorizer(metadata: Metadata) -> None:
    assert configured_authorizer(SecurityConfig(), metadata) is None


def test_super_user_may_do_what_an_acl_denies(metadata: Metadata) -> None:
    metadata.add(permission_type=Permission.DENY)
    found = authorizer(metadata)
    assert found.allows(asking(ROOT), READ, TOPIC, "t")
    assert not found.allows(asking(), READ, TOPIC, "t")


@pytest.mark.parametrize("is_open", [True, False])
def test_resource_without_any_acl_is_open_if_configured(metadata: Metadata, is_open: bool) -> None:
    metadata.add(resource_name="of-another", principal="User:another")
    found = authorizer(metadata, allow_everyone_if_no_acl_found=is_open)
    assert found.allows(asking(), READ, TOPIC, "t") is is_open
    assert not found.allows(asking(), READ, TOPIC, "of-another")


def test_changed_acls_hold_from_the_next_check_on(metadata: Metadata) -> None:
    found = authorizer(metadata)
    assert not found.allows(asking(), READ, TOPIC, "t")
    metadata.add()
    assert found.allows(asking(), READ, TOPIC, "t")
    metadata.add(permission_type=Permission.DENY, operation=Operation.ALL)
    assert not found.allows(asking(), READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.1.1.1", "10.1.1.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::ff00:42", "2001:db8:0:0:0:0:ff00:42"),
        ("::ffff:10.1.1.1", "10.1.1.1"),
    ],
)
def test_address_is_compared_as_java_writes_it(metadata: Metadata, address: str, host: str) -> None:
    metadata.add(host=host)
    assert authorizer(metadata).allows(asking(address=address), READ, TOPIC, "t")
    assert not authorizer(metadata).allows(asking(address="10.2.2.2"), READ, TOPIC, "t")


def test_decisions_are_logged_in_kafkas_words(
    metadata: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    metadata.add()
    found = authorizer(metadata)
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        found.allows(asking(), READ, TOPIC, "t")
        found.allows(asking(), Operation.WRITE, TOPIC, "t")
        found.allows(asking(), READ, TOPIC, "other\nPrincipal = User:root is Allowed")
        found.allows(asking(ROOT), READ, TOPIC, "t")
        found.allows(asking(), READ, TOPIC, "filtered", is_logged=False)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "DEBUG",
            (
                "Principal = User:ANONYMOUS is Allowed operation = READ from host = 10.1.1.1 on"
                " resource = Topic:LITERAL:t for request = Fetch with resourceRefCount = 1 based on"
                " rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=t,"
                " patternType=LITERAL, principal=User:*, host=*, operation=READ,"
                " permissionType=ALLOW])"
            ),
        ),
        (
            "INFO",
            (
                "Principal = User:ANONYMOUS is Denied operation = WRITE from host = 10.1.1.1 on"
                " resource = Topic:LITERAL:t for request = Fetch with resourceRefCount = 1 based on"
                " rule DefaultDeny"
            ),
        ),
        (
            "INFO",
            (
                "Principal = User:ANONYMOUS is Denied operation = READ from host = 10.1.1.1 on"
                " resource = Topic:LITERAL:'other\\nPrincipal = User:root is Allowed' for request ="
                " Fetch with resourceRefCount = 1 based on rule DefaultDeny"
            ),
        ),
        (
            "DEBUG",
            (
                "Principal = User:root is Allowed operation = READ from host = 10.1.1.1 on"
                " resource = Topic:LITERAL:t for request = Fetch with resourceRefCount = 1 based on"
                " rule SuperUser"
            ),
        ),
    ]


def test_granted_topics_are_of_one_client_and_operation_until_the_acls_change(
    metadata: Metadata,
) -> None:
    metadata.add()
    found = authorizer(metadata)
    found.grant(found.granted_topics(asking(), READ), ["t"])
    assert found.granted_topics(asking(), READ) == {"t"}
    assert found.granted_topics(asking(), Operation.WRITE) == set()
    assert found.granted_topics(asking(address="10.1.1.2"), READ) == set()
    assert found.granted_topics(asking(ROOT), READ) == set()
    metadata.add(permission_type=Permission.DENY)
    assert found.granted_topics(asking(), READ) == set()


def test_no_topic_is_granted_while_each_check_is_logged(
    metadata: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    found = authorizer(metadata)
    found.grant(found.granted_topics(asking(), READ), ["t"])
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        assert found.granted_topics(asking(), READ) == set()


def test_granted_topics_are_bounded(metadata: Metadata) -> None:
    found = authorizer(metadata)
    found.grant(found.granted_topics(asking(), READ), range(DECISIONS_MAX - 1))
    assert len(found.granted_topics(asking(), READ)) == DECISIONS_MAX - 1
    found.grant(found.granted_topics(asking(), READ), ["t"])
    assert found.granted_topics(asking(), READ) == set()


def test_topic_that_becomes_known_is_checked(metadata: Metadata) -> None:
    """A client may send a topic id before the broker knows it. Once the id is known, the topic's
    ACLs must be checked."""
    metadata.add(resource_name="open", operation=Operation.WRITE)
    handled = []
    api: Any = SimpleNamespace(
        is_asked_without_items=False,
        handle=lambda context, request: handled.append(request),
        refuse=lambda *arguments: pytest.fail("the whole request is refused"),
        refuse_by=None,
        refuse_items=lambda context, request, code: ("refused", code),
        items=APIS[ApiKey.PRODUCE].items,
    )
    found = authorizer(metadata)
    topic_id = uuid.uuid4()
    request = ProduceRequest(None, 1, 1000, [ProduceTopic(None, topic_id, [])])
    topics: dict[uuid.UUID, Any] = {}
    context: Any = asking()
    context.services = SimpleNamespace(
        metadata=SimpleNamespace(image=SimpleNamespace(topics_by_id=topics))
    )
    write = partial(guard_of(APIS[ApiKey.PRODUCE].access), found, api, context)
    write(request)
    assert handled == [request]
    topics[topic_id] = SimpleNamespace(name="secret")
    assert write(request) == ("refused", ErrorCode.topic_authorization_failed)
    topics[topic_id] = SimpleNamespace(name="open")
    write(request)
    write(request)
    assert handled == [request] * 3
