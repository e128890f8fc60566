"""Makes the workers of a round."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from tests.support.correctness.consuming import (
    SESSION_TIMEOUT_MS,
    run_assigned_reader,
    run_group_member,
)
from tests.support.correctness.copying import run_copier
from tests.support.correctness.history import Isolation
from tests.support.correctness.passing_topics import run_passing_topics
from tests.support.correctness.producing import run_producer
from tests.support.correctness.profile import Profile
from tests.support.correctness.transacting import run_transactions
from tests.support.correctness.workload import EXPIRING, FORGETTING, Workload

COPIER_IDS = ("copier-0", "copier-1")

CLASSIC: Mapping[str, str] = {
    "group_id": "classic",
    "group_protocol": "classic",
    "session_timeout_ms": str(SESSION_TIMEOUT_MS),
    "heartbeat_interval_ms": "500",
}
CONSUMER: Mapping[str, str] = {"group_id": "consumer", "group_protocol": "consumer"}


def workers(workload: Workload, rng: random.Random, profile: Profile) -> list[Callable[[], None]]:
    """The workers of a round, each with its own random generator. A profile with `deletes` has one
    worker of each kind and no groups that only read, because a broker that is killed every second
    or two has little time for more."""

    def own() -> random.Random:
        return random.Random(rng.random())

    works: list[Callable[[], None]] = []
    # If a leader resigns before the replicas have a batch, it answers NOT_LEADER_OR_FOLLOWER.
    # librdkafka then sends the batch again at once, even with no retries left. Only idempotence
    # detects that the replicas have it.
    idempotent = (True, True) if profile.moves_leaders else (False, True)
    works += [partial(run_producer, workload, own(), idempotent=each) for each in idempotent]
    works += [partial(run_assigned_reader, workload, own(), each) for each in Isolation]
    of_a_kind = 1 if profile.deletes else 2
    for number, copier_id in enumerate(COPIER_IDS[:of_a_kind]):
        works.append(partial(run_transactions, workload, own(), f"txn-{number}"))
        works.append(partial(run_copier, workload, own(), copier_id))
    if profile.erases:
        works.append(partial(run_producer, workload, own(), FORGETTING, idempotent=True))
        works.append(partial(run_transactions, workload, own(), "forgetting", FORGETTING))
        works += [
            partial(run_assigned_reader, workload, own(), each, FORGETTING) for each in Isolation
        ]
    if profile.deletes:
        works.append(partial(run_producer, workload, own(), EXPIRING, idempotent=True))
        works.append(partial(run_passing_topics, workload, own(), profile.topic_config()))
    else:
        for group in (CLASSIC, CONSUMER):
            works += [partial(run_group_member, workload, own(), each, group) for each in Isolation]
    return works
