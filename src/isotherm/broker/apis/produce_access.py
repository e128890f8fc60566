"""The checks of Produce, which nearly always cost one look-up per topic."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import refusals_of_items, topic_name
from isotherm.broker.server.requests.item_refusal import handle_allowed
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.produce import ProduceRequest
from isotherm.record.batch_header import TRANSACTIONAL_FLAG

_TRANSACTION = Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"])
_TOPICS = Check(
    Operation.WRITE,
    ResourceType.TOPIC,
    ["topic_data/name", "topic_data/topic_id"],
    Denial.REFUSES_ITEM,
    shows=["responses/name", "responses/topic_id"],
)


def _guard(
    authorizer: Authorizer, api: Api, context: RequestContext, request: ProduceRequest
) -> Any:
    """The transactional id is checked if a batch is transactional."""
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not authorizer.allows(
            context, _TRANSACTION.operation, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            code = ErrorCode.transactional_id_authorization_failed
            return api.refuse(context, request, code)
    granted = authorizer.granted_topics(context, Operation.WRITE)
    for topic in request.topics:
        if (topic.topic_id or topic.name) not in granted:
            break
    else:
        return api.handle(context, request)
    refusal_of = refusals_of_items(authorizer, context, request, _TOPICS, request.topics)
    if refusal_of is not None:
        return handle_allowed(api, context, request, refusal_of)
    named = [each for each in request.topics if topic_name(context, each) is not None]
    authorizer.grant(granted, [each.topic_id or each.name for each in named])
    return api.handle(context, request)


def _is_transactional(request: ProduceRequest) -> bool:
    # Loops instead of a generator, each step of which is a call: every produce request comes here.
    for topic in request.topics:
        for produced in topic.partitions:
            header = produced.header
            if header is not None and header.attributes & TRANSACTIONAL_FLAG:
                return True
    return False


ACCESS = Access([_TRANSACTION, _TOPICS], guard=_guard)
