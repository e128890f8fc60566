"""`isotherm produce`: records from standard input, one a line.

Each line is acknowledged, or named with the reason.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from typing import Annotated, Any, NamedTuple, cast

import typer
from confluent_kafka import KafkaError, KafkaException, Producer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from isotherm.cli.client import one_line_errors, producer
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import error_console
from isotherm.cli.stop_signals import HeldSignals, held_signals
from isotherm.clock import Clock, SystemClock
from isotherm.errors import BrokerUnreachableError, RejectedError

_BUFFER_FULL_WAIT_S = 0.5
_STEP_S = 0.1
"""How long one call of the client may take, so that a signal is soon noticed."""
_PRINT_EVERY_S = 1.0
_BLOCK_BYTES = 64 * 1024
STOP_WAIT_S_MAX = 10.0
"""After a signal: how long the lines that were sent may take to be acknowledged."""
_LINE_BYTES_MAX = 1_048_576
"""The client's largest record, as with Kafka's tools (max.request.size)."""
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DELIVERY_TIMEOUT = "message.timeout.ms"
DELIVERY_TIMEOUT_MS = 120_000
"""As Kafka's delivery.timeout.ms: a line that no broker stores in this time is refused. A broker
whose disk has failed asks for another try, again and again."""
NOTICE_S = 5.0
"""After this time without an acknowledgement a line says that lines are waiting."""
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


@with_groups
def produce(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            # Help texts are Markdown, which shows one of two backslashes.
            help="Text between key and value of a line. \\t, \\n, \\r, \\0, \\\\\\\\ and \\xNN"
            " stand for a byte. A line without it is not sent.",
        ),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", min=-1, help="Partition; -1 is chosen by the key.")
    ] = -1,
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    client: ClientOptions,
) -> None:
    """Produce one record per line of standard input, and wait until all are acknowledged.

    printf 'N14228:{"delay": 2}\\n' | isotherm produce flights -K :

    A line that is not acknowledged is named on standard error with the reason, and the others are
    sent.

    Exit codes: 0 all lines are acknowledged · 1 some are not · 2 wrong options · 130 interrupted.
    """
    if compression not in _CODECS:
        raise typer.BadParameter(
            f"one of {', '.join(_CODECS)}: {compression}", param_hint="--compression"
        )
    separator = None if key_separator is None else separator_bytes(key_separator)
    properties = {
        "compression.type": compression,
        "acks": "all",
        "message.max.bytes": str(_LINE_BYTES_MAX),
        DELIVERY_TIMEOUT: str(DELIVERY_TIMEOUT_MS),
        **client.properties,
    }
    # Each record of this client has a batch of its own.
    single = {**properties, "batch.num.messages": "1"}
    with one_line_errors(bootstrap_server):
        batching = producer(bootstrap_server, properties)
    with one_line_errors(bootstrap_server), _spinner() as progress, held_signals() as signals:
        task = progress.add_task("producing", total=None)
        delivery = LineDelivery(
            batching,
            functools.partial(producer, bootstrap_server, single),
            topic,
            partition,
            lambda line: progress.console.print(line, soft_wrap=True),
            signals,
            SystemClock(),
        )
        try:
            for lines in blocks_of_lines(cast(BufferedReader, sys.stdin.buffer).read1, signals):
                delivery.send(lines, separator)
                progress.update(task, completed=delivery.lines)
        except KeyboardInterrupt:
            pass  # what was sent is waited for
        delivery.finish()
    _check_all_acknowledged(delivery, signals, topic)


def _check_all_acknowledged(delivery: LineDelivery, signals: HeldSignals, topic: str) -> None:
    counts = (
        f"lines={delivery.lines} acknowledged={delivery.acknowledged}"
        f" not_acknowledged={delivery.lines - delivery.acknowledged} topic={topic}"
    )
    if signals.count:
        error_console().print(f"isotherm: interrupted {counts}", soft_wrap=True)
        raise typer.Exit(signals.exit_code)
    if delivery.acknowledged < delivery.lines:
        raise RejectedError(f"not every line is acknowledged {counts}")


def separator_bytes(text: str) -> bytes:
    """The bytes of a separator. Raises BadParameter for an empty one, and for an unknown escape."""

    def unescaped(escape: re.Match[bytes]) -> bytes:
        name = escape[1]
        if len(name) > 1:
            return bytes([int(name[1:], 16)])
        if name not in _ESCAPED:
            raise typer.BadParameter(
                rf"no such escape: {text} (\t, \n, \r, \0, \xNN, and \\ for a backslash)",
                param_hint="--key-separator",
            )
        return _ESCAPED[name]

    if not text:
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    # An argument may have bytes that are no text.
    return _ESCAPE.sub(unescaped, os.fsencode(text))


def blocks_of_lines(read: Callable[[int], bytes], signals: HeldSignals) -> Iterator[list[bytes]]:
    """The lines of each block, as soon as it is read. A signal ends the wait for the next one with
    KeyboardInterrupt."""
    # The parts of a line whose end has not been read.
    begun: list[bytes] = []
    while block := signals.released(read, _BLOCK_BYTES):
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun.clear()
        begun.append(rest)
        yield lines
    if last := b"".join(begun):
        yield [last]


class _Refusal(NamedTuple):
    line: int
    reason: str


class LineDelivery:
    """Sends lines of `topic`, counts those that are acknowledged, and prints why others are not.

    A broker refuses a batch as a whole if it is larger than the topic's max.message.bytes. Such a
    line is sent again in a batch of its own, by the client of `open_single`, and is then behind
    later lines.
    """

    def __init__(
        self,
        client: Producer,
        open_single: Callable[[], Producer],
        topic: str,
        partition: int,
        print_line: Callable[[str], None],
        signals: HeldSignals,
        clock: Clock,
    ) -> None:
        self._client = client
        self._open_single = open_single
        self._single: Producer | None = None
        self._topic = topic
        self._partition = partition
        self._print_line = print_line
        self._signals = signals
        self._clock = clock
        # What the calls of a client told, bounded by its queue. Refusals are printed at most once
        # in _PRINT_EVERY_S, as consecutive lines are then printed as one.
        self._refusals: list[_Refusal] = []
        self._print_at_s = clock.monotonic_s() + _PRINT_EVERY_S
        self._too_large: list[tuple[int, bytes | None, bytes]] = []
        self._settled_s = clock.monotonic_s()
        self._is_wait_said = False
        self.lines = 0
        self.acknowledged = 0

    def send(self, lines: Iterable[bytes], separator: bytes | None) -> None:
        """Send the next lines, up to a signal.

        If the client's queue is full, wait until there is room.
        """
        for text in lines:
            if self._signals.count:
                return
            self.lines += 1
            if separator is None:
                key, value = None, text
            else:
                key, separator_found, value = text.partition(separator)
                if not separator_found:
                    self._refusals.append(_Refusal(self.lines, "the line has no key separator"))
                    continue
            self._send(self._client, self.lines, key, value, self._delivered)
        self._client.poll(0)
        self._settle()

    def finish(self) -> None:
        """Wait until each line is acknowledged or refused, or for STOP_WAIT_S_MAX after a signal. A
        second signal ends the wait."""
        stop_s: float | None = None
        while self._waiting():
            if self._signals.count:
                stop_s = stop_s or self._clock.monotonic_s() + STOP_WAIT_S_MAX
                if self._signals.count > 1 or self._clock.monotonic_s() >= stop_s:
                    break
            self._client.flush(_STEP_S)
            if self._single is not None:
                self._single.flush(_STEP_S)
            self._settle()
        self._print_refusals()

    def _waiting(self) -> int:
        return len(self._client) + (0 if self._single is None else len(self._single))

    def _send(
        self,
        client: Producer,
        line: int,
        key: bytes | None,
        value: bytes,
        delivered: Callable[..., None],
    ) -> None:
        on_delivery = functools.partial(delivered, line)
        while not self._signals.count:
            try:
                client.produce(
                    self._topic, value, key, partition=self._partition, on_delivery=on_delivery
                )
            except BufferError:
                # The client's queue is full (queue.buffering.max.messages). Wait until some are
                # sent.
                client.poll(_BUFFER_FULL_WAIT_S)
                self._say_wait()
            except KafkaException as error:
                self._refusals.append(_Refusal(line, _reason(error.args[0], is_own=True)))
                return
            else:
                return

    def _delivered(self, line: int, error: KafkaError | None, message: Any) -> None:
        self._settled_s = self._clock.monotonic_s()
        self._is_wait_said = False
        if error is None:
            self.acknowledged += 1
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large.append((line, message.key(), message.value()))
        else:
            self._delivered_alone(line, error, message)

    def _delivered_alone(self, line: int, error: KafkaError | None, message: Any) -> None:
        del message
        if error is None:
            self.acknowledged += 1
        else:
            self._refusals.append(_Refusal(line, _reason(error)))

    def _settle(self) -> None:
        """Act on what the calls of a client told. The client cannot be used within them."""
        if self._too_large and not self._signals.count:
            self._send_alone()
        if self._single is not None:
            self._single.poll(0)
        self._say_wait()
        if self._refusals and self._clock.monotonic_s() >= self._print_at_s:
            self._print_refusals()

    def _say_wait(self) -> None:
        """Print one line if no broker has settled a line for NOTICE_S."""
        now_s = self._clock.monotonic_s()
        if not self._waiting():
            self._settled_s = now_s
        elif not self._is_wait_said and now_s - self._settled_s >= NOTICE_S:
            self._is_wait_said = True
            self._print_line(
                f"isotherm: no line was acknowledged for {NOTICE_S:g} s, still trying"
                f" waiting={self._waiting()} topic={self._topic} key={DELIVERY_TIMEOUT}"
                " hint='the log of the broker may have the reason, such as a full disk'"
            )

    def _print_refusals(self) -> None:
        for text in refusal_lines(self._refusals):
            self._print_line(text)
        self._refusals.clear()
        self._print_at_s = self._clock.monotonic_s() + _PRINT_EVERY_S

    def _send_alone(self) -> None:
        if self._single is None:
            try:
                self._single = self._open_single()
            except BrokerUnreachableError as error:
                self._refusals += [_Refusal(line, str(error)) for line, _, _ in self._too_large]
                self._too_large.clear()
                return
        for line, key, value in self._too_large:
            self._send(self._single, line, key, value, self._delivered_alone)
        self._too_large.clear()


def refusal_lines(refusals: Iterable[_Refusal]) -> Iterator[str]:
    """One text for each run of consecutive lines with one reason."""
    ordered = sorted(refusals)
    first = 0
    for place, refusal in enumerate(ordered):
        after = ordered[place + 1] if place + 1 < len(ordered) else None
        if after == (refusal.line + 1, refusal.reason):
            continue
        begin = ordered[first].line
        where = f"line={begin}" if begin == refusal.line else f"lines={begin}-{refusal.line}"
        yield f"isotherm: not acknowledged {where} reason={refusal.reason!r}"
        first = place + 1


def _reason(error: KafkaError, *, is_own: bool = False) -> str:
    if is_own and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return "MSG_SIZE_TOO_LARGE: it is larger than the client's limit, -X message.max.bytes=N"
    if error.code() == KafkaError._UNKNOWN_PARTITION:
        return "_UNKNOWN_PARTITION: the topic has no such partition, see --partition"
    if error.code() == KafkaError._MSG_TIMED_OUT:
        return (
            f"_MSG_TIMED_OUT: no broker has stored it within -X {DELIVERY_TIMEOUT}=N, the log of"
            " the broker may have the reason"
        )
    return f"{error.name()}: {error.str()}"


def _spinner() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description} {task.completed:,} records"),
        TimeElapsedColumn(),
        console=error_console(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
