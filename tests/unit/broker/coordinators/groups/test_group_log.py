"""Log messages of a group that rebalances: those that operators of Kafka search for."""

from __future__ import annotations

import logging

import pytest

from isotherm.broker.coordinators.groups import group_log
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.member_heartbeat import MemberHeartbeat
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.broker.metadata.image import MetadataImage

SESSION_MS = 10_000


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, group_log.__name__)

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


def test_classic_group_from_its_first_member_to_its_last(driver, logged) -> None:
    (member_id,) = driver.stable("static")
    *before, assigned = logged()
    assert before == [
        f"[GroupId g] Member {member_id} joins the group in Empty state.",
        "Preparing to rebalance group g in state Empty with old generation 0.",
        "Stabilized group g generation 1 with 1 members.",
    ]
    assert assigned == (
        f"Assignment received from leader {member_id} for group g for generation 1."
        " The group has 1 members, 1 of which are static."
    )
    driver.leave((member_id, None))
    assert logged() == [
        f"[GroupId g] Member {member_id} has left group through explicit `LeaveGroup` request.",
        "Preparing to rebalance group g in state Stable with old generation 1.",
        "Group g with generation 2 is now empty.",
    ]


def test_member_that_is_silent_has_failed(driver, logged) -> None:
    first, second = driver.stable(None, None)
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(first, 1)
    logged()
    driver.pass_time(1)
    assert logged() == [
        f"[GroupId g] Member {second} has failed, removing it from the group.",
        "Preparing to rebalance group g in state Stable with old generation 1.",
    ]


def test_consumer_group_logs_its_members_and_epochs(logged) -> None:
    empty = ConsumerGroup("g", ConsumerGroupSettings(45_000, 5_000, 10))
    joined = empty.copy()
    beat = MemberHeartbeat(
        "m", 0, topic_names=frozenset({"t"}), rebalance_timeout_ms=1000, owned=frozenset()
    )
    joined.heartbeat(beat, TopicCatalog(MetadataImage()), 0, 0)
    group_log.consumer_group_changed(empty, joined)
    assert logged() == [
        "[GroupId g] Member m joins the consumer group using the consumer protocol.",
        "[GroupId g] Bumped group epoch to 1.",
        "[GroupId g] Computed a new target assignment for epoch 1 with 'uniform' assignor.",
    ]
    group_log.consumer_group_changed(joined, empty)
    assert logged()[0] == "[GroupId g] Member m left the consumer group."
