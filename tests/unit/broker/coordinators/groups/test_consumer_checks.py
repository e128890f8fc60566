"""Which members of a consumer group may commit and fetch offsets, and at which member epoch."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import Protocol
from isotherm.broker.coordinators.groups.consumer_checks import (
    offset_commit_check,
    offset_fetch_error,
)
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.consumer_member import ClassicSupport, ConsumerMember

E = ErrorCode
TOPIC = uuid.UUID(int=1)
CLASSIC = ClassicSupport(10_000, (Protocol("range", b""),))


@pytest.fixture
def group() -> ConsumerGroup:
    """A group at epoch 5. Both members have partition 0 since epoch 3 and partition 1 since epoch
    5, and are to revoke partition 2. `old` is a member of the classic protocol."""
    group = ConsumerGroup("g", ConsumerGroupSettings(45_000, 5_000, 10))
    epochs = {(TOPIC, 0): 3, (TOPIC, 1): 5, (TOPIC, 2): 3}
    for member_id, classic in (("new", None), ("old", CLASSIC)):
        group.members[member_id] = ConsumerMember(
            member_id=member_id,
            epoch=5,
            assigned=frozenset({(TOPIC, 0), (TOPIC, 1)}),
            pending_revocation=frozenset({(TOPIC, 2)}),
            assignment_epochs=epochs,
            classic=classic,
        )
    return group


def code(
    group: ConsumerGroup, member_id: str, epoch: int, partition: int = 0, **fields: Any
) -> ErrorCode:
    defaults = {"is_transactional": False, "api_version": 10, "group_instance_id": None, **fields}
    check = offset_commit_check(group, member_id, epoch=epoch, **defaults)
    return check(TOPIC, partition)


@pytest.mark.parametrize(
    ("member_id", "wrong"), [("new", E.stale_member_epoch), ("old", E.illegal_generation)]
)
def test_commit_of_an_epoch_that_has_passed_counts_for_what_the_member_had(
    group: ConsumerGroup, member_id: str, wrong: ErrorCode
) -> None:
    assert code(group, member_id, 5, partition=9) is E.none
    assert code(group, member_id, 6) is wrong
    assert code(group, member_id, 4, partition=0) is E.none
    assert code(group, member_id, 3, partition=2) is E.none
    assert code(group, member_id, 2, partition=0) is wrong
    assert code(group, member_id, 4, partition=1) is wrong
    assert code(group, member_id, 4, partition=9) is wrong


def test_commit_without_a_member_counts_in_an_empty_group_or_a_transaction(
    group: ConsumerGroup,
) -> None:
    assert code(group, "", -1) is E.unknown_member_id
    assert code(group, "", -1, is_transactional=True) is E.none
    assert code(group, "", -2, is_transactional=True) is E.unknown_member_id
    assert code(group, "", -1, is_transactional=True, group_instance_id="i") is E.unknown_member_id
    group.members.clear()
    assert code(group, "", -1) is E.none
    assert code(group, "", 1) is E.unknown_member_id


def test_commit_in_a_version_without_epochs_is_for_classic_members(group: ConsumerGroup) -> None:
    assert code(group, "new", 5, api_version=8) is E.unsupported_version
    assert code(group, "new", 5, api_version=8, is_transactional=True) is E.none
    assert code(group, "old", 5, api_version=8) is E.none


def test_fetch_wants_a_member_at_its_epoch_or_none(group: ConsumerGroup) -> None:
    assert offset_fetch_error(group, None, -1) is E.none
    assert offset_fetch_error(group, None, 0) is E.unknown_member_id
    assert offset_fetch_error(group, "", -1) is E.unknown_member_id
    assert offset_fetch_error(group, "new", 5) is E.none
    assert offset_fetch_error(group, "new", 4) is E.stale_member_epoch
    assert offset_fetch_error(group, "old", 4) is E.illegal_generation
    assert offset_fetch_error(group, "new", 6) is E.stale_member_epoch
    assert offset_fetch_error(group, "old", 6) is E.illegal_generation
    group.members["new"] = replace(group.members["new"], epoch=1000)
    assert offset_fetch_error(group, "new", int("1000")) is E.none, "an equal number"
