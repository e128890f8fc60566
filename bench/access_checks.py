"""What does it cost to check access, with few ACLs and with many?

    python -m bench.secured

Each of USERS users may read topics of their own and write to prefixes; some topics are open to everyone.
For each number of ACLs:

    remembered   a decision that was made before: what a client pays that asks for its topics again
    first        a decision about a topic that was not asked for since the ACLs changed
    some         whether a user may write to any topic at all, as an idempotent producer needs it, first
                 asked since the ACLs changed
    changed      the first decision after a change of one ACL, which the index follows

The times are those of one thread, the median of ROUNDS rounds.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from isotherm.broker.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.access.authorizer import Authorizer
from isotherm.broker.access.principal import USER, Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord

ACLS = (0, 100, 1_000, 10_000)
USERS = 100
ROUNDS = 7
DECISIONS = 2_000
CHANGES = 20


def records(count: int) -> dict[uuid.UUID, AccessControlEntryRecord]:
    made = {}
    for number in range(count):
        user, own = number % USERS, number // USERS
        is_prefix = number % 10 == 0
        acl_id = uuid.UUID(int=number + 1)
        made[acl_id] = AccessControlEntryRecord(
            id=acl_id,
            resource_type=ResourceType.TOPIC,
            resource_name=f"team-{user}.p{own}." if is_prefix else f"team-{user}.topic-{own}",
            pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            principal="User:*" if number % 50 == 1 else f"User:user-{user}",
            host="*",
            operation=Operation.WRITE if is_prefix else Operation.READ,
            permission_type=Permission.ALLOW,
        )
    return made


class Access:
    def __init__(self, count: int) -> None:
        self.metadata = SimpleNamespace(
            image=SimpleNamespace(acls=MappingProxyType(records(count)))
        )
        self.authorizer = Authorizer(
            self.metadata, super_users=frozenset(), allow_without_acl=False
        )
        self.askings: list[Any] = [
            SimpleNamespace(principal=Principal(USER, f"user-{user}"), client_address="10.0.0.1")
            for user in range(USERS)
        ]

    def decide(self, numbers: range) -> None:
        for number in numbers:
            asking, name = self.askings[number % USERS], f"team-{number % USERS}.topic-{number}"
            self.authorizer.allows(
                asking, Operation.READ, ResourceType.TOPIC, name, is_logged=False
            )

    def change(self) -> None:
        """One ACL more, and another image, as every change of the metadata makes one."""
        before = self.metadata.image.acls
        acl_id = uuid.UUID(int=10**9 + len(before))
        acl = AccessControlEntryRecord(
            id=acl_id,
            resource_type=ResourceType.TOPIC,
            resource_name=f"new-{len(before)}",
            pattern_type=PatternType.LITERAL,
            principal="User:user-1",
            host="*",
            operation=Operation.READ,
            permission_type=Permission.ALLOW,
        )
        self.metadata.image = SimpleNamespace(acls=MappingProxyType({**before, acl_id: acl}))


def measured(count: int) -> dict[str, float]:
    """Microseconds each."""
    access = Access(count)
    numbers = range(DECISIONS)

    def first() -> Iterator[float]:
        for round_number in range(ROUNDS):
            fresh = range(DECISIONS * (round_number + 1), DECISIONS * (round_number + 2))
            yield _timed(partial(access.decide, fresh)) / DECISIONS

    def some() -> None:
        access.change()
        for asking in access.askings:
            access.authorizer.allows_any(asking, Operation.WRITE, ResourceType.TOPIC)

    def changed() -> float:
        spent = 0.0
        for _ in range(CHANGES):
            access.change()
            spent += _timed(lambda: access.decide(range(1)))
        return spent / CHANGES

    access.decide(numbers)
    return {
        "remembered_us": _median(lambda: _timed(lambda: access.decide(numbers)) / DECISIONS),
        "first_us": statistics.median(first()),
        "some_us": _median(lambda: _timed(some) / USERS),
        "changed_us": _median(changed),
    }


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def _median(once: Callable[[], float]) -> float:
    return statistics.median(once() for _ in range(ROUNDS))


def main() -> None:
    for count in ACLS:
        shown = "  ".join(f"{name} {value:8.2f}" for name, value in measured(count).items())
        print(f"{count:6} ACLs  {shown}")


if __name__ == "__main__":
    main()
