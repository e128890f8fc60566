"""ElectLeaders (key 43).

Versions  0-2. 1 an error of the whole request, kinds of election · 2 flexible.
Behaviour With the embedded controller the only replica already leads. As in Kafka, each named
          partition gets ELECTION_NOT_NEEDED, and a request for all partitions (null) gets no
          results.
Not done  -
KIPs      183 · 460
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.protocol.api_keys import ApiKey, VersionRange

PREFERRED, UNCLEAN = 0, 1
ELECTION_TYPES = frozenset({PREFERRED, UNCLEAN})


def handle(context: RequestContext, request: Any) -> Any:
    if getattr(request, "election_type", PREFERRED) not in ELECTION_TYPES:
        return API.refuse(context, request, ErrorCode.invalid_request)
    return _response(
        context,
        ErrorCode.none,
        [
            (
                topic.topic,
                [
                    (partition, _outcome(context, topic.topic, partition))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


_MESSAGES = {
    ErrorCode.unknown_topic_or_partition: "no such partition partition={}-{}",
    ErrorCode.election_not_needed: "the only replica leads already partition={}-{}",
    ErrorCode.invalid_request: "unknown election type partition={}-{}",
}


def _outcome(context: RequestContext, topic: str, partition: int) -> ErrorCode:
    try:
        context.services.replica_manager.find_partition(topic, None, partition)
    except UnknownTopicOrPartitionError:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.election_not_needed


def _response(
    context: RequestContext,
    error_code: ErrorCode,
    topics: list[tuple[str, list[tuple[int, ErrorCode]]]],
) -> Any:
    return context.response(
        {
            "error_code": error_code,
            "replica_election_results": [
                {
                    "topic": topic,
                    "partition_result": [
                        {
                            "partition_id": number,
                            "error_code": code,
                            "error_message": _MESSAGES.get(code, "").format(topic, number) or None,
                        }
                        for number, code in partitions
                    ],
                }
                for topic, partitions in topics
            ],
        }
    )


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer the request and every named partition with `error_code`."""
    topics = [
        (topic.topic, [(partition, error_code) for partition in topic.partitions])
        for topic in request.topic_partitions or ()
    ]
    return _response(context, error_code, topics)


API = Api(
    ApiKey.ELECT_LEADERS,
    VersionRange(0, 2),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.ALTER,
                covers=["topic_partitions/topic"],
                shows=["replica_election_results/topic"],
            )
        ]
    ),
    items=(
        Items(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),
    ),
    refuse_by=_refuse,
    is_forwardable=True,
)
