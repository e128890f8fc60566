"""Creates the internal topics of a member, by a request of this broker to the active controller.

The request is not an Envelope of the client's request, since a client that looks up its coordinator needs no
permission to create topics. At most one request per topic is in flight, however many clients look it up;
they retry. Source: Kafka AutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinator_topic import InternalTopic
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
_VERSION = 7


class MemberTopicCreator:
    """A `TopicCreator`. Event loop thread only."""

    def __init__(self, send: Callable[[Any, float], Future[Any]]) -> None:
        """`send` is `ControllerChannel.send`, with the timeout as second argument."""
        self._send = send
        self._asked: set[str] = set()

    async def __call__(self, topic: InternalTopic) -> None:
        if topic.name in self._asked:
            return
        self._asked.add(topic.name)
        logger.info("controller is asked for a topic topic=%s", topic.name)
        answer = asyncio.wrap_future(self._send(creation_request(topic), REQUEST_TIMEOUT_S))
        answer.add_done_callback(lambda _: self._on_answer(topic.name, answer))

    def _on_answer(self, name: str, answer: asyncio.Future[Any]) -> None:
        self._asked.discard(name)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            logger.warning("topic is not created topic=%s reason='%s'", name, error)
            return
        for result in answer.result().topics:
            # Another broker may have created it first.
            if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                logger.warning(
                    "topic is not created topic=%s error=%s reason='%s'",
                    name,
                    result.error_code.name,
                    result.error_message,
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
