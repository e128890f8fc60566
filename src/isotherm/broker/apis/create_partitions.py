"""CreatePartitions (key 37).

Versions  0-3. 2 flexible.
Behaviour Adds partitions in one durable batch before the answer. Each topic has its own error; a
          topic that is named twice gets one INVALID_REQUEST. validate_only checks and adds nothing.
          POLICY_VIOLATION refuses more than 10,000 new partitions, and topics whose number of
          partitions determines where a key is (group offsets, transactions, states of share groups,
          remote metadata).
Not done  The timeout has no effect: partitions exist when the answer is sent.
KIPs      195 · 599 throttling of partition mutations: version 3 is refused, older versions wait
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.controller.partition_growth import NewPartitions
from isotherm.broker.server.requests.access_checks import named_once, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Charge
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    controller = context.services.controller
    growths = [_new_partitions(topic) for topic in request.topics]
    errors = await context.services.run_control(
        lambda: controller.create_partitions(
            growths, validate_only=request.validate_only, charge=context.charge
        )
    )
    answers = {
        topic.topic: {
            "name": topic.topic,
            "error_code": code_of(error) if error else ErrorCode.none,
            "error_message": str(error) if error else None,
        }
        for topic, error in zip(growths, errors, strict=True)
    }
    return context.response({"results": list(answers.values())})


def _new_partitions(topic: Any) -> NewPartitions:
    assignments = topic.assignments
    if assignments is not None:
        assignments = tuple(tuple(assignment.broker_ids) for assignment in assignments)
    return NewPartitions(topic=topic.name, total_count=topic.count, assignments=assignments)


API = Api(
    ApiKey.CREATE_PARTITIONS,
    VersionRange(0, 3),
    handle,
    access=Access(
        [on_topics(Operation.ALTER, ["topics/name"], judged=named_once)],
        unchecked={"topics/assignments/broker_ids": "every client may name brokers"},
    ),
    items=(Items(("topics",), ("results",)),),
    charge=Charge.MUTATIONS,
    first_strict_version=3,
    is_forwardable=True,
)
