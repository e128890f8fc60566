"""Bytes of the consumer protocol that are cut off, or of versions that there are not."""

from __future__ import annotations

import pytest

from isotherm.broker.coordinators.groups.embedded_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TopicPartition

# Version 0: no topics, no user data.
NOTHING = b"\0\0" + bytes(4) + b"\xff" * 4


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + NOTHING[2:], b"\0\0", NOTHING[:-5]])
def test_subscription_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_subscription(data)


def test_subscription_to_nothing_is_one() -> None:
    assert read_subscription(NOTHING).topics == frozenset()


@pytest.mark.parametrize("data", [b"\0", b"\xff\xff" + NOTHING[2:], b"\0\0\0"])
def test_assignment_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_assignment(data)


def test_member_without_an_assignment_has_no_partitions() -> None:
    assert read_assignment(b"") == read_assignment(NOTHING) == ()


def test_assignment_for_a_subscription_that_cannot_be_read_has_version_0() -> None:
    data = write_assignment([TopicPartition("b", 1), TopicPartition("a", 0)], b"\0")
    assert data[:2] == b"\0\0"
    assert read_assignment(data) == (TopicPartition("a", 0), TopicPartition("b", 1))
