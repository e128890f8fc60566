"""The headers of records whose names librdkafka's Python client cannot give.

Its `Message.headers` returns a list with an error for a name that is not UTF-8. The interpreter
raises it as SystemError, but only where it checks the results of calls: once a method call in
Python code has run some times, it does not, and the list's missing items end the process. So the
method is called from C here. Such a record is fetched once more as bytes, and its names get
replacement characters, as in Kafka's tools. What decodes it is of an extra (docs/decisions/0166),
and is imported when the first such record comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from operator import methodcaller
from typing import Any, TypeAlias

from isotherm.clock import Clock
from isotherm.errors import CorruptRecordError, RejectedError
from isotherm.types import Offset, TopicPartition

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_library_headers = methodcaller("headers")
_FETCH_BYTES = 1024 * 1024


class HeaderReader:
    """Fetches the headers of single records. It keeps those of the last batch, as odd names come in
    rows. For one thread."""

    def __init__(self, properties: Mapping[str, Any], clock: Clock) -> None:
        """`properties` are a client's. Open no connection yet."""
        self._properties = properties
        self._clock = clock
        self._place: TopicPartition | None = None
        self._headers: dict[Offset, Headers] = {}

    def headers_of(self, message: Any) -> Headers:
        """The headers of a message of confluent-kafka, also if the client cannot give them.

        Raises RejectedError if only librdkafka can make the connection, and as
        `PartitionFetch.batches`.
        """
        try:
            return _library_headers(message) or ()
        except SystemError:
            # The message keeps the list with the missing items, and would return it now without an
            # error.
            message.set_headers([])
            place = TopicPartition(message.topic(), message.partition())
            return self._fetched(place, message.offset())

    def _fetched(self, place: TopicPartition, offset: Offset) -> Headers:
        if place != self._place or offset not in self._headers:
            self._place, self._headers = place, self._batch_headers(place, offset)
        if offset not in self._headers:
            raise CorruptRecordError(f"a record is gone partition={place} offset={offset}")
        return self._headers[offset]

    def _batch_headers(self, place: TopicPartition, offset: Offset) -> dict[Offset, Headers]:
        from isotherm.client.node_security import own_security
        from isotherm.client.partition_fetch import FetchSettings, PartitionFetch
        from isotherm.record.batch import read_records
        from isotherm.record.batch_header import iterate_batches, verify_batch_crc

        security = own_security(self._properties)
        if security is None:
            raise unreadable_name(place, offset)
        settings = FetchSettings(fetch_bytes=_FETCH_BYTES)
        fetch = PartitionFetch(place, self._properties, security, self._clock, settings)
        with closing(fetch.batches(offset, offset + 1)) as answers:
            for answer in answers:
                for position, header in iterate_batches(answer.data):
                    if header.base_offset <= offset < header.next_offset:
                        verify_batch_crc(answer.data, position, header)
                        records = read_records(answer.data, position, header)
                        return {record.offset: record.headers for record in records}
        return {}


def unreadable_name(place: TopicPartition, offset: Offset) -> RejectedError:
    """The error for a header that librdkafka's client cannot give, where no other can connect."""
    return RejectedError(
        f"a header has a name that is not UTF-8 partition={place} offset={offset} reason='the only"
        " client that supports this login or these TLS properties cannot return it' hint='read"
        " without headers, or log in by SCRAM, PLAIN or OAUTHBEARER'"
    )
