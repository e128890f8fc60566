"""One client connection: receives frames, passes them on, and sends the answers in order.

    i32 size | request ...        repeated; size counts the bytes after it

Invariants:
- One request of a connection is processed at a time, so the pipelined batches of a producer are
  appended in order. Later frames wait in `_waiting`. While any frame waits, the socket is not read.
- A request with acks=all whose records are appended waits for the replicas only to be answered, so
  the next request begins meanwhile, up to UNANSWERED_MAX of them. In Kafka a producer's next batch
  waits until all replicas have the one before (docs/decisions/0106).
- Answers are sent in the order of the requests.
- After it leaves the kernel a payload is copied at most once. A frame that has arrived in part gets
  its own buffer, and the socket reads the rest directly into it. The buffer has room for the size
  field of the next frame: if frames follow closely, each is received by one read and not copied at
  all.
- Frames before an invalid one are answered; then the connection is closed.
- Records whose frame has arrived completely are appended even if the client disconnects. Other
  requests in progress are cancelled.
- Requests of all connections take turns (`turns`), so those that one read brings do not hold up
  other clients.
- A muted connection (`mute`) is not read, and its frames wait. Earlier requests are answered.
- Reading also stops while the client does not read its answers, and while
  `queued.max.request.bytes` is used up (`request_memory`), except for frames that soon end.
- Small answers are collected and sent with one write, because the write is the most expensive part
  of a small answer. One write covers all frames of a read. It covers several reads while each read
  fills its buffer, since the socket then holds more data. It happens at the latest in the next loop
  iteration.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from isotherm.broker.metadata.access.principal import ANONYMOUS, Principal
from isotherm.broker.server.net.frame_pool import POOLED_SIZE_MIN
from isotherm.broker.server.net.loop_watch import OTHER, SLOW_STEP_S
from isotherm.broker.server.net.request_memory import RequestMemory
from isotherm.broker.server.net.tcp_state import is_reset
from isotherm.config.listener import Listener
from isotherm.errors import IsothermError, RejectedError
from isotherm.protocol.api_keys import ApiKey, api_name

if TYPE_CHECKING:
    from isotherm.broker.server.net.answer_memory import AnswerMemory
    from isotherm.broker.server.net.frame_pool import FramePool
    from isotherm.broker.server.net.loop_watch import LoopWatch
    from isotherm.broker.server.net.turns import Turns

logger = logging.getLogger(__name__)

SIZE_FIELD = struct.Struct(">i")

# Size of a read between frames: many small requests, or the start of a large one.
SCRATCH_SIZE = 64 * 1024

# Size of a read between frames while request memory is used up.
READ_SIZE_WITHOUT_MEMORY = 1024

# Size of a read between frames while the time of the round is spent. Taking frames apart is no part
# of a turn, so what many connections bring in one iteration has to be little.
READ_SIZE_WITHOUT_TIME = 4096

# The largest frame that a client may send although the memory for that is used up: the messages of
# PLAIN and SCRAM, usual tokens, and most requests but those with records are smaller.
FRAME_SIZE_WITHOUT_MEMORY = 4096

# So many bytes such frames may bring after the login, in all.
SHARED_SIZE_MAX = 4 * 1024 * 1024

# A larger frame has memory of its own from the system: pages that no byte has reached cost nothing,
# and all return when the frame is answered. The allocator would keep them, and back them with large
# pages.
ALLOCATED_FRAME_SIZE_MAX = 2 * 1024 * 1024

# Above this size the collected answers are sent at once: the bytes dominate the cost of the write,
# and the transport must see them to notice a client that does not read.
UNSENT_SIZE_MAX = 64 * 1024

# Requests of one connection that may be in progress at once. Each keeps its frame in memory.
UNANSWERED_MAX = 16

# What a transport calls when its connection has ended: nothing.
_NOBODY = asyncio.BufferedProtocol()

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Answer: TypeAlias = "Sequence[Buffer]"


class PendingAnswer(NamedTuple):
    """An answer that is available once `future` is done. Cancelling `future` discards it.

    With `outlives_client` the work continues after a disconnect, and `answer` is still called. With
    `is_done_but_for_answer` the next request of the connection begins before this one is answered.
    """

    future: asyncio.Future[Any]
    answer: Callable[[], Answer | PendingAnswer]
    outlives_client: bool = False
    is_done_but_for_answer: bool = False


class _Unanswered:
    """A request that waits for its answer or for the answers of earlier requests.

    Its frame counts against the request memory until it is answered. `failure` is the reason to
    close the connection instead of an answer.
    """

    __slots__ = ("answer", "failure", "frame", "pending")

    def __init__(
        self, frame: memoryview, pending: PendingAnswer | None, answer: Answer, failure: str | None
    ) -> None:
        self.frame = frame
        self.pending = pending
        self.answer = answer
        self.failure = failure

    @property
    def lets_next_begin(self) -> bool:
        if self.pending is None:
            return self.failure is None
        return self.pending.is_done_but_for_answer


class FrameHandler(Protocol):
    """Answers one frame. An empty answer sends nothing (acks=0)."""

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer | PendingAnswer:
        """Raises IsothermError, here or in `PendingAnswer.answer`, to close the connection."""


class Entrance(NamedTuple):
    """What applies to a new connection: the handler of its frames, the largest frame in bytes, and
    the memory in which its frames count. The last two apply until `Connection.authenticated`."""

    handler: FrameHandler
    frame_size_max: int
    memory: RequestMemory


class ConnectionOwner(Protocol):
    """The part of the server that a connection uses."""

    @property
    def memory(self) -> RequestMemory: ...
    @property
    def answers(self) -> AnswerMemory[Connection]: ...
    @property
    def loop_watch(self) -> LoopWatch: ...
    @property
    def turns(self) -> Turns[Connection]: ...
    @property
    def scratch(self) -> memoryview: ...
    @property
    def frames(self) -> FramePool: ...
    @property
    def frame_size_max(self) -> int: ...
    @property
    def write_buffer_size_max(self) -> int: ...

    def entrance(self, connection: Connection) -> Entrance: ...

    def admit(self, connection: Connection) -> bool:
        """Register the connection; returns False once the server stops."""

    def authenticated(self, connection: Connection) -> None:
        """The client has logged in, perhaps not for the first time."""

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Event loop thread only. `active_at` is the loop time of the last byte in or answer out."""

    # Without them a connection has a dict of its own, which takes 2 KB: 30 attributes and fewer
    # would share its keys.
    __slots__ = (
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_frame_size_max",
        "_is_closed",
        "_is_draining",
        "_leftover",
        "_loop",
        "_more_is_expected",
        "_owner",
        "_read_is_paused",
        "_read_size_max",
        "_refusal",
        "_requests",
        "_reserved",
        "_sending",
        "_transport",
        "_unanswered",
        "_unmuting",
        "_unsent",
        "_unsent_size",
        "_waiting",
        "_waits_for_turn",
        "_when_closed",
        "_write_is_paused",
        "active_at",
        "answered_size",
        "client_address",
        "listener",
        "listener_name",
        "may_finish",
        "principal",
        "repeated_requests",
        "request_memory",
        "turn_time",
    )

    def __init__(
        self, owner: ConnectionOwner, listener: Listener, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.listener = listener
        self.listener_name = listener.name
        self.client_address = ""
        self.principal = ANONYMOUS
        # For the API of the requests: what later ones may repeat (docs/decisions/0308).
        self.repeated_requests: Any = None
        self.active_at = loop.time()
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport
        self._requests: FrameHandler
        self._frame_size_max = owner.frame_size_max
        self.request_memory = owner.memory
        # Whether a frame is read to its end although request memory is used up.
        self.may_finish = False
        self.turn_time = (0, 0.0)
        self._waits_for_turn = False
        # Lists, though their first item is taken: an empty deque takes 600 bytes. One read brings
        # some thousands of frames at most.
        self._waiting: list[memoryview] = []
        self._leftover = b""
        # The buffer of the frame being received, with room for the next size field after it.
        self._frame: memoryview | None = None
        self._frame_size = 0
        self._frame_filled = 0
        self._reserved = 0
        self._unanswered: list[_Unanswered] = []
        self._unsent: list[Buffer] = []
        self._unsent_size = 0
        self.answered_size = 0
        self._sending: asyncio.Handle | None = None
        self._read_size_max = 0
        self._more_is_expected = False
        self._write_is_paused = False
        self._read_is_paused = False
        self._refusal: str | None = None
        self._is_draining = False
        self._is_closed = False
        self._unmuting: asyncio.TimerHandle | None = None
        # None until there is one: an empty set takes 200 bytes.
        self._when_closed: set[Callable[[Any], None]] | None = None

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate in DER; None without TLS or if the client sent none."""
        tls = self._transport.get_extra_info("ssl_object")
        certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return certificate

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport but are not subclasses.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_address = str(peer[0])
        self._requests, self._frame_size_max, self.request_memory = self._owner.entrance(self)
        self._transport.set_write_buffer_limits(high=self._owner.write_buffer_size_max)
        if not self._owner.admit(self):
            # Aborted after this call returns, since the transport is still being set up.
            self._is_draining = True
            self._loop.call_soon(self.abort)
        # After this call, since uvloop begins to read when it returns, whatever was paused in it.
        self._loop.call_soon(self.update_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        # First: the release below may resume the reading of every connection, this one included.
        self._is_closed = True
        self._waiting.clear()
        self._unsent.clear()
        self._frame = None
        if self._sending is not None:
            self._sending.cancel()
        if self._unmuting is not None:
            self._unmuting.cancel()
        for request in tuple(self._unanswered):
            if request.pending is not None and not request.pending.outlives_client:
                request.pending.future.cancel()
        # Frames of requests that outlive the client are released here too, so `_answer` does not.
        self.request_memory.release(self._reserved)
        self._reserved = 0
        self._owner.forget(self)
        for callback in self._when_closed or ():
            callback(self)
        # A transport with TLS keeps the protocol, which keeps the transport: 256 KiB that only the
        # garbage collector would free, and not even that if they are excluded (broker/garbage.py).
        self._transport.set_protocol(_NOBODY)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            room = self._frame[self._frame_filled :]
        else:
            # All connections share the scratch buffer. That is safe because the loop calls
            # get_buffer, reads, and calls buffer_updated without another callback in between.
            # `_leftover` keeps the bytes of an incomplete size field.
            room = self._owner.scratch
            if self._leftover:
                room[: len(self._leftover)] = self._leftover
                room = room[len(self._leftover) :]
            if self.request_memory.is_exhausted:
                # A new connection is read once before it can be paused.
                room = room[:READ_SIZE_WITHOUT_MEMORY]
            elif self._owner.turns.left_s <= 0:
                room = room[:READ_SIZE_WITHOUT_TIME]
        self._read_size_max = len(room)
        return room

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = self._loop.time()
        # A full read means that the socket probably holds more: answers wait for it (`_work`).
        self._more_is_expected = nbytes == self._read_size_max
        if self._frame is None:
            self._split(self._owner.scratch[: len(self._leftover) + nbytes])
        else:
            counted = min(nbytes, self._frame_size - self._frame_filled)
            self._frame_filled += nbytes
            self._reserved += counted
            # Added here, not by a method: a request has a budget of calls (docs/decisions/0136).
            memory = self.request_memory
            memory.used += counted
            if memory.used >= memory.limit:
                memory.exhaust()
            self._end_frame(self._frame)
        self._work()
        self._more_is_expected = False

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_is_paused = True
        self.update_reading()

    def resume_writing(self) -> None:
        self._write_is_paused = False
        self._work()

    # ---- called by the server

    @property
    def is_busy(self) -> bool:
        """Whether a request is unanswered or an answer is unsent."""
        return (
            bool(self._unanswered)
            or bool(self._unsent)
            or self._transport.get_write_buffer_size() > 0
        )

    @property
    def client(self) -> tuple[str, str, bool]:
        """Who answers for what the connection holds, and for the time that it takes.

        Clients without a login are their addresses. Those who are about to log in are others than
        those who need no login: requests before a login are small, so whoever comes from the same
        address does not wait behind large ones.
        """
        address = "" if self.principal is not ANONYMOUS else self.client_address
        return self.principal.name, address, self.request_memory is self._owner.memory

    @property
    def unfinished_size(self) -> int:
        """Bytes of requests that have arrived and are not worked on, by the client's doing: it has
        not sent the rest of one, does not read the answers before them, has asked for an answer
        that waits, or is over a quota.

        Requests that wait for their turn are not among them: the broker is busy.
        """
        begun = self._frame_filled if self._frame is not None else 0
        return begun + (0 if self._waits_for_turn else sum(map(len, self._waiting)))

    @property
    def missing_size(self) -> int:
        """Bytes that a frame which has arrived in part lacks; 0 without one."""
        return 0 if self._frame is None else self._frame_size - self._frame_filled

    @property
    def answer_size(self) -> int:
        """Bytes of answers that the client's socket has not taken."""
        return self._transport.get_write_buffer_size()

    def take_turn(self) -> None:
        checked_s = 0.0
        turns = self._owner.turns
        if self.request_memory is not self._owner.memory and not self._transport.is_closing():
            # Before the login nothing comes of requests whose client has gone. Reading is paused,
            # so the transport does not tell. A client that has only closed its half is answered, as
            # in Kafka; if it has gone, the first answer resets the connection.
            began_s = turns.now_s()
            has_gone = is_reset(self._transport.get_extra_info("socket"))
            checked_s = turns.now_s() - began_s
            if has_gone:
                turns.left_s -= checked_s
                self.abort()
                return
        self._work()
        # Not before: a turn is one request at the least.
        turns.left_s -= checked_s

    def when_closed(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when the connection is closed; once, if it is added twice."""
        if self._when_closed is None:
            self._when_closed = set()
        self._when_closed.add(callback)

    def drain(self) -> None:
        """Stop reading, answer the requests in progress, then close the connection."""
        self._is_draining = True
        self._waiting.clear()
        self.update_reading()
        if not self._unanswered:
            self._send()
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def authenticated(self, principal: Principal) -> None:
        """Record the client's identity. Its requests may now have up to socket.request.max.bytes,
        and count in the memory of clients that have logged in."""
        self.principal = principal
        self._frame_size_max = self._owner.frame_size_max
        if self.request_memory is not self._owner.memory:
            self.request_memory.release(self._reserved)
            self.request_memory = self._owner.memory
            size, self._reserved = self._reserved, 0
            self._count(size)
        self._owner.authenticated(self)

    def mute(self, duration_s: float) -> None:
        """Process no new request for this time: the client is over a quota (KIP-219). A longer rest
        of an earlier call stays."""
        # Requests that waited for replicas together may each be over a quota when they are
        # answered.
        if self._unmuting is not None:
            if self._unmuting.when() >= self._loop.time() + duration_s:
                return
            self._unmuting.cancel()
        self._unmuting = self._loop.call_later(duration_s, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self.active_at = self._loop.time()
        self._work()

    def update_reading(self) -> None:
        """Pause or resume reading, according to the invariants of this module."""
        must_pause = (
            self._is_draining
            or self._refusal is not None
            or self._write_is_paused
            or self._unmuting is not None
            or bool(self._waiting)
            or (self.request_memory.is_exhausted and not self._may_read_without_memory)
        )
        if self._is_closed or must_pause == self._read_is_paused:
            return
        self._read_is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def _may_read_without_memory(self) -> bool:
        share = self.request_memory.share
        if self._frame is not None:
            return self.may_finish or self._frame_size <= share
        return share > 0 and not self._reserved

    # ---- frames

    def _split(self, received: memoryview) -> None:
        position, end = 0, len(received)
        while end - position >= SIZE_FIELD.size:
            (size,) = SIZE_FIELD.unpack_from(received, position)
            if not 0 <= size <= self._frame_size_max:
                self._refusal = f"frame size is not allowed size={size}"
                return
            position += SIZE_FIELD.size
            frame_end = position + size
            self._begin_frame(size, received[position : min(frame_end, end)])
            position = min(frame_end, end)
        self._leftover = bytes(received[position:end]) if position < end else b""

    def _begin_frame(self, size: int, head: memoryview) -> None:
        # Copied, since the next read of any connection fills the scratch buffer.
        if len(head) == size:
            self._waiting.append(memoryview(bytearray(head)))
            self._count(size)
            return
        room = size + SIZE_FIELD.size
        # Neither touches the pages behind the head, so an announced size whose bytes never come
        # costs no memory.
        if room < POOLED_SIZE_MIN:
            frame = np.empty(room, np.uint8).data
        elif room <= ALLOCATED_FRAME_SIZE_MAX:
            frame = self._owner.frames.take(room)
        else:
            frame = memoryview(mmap.mmap(-1, room))
        frame[: len(head)] = head
        self._frame, self._frame_size, self._frame_filled = frame, size, len(head)
        self._count(len(head))

    def _count(self, size: int) -> None:
        memory = self.request_memory
        self._reserved += size
        memory.used += size
        if memory.used >= memory.limit:
            memory.exhaust()

    def _end_frame(self, frame: memoryview) -> None:
        """Queue the frame if it is complete. Bytes after it start the next frame."""
        size = self._frame_size
        if self._frame_filled < size:
            return
        self._waiting.append(frame[:size])
        self._frame = None
        behind = frame[size : self._frame_filled]
        # These bytes are at most a size field. While memory is exhausted they must not begin a
        # frame.
        if self.request_memory.is_exhausted or not behind:
            self._leftover = bytes(behind)
        else:
            self._split(behind)

    # ---- requests

    def _work(self) -> None:
        """Handle waiting frames until one has to wait, the client does not read its answers, or it
        is the turn of others."""
        turns = self._owner.turns
        self._waits_for_turn = False
        while (
            self._waiting
            and (not self._unanswered or self._may_overtake_answers)
            and not self._write_is_paused
            and self._unmuting is None
            and not self._is_closed
        ):
            if turns.left_s <= 0:
                self._waits_for_turn = True
                turns.wait(self)
                break
            frame = self._waiting.pop(0)
            began_s = turns.now_s()
            self._proceed(frame)
            duration_s = turns.now_s() - began_s
            turns.left_s -= duration_s
            if duration_s >= SLOW_STEP_S:
                self._note_step(duration_s, frame)
        if self._unsent and not self._more_is_expected:
            self._send()
        elif self._unsent and self._sending is None:
            self._sending = self._loop.call_soon(self._send)
        is_idle = not self._waiting and not self._unanswered and not self._is_closed
        if self._refusal is not None and is_idle:
            self._close_with(self._refusal)
        self.update_reading()

    @property
    def _may_overtake_answers(self) -> bool:
        return len(self._unanswered) < UNANSWERED_MAX and self._unanswered[-1].lets_next_begin

    def _proceed(self, frame: memoryview) -> None:
        """Handle a frame and send its answer, after the answers of earlier requests. Closes the
        connection if the handler raises IsothermError."""
        answer: Answer = ()
        pending, failure = None, None
        try:
            result = self._requests.handle_frame(frame, self)
        except IsothermError as error:
            failure = str(error)
        else:
            if isinstance(result, PendingAnswer):
                pending = result
            else:
                answer = result
        if pending is not None or self._unanswered:
            unanswered = _Unanswered(frame, pending, answer, failure)
            self._unanswered.append(unanswered)
            self._await(unanswered)
        elif failure is not None:
            self._close_with(failure)
        else:
            self._answer(frame, answer)

    def _note_step(self, duration_s: float, frame: memoryview) -> None:
        # Before a login a frame may be a token, which has no header.
        key = int.from_bytes(frame[:2], "big")
        request = api_name(key) if key in ApiKey.__members__.values() else OTHER
        self._owner.loop_watch.step(
            duration_s, request, len(frame), self.client_address, self.principal.name
        )

    def _await(self, unanswered: _Unanswered) -> None:
        if unanswered.pending is None:
            return

        def finish(_: asyncio.Future[Any]) -> None:
            # A request behind the first is answered together with those before it.
            if self._unanswered and self._unanswered[0] is unanswered:
                turns = self._owner.turns
                began_s = turns.now_s()
                self._answer_in_order()
                duration_s = turns.now_s() - began_s
                turns.left_s -= duration_s
                if duration_s >= SLOW_STEP_S:
                    self._note_step(duration_s, unanswered.frame)
                self._work()

        unanswered.pending.future.add_done_callback(finish)

    def _answer_in_order(self) -> None:
        """Answer requests in order, up to the first whose answer is not available."""
        while self._unanswered:
            first = self._unanswered[0]
            if first.pending is not None:
                future = first.pending.future
                if not future.done():
                    return
                if future.cancelled() and self._is_closed:  # the client has gone
                    self._unanswered.pop(0)
                    continue
                try:
                    if future.cancelled():
                        # A skipped answer would pair every later answer with the wrong request.
                        raise RejectedError("a request was cancelled")
                    result = first.pending.answer()
                except IsothermError as error:
                    first.pending, first.failure = None, str(error)
                else:
                    if isinstance(result, PendingAnswer):
                        first.pending = result
                        self._await(first)
                        return
                    first.pending, first.answer = None, result
            self._unanswered.pop(0)
            if first.failure is not None:
                self._close_with(first.failure)
            else:
                self._answer(first.frame, first.answer)

    def _answer(self, frame: memoryview, answer: Answer) -> None:
        if self._is_closed:
            return
        self._reserved -= len(frame)
        self.request_memory.release(len(frame))
        if answer:
            self._unsent += answer
            self._unsent_size += sum(map(len, answer))
            self.active_at = self._loop.time()
        is_last = self._is_draining and not self._unanswered
        if is_last or self._unsent_size >= UNSENT_SIZE_MAX:
            self._send()
        if is_last:
            self._transport.close()

    def _send(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._unsent:
            unsent, size = self._unsent, self._unsent_size
            self._unsent, self._unsent_size = [], 0
            self._transport.writelines(unsent)
            self.answered_size += size
            answers = self._owner.answers
            answers.used += size
            if answers.used >= answers.limit:
                answers.check()

    def _close_with(self, reason: str) -> None:
        logger.info(
            "connection closed client=%s listener=%s reason=%s",
            self.client_address,
            self.listener_name,
            reason,
        )
        self._send()
        self._is_closed = True
        self._transport.close()
