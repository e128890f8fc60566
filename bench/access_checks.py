"""What does it cost to check access, with few ACLs and with many?

    python -m bench.access_checks [--quick]

Each of USERS users may read topics of their own and write to prefixes; some topics are open to
everyone. Decisions, for each number of ACLs, in microseconds of one thread:

    remembered   a decision that was made before, as for a client that asks for its topics again
    first        the first decision about a topic since the ACLs changed
    some         the first decision since the ACLs changed on whether a user may write to any topic
                 at all, which an idempotent producer needs
    changed      the first decision after a change of one ACL, which the index follows

Requests: a client writes a record of 1,000 bytes and reads it again, one request after the other,
on brokers without an authorizer and on brokers with the most ACLs. The cost of the ACLs shows in
the broker's CPU-microseconds per request, and in the client's wait for both. Brokers take turns (A
B C D A B C D); figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as AdminResource

from bench.harness import Question, describe, keep, summarize
from bench.hostile_clients import TOPIC, HealthyClient
from bench.load import Metrics
from bench.logins import TIMEOUT_S, connect
from bench.servers import IsothermServer, KafkaServer, NewServer, Server, ServerUsage, running
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.principal import USER, Principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.config.security import STANDARD_AUTHORIZER
from oracle.topics import create_topic

ACLS = (0, 100, 1_000, 10_000)
USERS = 100
ROUNDS, ROUNDS_QUICK = 7, 2
DECISIONS = 2_000
CHANGES = 20
ROUND_TRIPS, ROUND_TRIPS_QUICK = 4_000, 500
ACLS_IN_A_REQUEST = 1_000
WITHOUT, WITH = "without", "with"
CHECKED = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    # The benchmark's own client makes topics and ACLs.
    "allow.everyone.if.no.acl.found": "true",
}


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
        """Add one ACL. As every change of the metadata, it makes a new image."""
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
    """The microseconds of each decision."""
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


# ---- requests


def bindings() -> Iterator[AclBinding]:
    """The ACLs of `records`, and the ACLs that the measured client needs."""
    for operation in (AclOperation.READ, AclOperation.WRITE):
        yield _binding(TOPIC, "User:ANONYMOUS", operation)
    for acl in records(ACLS[-1]).values():
        operation = AclOperation[Operation(acl.operation).name]
        is_prefix = acl.pattern_type == PatternType.PREFIXED
        yield _binding(acl.resource_name, acl.principal, operation, is_prefix=is_prefix)


def _binding(
    name: str, principal: str, operation: AclOperation, *, is_prefix: bool = False
) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
    allow = AclPermissionType.ALLOW
    return AclBinding(AdminResource.TOPIC, name, pattern, principal, "*", operation, allow)


def make_acls(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_server})
    every = list(bindings())
    for start in range(0, len(every), ACLS_IN_A_REQUEST):
        made = admin.create_acls(every[start : start + ACLS_IN_A_REQUEST])
        for future in made.values():
            future.result(TIMEOUT_S)


def measure(server: Server, round_trips: int) -> Metrics:
    client = HealthyClient(connect(server.bootstrap_server, {}))
    client.write_and_read()
    usage = ServerUsage(server)
    latencies = []
    for _ in range(round_trips):
        started_s = time.perf_counter()
        client.write_and_read()
        latencies.append((time.perf_counter() - started_s) * 1e6)
    return {
        "server_cpu_us": usage.cpu_s() * 1e6 / (2 * round_trips),
        "latency_p50_us": statistics.median(latencies),
    }


def measured_requests(rounds: int, round_trips: int) -> dict[str, dict[str, Any]]:
    """Medians by side, with and without ACLs. The first round warms up and is dropped."""
    news: dict[str, NewServer] = {
        f"{name}-{kind}": partial(new, settings=settings)
        for name, new in (("isotherm", IsothermServer), ("kafka", KafkaServer))
        for kind, settings in ((WITHOUT, {}), (WITH, CHECKED))
    }
    runs: dict[str, list[Metrics]] = {name: [] for name in news}
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
        running(list(news), Path(directory), news) as servers,
    ):
        named = dict(zip(news, servers, strict=True))
        for name, server in named.items():
            create_topic(server.bootstrap_server, TOPIC, 1, {"retention.ms": "-1"})
            if name.endswith(f"-{WITH}"):
                make_acls(server)
        for round_number in range(rounds + 1):
            for name, server in named.items():
                figures = measure(server, round_trips)
                if round_number:
                    runs[name].append(figures)
    return {name: summarize(figures) for name, figures in runs.items()}


def tables(
    decisions: Mapping[int, Mapping[str, float]], requests: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for side in ("isotherm", "kafka"):
        for metric, text in (
            ("server_cpu_us", "broker CPU"),
            ("latency_p50_us", "wait for both, p50"),
        ):
            kinds = [requests[f"{side}-{kind}"][metric] for kind in (WITHOUT, WITH)]
            cells = [f"{kind['median']:.0f} ({kind['spread']:.0%})" for kind in kinds]
            rows.append([side, text, *cells, f"{kinds[1]['median'] / kinds[0]['median']:.3f}"])
    return [
        {
            "title": "A decision, microseconds",
            "columns": ["ACLs", *next(iter(decisions.values()))],
            "rows": [
                [f"{count:,}", *(f"{figure:.2f}" for figure in figures.values())]
                for count, figures in decisions.items()
            ],
        },
        {
            "title": "A request, microseconds (spread)",
            "columns": ["broker", "figure", "no authorizer", f"{ACLS[-1]:,} ACLs", "ratio"],
            "rows": rows,
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What does it cost to check access?")
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds")
    parser.add_argument("--rounds", type=int, help=f"of the requests, default {ROUNDS}")
    parser.add_argument("--note", help="what a reader has to know of this run, stored with it")
    options = parser.parse_args()
    rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    round_trips = ROUND_TRIPS_QUICK if options.quick else ROUND_TRIPS
    document = describe(QUESTION, rounds, options.note)
    decisions = {count: measured(count) for count in ACLS}
    document["tables"] = tables(decisions, measured_requests(rounds, round_trips))
    for table in document["tables"]:
        print(table["title"], *table["rows"], sep="\n")
    keep(document, is_whole=not options.quick)


QUESTION = Question("access_checks", "What does it cost to check access?", lambda _: ())

if __name__ == "__main__":
    main()
