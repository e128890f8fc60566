"""OffsetForLeaderEpoch (key 23).

Versions  2-4. 2 current leader epoch · 3 replica id · 4 flexible.
Behaviour Returns the partition's last epoch up to the requested one, and its end offset; -1 and -1
          if it is unknown. With it consumers detect that records which they have read were
          truncated. Each partition has its own error. A client with an older or newer leader epoch
          than this broker is refused. Only the leader answers.
Not done  -
KIPs      101 · 279 · 320
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError
from isotherm.log.leader_epoch_cache import UNDEFINED_EPOCH_END
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    topics = [
        {
            "topic": topic.topic,
            "partitions": [
                _answer(context, topic.topic, partition) for partition in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return context.response({"topics": topics})


def _answer(context: RequestContext, topic: str, entry: Any) -> dict[str, Any]:
    code, end = ErrorCode.none, UNDEFINED_EPOCH_END
    try:
        partition = context.services.replica_manager.find_partition(topic, None, entry.partition)
        partition.check_leader_epoch(entry.current_leader_epoch)
        partition.check_is_leader()
    except IsothermError as error:
        code = code_of(error)
    else:
        log = partition.log
        end = log.leader_epochs.end_offset_for(entry.leader_epoch, log.log_end_offset)
    return {
        "error_code": code,
        "partition": entry.partition,
        "leader_epoch": end.epoch,
        "end_offset": end.end_offset,
    }


API = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    VersionRange(2, 4),
    handle,
    access=Access(
        [on_topics(Operation.DESCRIBE, ["topics/topic"], unless_cluster=Operation.CLUSTER_ACTION)],
        unchecked={"replica_id": "in Kafka, who names a follower needs no other right"},
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
)
