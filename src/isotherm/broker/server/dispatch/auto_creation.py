"""auto.create.topics.enable in a member of a cluster: asks the controller, as the client's
principal.

Meanwhile the client gets UNKNOWN_TOPIC_OR_PARTITION, and requests the metadata again. At most one
request per topic is in flight. Source: Kafka DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from isotherm.broker.server.dispatch.forwarding import Forwarder
from isotherm.broker.server.requests.context import RequestContext
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader

logger = logging.getLogger(__name__)

_VERSION = 7
_CREATE = request_class(ApiKey.CREATE_TOPICS, _VERSION)
_TIMEOUT = datetime.timedelta(seconds=30)
# The controller uses its own num.partitions and default.replication.factor.
_DEFAULT = -1


class TopicAutoCreation:
    """Event loop thread only."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._in_flight: set[str] = set()
        # The event loop keeps only weak references to tasks, so they are kept here.
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, context: RequestContext, names: Iterable[str]) -> None:
        """Request the creation of these topics, without waiting for the answer."""
        new = sorted(set(names) - self._in_flight)
        if not new:
            return
        self._in_flight.update(new)
        task = asyncio.get_running_loop().create_task(self._create(context, new))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, context: RequestContext, names: list[str]) -> None:
        header = RequestHeader(ApiKey.CREATE_TOPICS, _VERSION, 0, context.header.client_id)
        topics = [
            {
                "name": name,
                "num_partitions": _DEFAULT,
                "replication_factor": _DEFAULT,
                "assignments": (),
                "configs": (),
            }
            for name in names
        ]
        request = entity_of(
            _CREATE, {"topics": topics, "timeout": _TIMEOUT, "validate_only": False}
        )
        try:
            response = await self._forwarder.forward(context._replace(header=header), request)
        except IsothermError as error:
            logger.warning("topics are not created topics=%s reason='%s'", names, error)
        else:
            for topic in response.topics:
                if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                    logger.info(
                        "topic is not created topic=%s error=%s reason='%s'",
                        topic.name,
                        code_name(topic.error_code),
                        topic.error_message,
                    )
        finally:
            self._in_flight.difference_update(names)
