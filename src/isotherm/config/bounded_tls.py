"""TLS of a server whose clients cannot keep it busy without sending data.

A client of TLS 1.2 may ask for a second handshake in its connection (renegotiation), one of TLS 1.3
for new keys, as often as it likes. OpenSSL answers each, and goes on: answers that the client does
not read would fill the memory, and a read of nothing but such messages would hold up the event
loop. As in Kafka (SslTransportLayer), a second handshake ends the connection. So do more than
OVERHEAD_SIZE_MAX bytes without data, or of answers that are not read.
"""

from __future__ import annotations

import ssl
from typing import Any

# More than three records of the largest size. One that has arrived in part brings no data yet.
OVERHEAD_SIZE_MAX = 64 * 1024


class BoundedTlsObject(ssl.SSLObject):
    """Made by `BoundedTlsContext.wrap_bio`. `read` raises SSLError at a bound."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    # Received since the last data, and answered since the client has taken all.
    overhead_size = 0
    unread_size = 0

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - SSLObject's name
        received, unsent = self.incoming.pending, self.outgoing.pending
        try:
            data = super().read(len, buffer)
        except ssl.SSLWantReadError:
            self.overhead_size += received - self.incoming.pending
            if self.overhead_size > OVERHEAD_SIZE_MAX:
                raise ssl.SSLError("too many messages of TLS without data") from None
            if self.outgoing.pending > unsent:
                self._count_answers(unsent)
            raise
        self.overhead_size = 0
        if self.outgoing.pending > unsent:
            self._count_answers(unsent)
        return data

    def _count_answers(self, unsent: int) -> None:
        """A read has written something."""
        # In TLS 1.2 it is the alert that refuses a handshake, in TLS 1.3 a change of keys.
        if self.version() != "TLSv1.3":
            raise ssl.SSLError("a second handshake is not supported")
        self.unread_size = self.outgoing.pending - unsent + (self.unread_size if unsent else 0)
        if self.unread_size > OVERHEAD_SIZE_MAX:
            raise ssl.SSLError("answers of TLS are not read")


class BoundedTlsContext(ssl.SSLContext):
    """For the transports of event loops, which use `wrap_bio`."""

    sslobject_class = BoundedTlsObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> BoundedTlsObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, BoundedTlsObject)
        made.incoming, made.outgoing = incoming, outgoing
        return made
