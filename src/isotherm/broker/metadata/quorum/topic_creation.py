"""Creates the internal topics of a member, by a request of this broker to the active controller.

The request is not an Envelope of the client's request, since a client that looks up its coordinator
needs no permission to create topics. At most one request per topic is in flight, however many
clients look it up; they retry. Source: Kafka AutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.clock import Clock
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.remote.outages import Outages

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
_VERSION = 7


class MemberTopicCreator:
    """A `TopicCreator`. Event loop thread only."""

    def __init__(self, send: Callable[[Any, float], Future[Any]], clock: Clock) -> None:
        """`send` is `ControllerChannel.send`, with the timeout as second argument."""
        self._send = send
        self._in_flight: set[str] = set()
        self._outages = Outages(
            logger,
            clock,
            failing="topic is not created yet topic={}",
            working="topic is created topic={}",
        )

    async def __call__(self, topic: InternalTopic) -> None:
        if topic.name in self._in_flight:
            return
        self._in_flight.add(topic.name)
        answer = asyncio.wrap_future(self._send(creation_request(topic), REQUEST_TIMEOUT_S))
        answer.add_done_callback(lambda _: self._on_answer(topic.name, answer))

    def _on_answer(self, name: str, answer: asyncio.Future[Any]) -> None:
        self._in_flight.discard(name)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._outages.failed(name, f"reason='{error}'")
            return
        for result in answer.result().topics:
            # Another broker may have created it first.
            if result.error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
                self._outages.forget(name)
                logger.info("controller has created a topic topic=%s", name)
            else:
                # Fewer brokers are registered than the topic has replicas. Clients ask again and
                # again.
                self._outages.failed(
                    name, f"error={code_name(result.error_code)} reason='{result.error_message}'"
                )


def creation_request(topic: InternalTopic) -> Any:
    configs = {**topic.configs, **topic.replica_configs}
    return entity_of(
        request_class(ApiKey.CREATE_TOPICS, _VERSION),
        {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": (),
                    "configs": [{"name": key, "value": text} for key, text in configs.items()],
                }
            ],
            "timeout": datetime.timedelta(seconds=REQUEST_TIMEOUT_S),
            "validate_only": False,
        },
    )
