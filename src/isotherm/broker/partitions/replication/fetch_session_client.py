"""The client's side of an incremental fetch session (KIP-227). Pure; one per connection to a
leader.

    full (0, 0) ──► (id, 1) ──► (id, 2) ──► …      each with the changed partitions only
        ▲              │
        └── any error ─┘   full (id, 0): closes the session and asks for another

A leader that keeps no session answers with session id 0. Every request is then a full one.
Source: Kafka FetchSessionHandler, FetchMetadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.protocol.code_names import code_name
from isotherm.protocol.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic
from isotherm.types import TopicIdPartition

NO_SESSION = 0
_FULL = 0
_FIRST_INCREMENTAL = 1
_EPOCH_MAX = 2**31 - 1

RequestedPartitions: TypeAlias = Mapping[TopicIdPartition, FetchPartition]


class SessionRequest(NamedTuple):
    """The session fields of the next request.

    `partitions` has every partition of the session. The answer may have any of them, including
    those that an incremental request leaves out because they have not changed.
    """

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics: list[ForgottenTopic]
    partitions: RequestedPartitions

    @property
    def is_full(self) -> bool:
        """Whether the request names every partition."""
        return self.session_epoch == _FULL

    @property
    def is_empty(self) -> bool:
        """Whether the session has no partition and the request removes none."""
        return not self.partitions and not self.forgotten_topics


class FetchSessionClient:
    """Not thread-safe. `on_response` or `on_failure` follows each request before the next."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = _FULL
        # The partitions of the leader's session, once the last request has arrived there.
        self._partitions: RequestedPartitions = {}

    def request(self, partitions: RequestedPartitions) -> SessionRequest:
        """The next request. It makes `partitions` the partitions of the session."""
        earlier = self._partitions
        forgotten = list[TopicIdPartition]()
        if self._epoch == _FULL:
            changed = partitions
        else:
            changed = {
                place: partition
                for place, partition in partitions.items()
                # By identity first: the request of an idle partition is the same object.
                if earlier.get(place) is not partition and earlier.get(place) != partition
            }
            new_count = sum(place not in earlier for place in changed)
            if len(partitions) - new_count < len(earlier):
                # A partition that backs off is not in `partitions`. It leaves the session, so that
                # the leader sends nothing for it meanwhile, as in Kafka.
                forgotten = [place for place in earlier if place not in partitions]
        self._partitions = dict(partitions)
        return SessionRequest(
            self._session_id, self._epoch, _topics(changed), _forgotten(forgotten), self._partitions
        )

    def on_response(self, response: FetchResponse) -> str:
        """Take over the answer. Returns the reason if it cannot be used, else an empty string.

        After an answer that cannot be used the next request is a full one.
        """
        if response.error_code:
            # The leader has evicted the session, so the next full request has none to close.
            is_unknown = response.error_code == ErrorCode.fetch_session_id_not_found
            self._begin_anew(NO_SESSION if is_unknown else self._session_id)
            return f"error={code_name(response.error_code)}"
        answered = {
            (topic.topic_id, partition.partition)
            for topic in response.topics
            for partition in topic.partitions
        }
        # The usual answer to an incremental request has no partition.
        requested = (
            {(place.topic_id, place.partition) for place in self._partitions}
            if answered or self._epoch == _FULL
            else set[tuple[uuid.UUID | None, int]]()
        )
        fault = "" if answered <= requested else "it has partitions that were not requested"
        if self._epoch == _FULL and not fault and answered != requested:
            fault = "it lacks partitions of a full request"
        if fault:
            # A full request has closed the session that it named. The session of this answer is
            # not used; the leader evicts it.
            self._begin_anew(NO_SESSION if self._epoch == _FULL else self._session_id)
            return fault
        if response.session_id == NO_SESSION:
            self._begin_anew(NO_SESSION)
        elif self._epoch == _FULL:
            self._session_id, self._epoch = response.session_id, _FIRST_INCREMENTAL
        else:
            # Wraps to 1, since 0 is a full request.
            self._epoch = _FIRST_INCREMENTAL if self._epoch == _EPOCH_MAX else self._epoch + 1
        return ""

    def on_failure(self) -> None:
        """The request failed.

        The next one is full, since the leader may or may not have processed this one.
        """
        self._begin_anew(self._session_id)

    def _begin_anew(self, closed_session_id: int) -> None:
        self._session_id, self._epoch = closed_session_id, _FULL


def _topics(partitions: RequestedPartitions) -> list[FetchTopic]:
    topics: dict[object, FetchTopic] = {}
    for place, partition in partitions.items():
        topic = topics.get(place.topic_id)
        if topic is None:
            topic = topics[place.topic_id] = FetchTopic(None, place.topic_id, [])
        topic.partitions.append(partition)
    return list(topics.values())


def _forgotten(places: Iterable[TopicIdPartition]) -> list[ForgottenTopic]:
    topics: dict[object, ForgottenTopic] = {}
    for place in places:
        topic = topics.get(place.topic_id)
        if topic is None:
            topic = topics[place.topic_id] = ForgottenTopic(None, place.topic_id, [])
        topic.partitions.append(place.partition)
    return list(topics.values())
