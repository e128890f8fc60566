"""Each right that an API declares is needed, and shows what it shows, as in Apache Kafka.

Users with all rights but one, with one right and with none send every request of the API to both
brokers, about resources that exist, that do not, that the user may use and may not. Every field of
the answers is compared but those of NOT_COMPARED. Users, rights and versions come from the
declarations (`access_matrix`), the requests from `access_requests`.

Both brokers have a running transaction, groups of both protocols with members and assignments,
committed offsets and records, so that an answer that tells too much differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.broker.apis.api_register import APIS
from isotherm.protocol.api_keys import ApiKey
from tests.oracle.access_answers import (
    HALF_AN_HOUR_MS,
    Side,
    begin_transaction,
    differences_of,
    join_classic_group,
    join_consumer_group,
)
from tests.oracle.access_matrix import rules_by_user
from tests.oracle.access_requests import REQUESTS
from tests.oracle.access_sides import EVERYTHING, running_sides, set_up
from tests.support.raw_client import RawClient

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": str(HALF_AN_HOUR_MS),
    "group.consumer.session.timeout.ms": str(HALF_AN_HOUR_MS),
}


@pytest.fixture(scope="module")
def sides(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Side, Side]]:
    rules = rules_by_user()
    directory = tmp_path_factory.mktemp("matrix")
    with running_sides(directory, rules, SETTINGS) as brokers:
        both = Side(brokers[0]), Side(brokers[1])
        for side in both:
            side.broker.set_acls([*EVERYTHING, *(each for user in rules for each in rules[user])])
            set_up(side.broker.server)
            with RawClient(side.broker.server) as client:
                begin_transaction(client)
                join_classic_group(client)
                join_consumer_group(client)
        yield both
        for side in both:
            side.close()


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_rights_are_kafkas_in_every_version(sides: tuple[Side, Side], api: ApiKey) -> None:
    versions = APIS[api].versions
    differences = differences_of(sides, api, range(versions.min, versions.max + 1))
    assert not differences, "\n".join(differences)
