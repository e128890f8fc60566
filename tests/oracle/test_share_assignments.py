"""Members of share groups get the partitions that Kafka's SimpleAssignor gives them.

Groups are random, with what each member has from an earlier, larger or other group. There are at
most 15 partitions, and their hashes are their numbers, so that Kafka's tables are in that order.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from isotherm.broker.coordinators.groups.assignors import simple
from isotherm.broker.coordinators.groups.assignors.assignor import MemberSubscription
from oracle.kafka import run_tool

pytestmark = pytest.mark.oracle

PROGRAM = Path(__file__).with_name("AssignShares.java")
COUNT = 10_000


def topic(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


def random_group(rng: random.Random) -> tuple[list[int], dict[str, MemberSubscription]]:
    """Partition counts of topics 1, 2, ..., and the members."""
    counts = [rng.randrange(1, 6) for _ in range(rng.randrange(1, 4))]
    numbers = range(1, len(counts) + 1)
    same = numbers[: rng.randrange(1, len(counts) + 1)] if rng.random() < 0.5 else None
    members = {}
    for index in range(rng.randrange(1, 9)):
        topics = same or rng.sample(numbers, rng.randrange(len(counts) + 1))
        partitions = [(number, each) for number in numbers for each in range(counts[number - 1])]
        owned = rng.sample(partitions, rng.choice([0, 0, 1, min(4, len(partitions))]))
        members[f"m{index:03}"] = MemberSubscription(
            None,
            frozenset(map(topic, topics)),
            frozenset((topic(number), each) for number, each in owned),
        )
    return counts, members


def as_line(counts: list[int], members: dict[str, MemberSubscription]) -> str:
    return " ".join(
        [
            ",".join(map(str, counts)),
            *(
                ",".join(str(each.int) for each in sorted(member.topics, key=lambda id_: id_.int))
                + "/"
                + shown(member.assigned)
                for member in members.values()
            ),
        ]
    )


def shown(partitions: frozenset[tuple[uuid.UUID, int]]) -> str:
    return ",".join(f"{id_.int}:{index}" for id_, index in sorted(partitions, key=order))


def order(partition: tuple[uuid.UUID, int]) -> tuple[int, int]:
    return partition[0].int, partition[1]


def test_partitions_are_assigned_as_kafka_assigns_them(kafka_tools: Path) -> None:
    rng = random.Random(1)
    groups = [random_group(rng) for _ in range(COUNT)]
    lines = "".join(as_line(*group) + "\n" for group in groups)
    expected = run_tool(str(PROGRAM), stdin=lines).splitlines()
    different = []
    for (counts, members), answer in zip(groups, expected, strict=True):
        topics = {topic(number): range(count) for number, count in enumerate(counts, 1)}
        assigned = simple.assign(members, topics)
        ours = " ".join(shown(assigned.get(member, frozenset())) or "-" for member in members)
        if ours != answer:
            different.append((as_line(counts, members), answer, ours))
    assert different == []
