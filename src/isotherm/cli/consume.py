"""`isotherm consume`: print a topic's records, from both tiers."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, TypeAlias

import typer
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assignment

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    check_led,
    consumer,
    one_line_errors,
    partitions_of,
)
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import error_console, json_text
from isotherm.cli.point_in_time import time_ms
from isotherm.cli.shown_bytes import json_fields, json_headers, terminal_text
from isotherm.cli.stop_signals import HeldSignals, held_signals
from isotherm.client.record_headers import HeaderReader, Headers
from isotherm.clock import Clock, SystemClock
from isotherm.errors import ConfigError, RejectedError
from isotherm.types import Offset, TimestampMs

_POLL_S = 0.5
WAIT_NOTICE_S = 5.0
_WAITS_SHOWN = 10
_BATCH_COUNT_MAX = 1000
_MARK = re.compile(rb"%[tpoTks%]|\\[tn]")
_ESCAPES = {rb"\t": b"\t", rb"\n": b"\n", b"%%": b"%"}
_INT64_MAX = 2**63 - 1
_INT64_DIGITS_MAX = len(str(_INT64_MAX))
_NAMED_OFFSETS = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}

LineOf: TypeAlias = Callable[[Any], bytes]
"""The printed form of a message, without the line's end."""


@with_groups
def consume(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "-o",
            help="beginning, end, a number, or @TIME: the first record of each partition since"
            " then, in ms since 1970 or as 2026-01-31T12:00 (UTC unless it has an offset). A"
            " partition that does not have the number is read from its nearest end, and named.",
        ),
    ] = "beginning",
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="One partition; all if not given."),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option("--max-records", "-n", min=1, help="Stop after this many records."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")
    ] = False,
    record_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="%t topic, %p partition, %o offset, %T timestamp, %k key, %s value,"
            r" %% a percent sign; \t and \n.",
        ),
    ] = "%s",
    as_base64: Annotated[
        bool, typer.Option("--base64", help="Print keys, values and headers as base64.")
    ] = False,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Print records. Without --follow it stops at the present end of the topic.

    A pipe or a file gets the bytes of keys and values as they are. A terminal gets text, with \\xNN
    for control characters and for bytes that are not UTF-8.

    As JSON, key_encoding and value_encoding say how a text becomes the bytes again: utf-8, or
    base64 for bytes that are not UTF-8. Headers are a list of objects with key, value and encoding,
    as several may have one name.
    """
    check_format(record_format)
    is_time = offset.startswith("@")
    start = _start_time_ms(offset[1:]) if is_time else _start_offset(offset)
    with one_line_errors(bootstrap_server), held_signals() as signals:
        settings = client.properties
        if as_json:
            properties = {"bootstrap.servers": bootstrap_server, **settings}
            header_reader = HeaderReader(properties, SystemClock())
            line_of = json_line(header_reader.headers_of, as_base64=as_base64)
        else:
            for_terminal = sys.stdout.isatty()
            line_of = text_line(record_format, as_base64=as_base64, for_terminal=for_terminal)
        reader = consumer(bootstrap_server, settings)
        try:
            starts = [
                Assignment(topic, place.partition, start)
                for place in partitions_of(reader, topic)
                if partition is None or place.partition == partition
            ]
            if not starts:
                count = len(partitions_of(reader, topic))
                raise typer.BadParameter(
                    f"no partition {partition}: {topic} has 0 to {count - 1}",
                    param_hint="--partition",
                )
            check_led(reader, topic, [start.partition for start in starts])
            if is_time:
                starts = reader.offsets_for_times(starts, timeout=REQUEST_TIMEOUT_S)
            elif start >= 0:
                starts = [_within_log(reader, start) for start in starts]
            reader.assign(starts)
            _print_records(reader, starts, max_records, follow, line_of, signals)
        except KeyboardInterrupt:
            raise typer.Exit(signals.exit_code) from None
        finally:
            reader.close()


def _start_time_ms(text: str) -> TimestampMs:
    try:
        return time_ms(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--offset") from None


def _start_offset(text: str) -> int:
    if text in _NAMED_OFFSETS:
        return _NAMED_OFFSETS[text]
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(
            f"beginning, end, a number or @TIME: {text}", param_hint="--offset"
        )
    start = int(text) if len(text) <= _INT64_DIGITS_MAX else _INT64_MAX + 1
    if start > _INT64_MAX:
        raise typer.BadParameter(f"at most {_INT64_MAX}: {text}", param_hint="--offset")
    return start


def check_format(record_format: str) -> None:
    """Raise BadParameter for a mark that has no meaning: it would be printed as it is."""
    rest = _MARK.sub(b"", os.fsencode(record_format))
    at = rest.find(b"%")
    if at >= 0:
        mark = os.fsdecode(rest[at : at + 2])
        raise typer.BadParameter(
            f"no such mark: {mark} (%t %p %o %T %k %s, and %% for a percent sign)",
            param_hint="--format",
        )


def _within_log(reader: Consumer, assignment: Assignment) -> Assignment:
    """The start in a partition: the offset, or the nearest end of its log, which is told."""
    first, end = reader.get_watermark_offsets(assignment, timeout=REQUEST_TIMEOUT_S)
    start = nearest_offset(assignment.offset, first, end)
    if start != assignment.offset:
        where = "its end" if start == end else "its log start"
        error_console().print(
            f"isotherm: the partition does not have the offset and is read from {where}"
            f" topic={assignment.topic} partition={assignment.partition} offset={assignment.offset}"
            f" log_start={first} end={end}",
            soft_wrap=True,
        )
    return Assignment(assignment.topic, assignment.partition, start)


def nearest_offset(offset: Offset, first: Offset, end: Offset) -> Offset:
    """The offset, or the log's nearest end.

    So all records from the offset on are read that there are.
    """
    return min(max(offset, first), end)


def _print_records(
    reader: Consumer,
    starts: Sequence[Assignment],
    max_records: int | None,
    follow: bool,
    line_of: LineOf,
    signals: HeldSignals,
) -> None:
    """Print records to the end.

    A signal ends it with KeyboardInterrupt, between two calls of the reader.
    """
    ended: set[int] = set()
    printed = 0
    wait = WaitNotice(SystemClock(), starts)
    while follow or len(ended) < len(starts):
        room = _BATCH_COUNT_MAX if max_records is None else max_records - printed
        if room <= 0:
            return
        lines = []
        if not follow:
            wait.look(reader, ended)
        for message in reader.consume(min(room, _BATCH_COUNT_MAX), _POLL_S):
            error = message.error()
            wait.end()
            if error is None:
                lines.append(line_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(int(message.partition() or 0))
            else:
                raise _failed(message, error)
        signals.released(_write, sys.stdout.buffer, lines)
        printed += len(lines)


class WaitNotice:
    """Prints one line, which says where the client waits, if the broker sends nothing for
    WAIT_NOTICE_S. A client asks for ever for records that the broker cannot read from the bucket.
    """

    def __init__(self, clock: Clock, starts: Sequence[Assignment]) -> None:
        self._clock = clock
        self._starts = starts
        self._since_s = clock.monotonic_s()
        self._is_said = False

    def end(self) -> None:
        """Something has come. The next silence has a line of its own."""
        self._since_s = self._clock.monotonic_s()
        self._is_said = False

    def look(self, reader: Consumer, ended: Collection[int]) -> None:
        waited_s = self._clock.monotonic_s() - self._since_s
        if self._is_said or waited_s < WAIT_NOTICE_S:
            return
        self._is_said = True
        waiting = [partition for partition in self._starts if partition.partition not in ended]
        # Without a record of it, the client has no position in a partition.
        positions = [
            now if now.offset >= 0 else start
            for now, start in zip(reader.position(waiting), waiting, strict=True)
        ]
        for text in wait_lines(positions, waited_s):
            error_console().print(text, soft_wrap=True)


def wait_lines(positions: Iterable[Assignment], waited_s: float) -> Iterator[str]:
    """A line for each topic, with the partitions and the offsets that are waited for."""
    by_topic: dict[str, list[str]] = {}
    for position in sorted(positions, key=lambda position: (position.topic, position.partition)):
        where = str(position.offset) if position.offset >= 0 else "its start"
        by_topic.setdefault(position.topic, []).append(f"{position.partition} at {where}")
    for topic, places in by_topic.items():
        shown = ", ".join(places[:_WAITS_SHOWN]) + (", ..." if len(places) > _WAITS_SHOWN else "")
        yield (
            f"isotherm: no answer from the broker for {waited_s:.0f} s, still waiting topic={topic}"
            f" partitions={shown!r} hint='if these records are in the remote tier, the bucket may"
            " not answer: the log of the broker has the reason'"
        )


def _write(out: BinaryIO, lines: Iterable[bytes]) -> None:
    out.write(b"".join(line + b"\n" for line in lines))
    out.flush()


def _failed(message: Any, error: KafkaError) -> Exception:
    partition = message.partition()
    if message.topic() is None or partition is None or partition < 0:
        return KafkaException(error)
    return RejectedError(
        f"a partition cannot be read topic={message.topic()} partition={partition}"
        f" reason='{error.name()}: {error.str()}'"
    )


def json_line(headers_of: Callable[[Any], Headers], *, as_base64: bool) -> LineOf:
    """Prints a message as a JSON object, in UTF-8."""

    def line_of(message: Any) -> bytes:
        row = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "ts": message.timestamp()[1],
            **json_fields("key", message.key(), as_base64=as_base64),
            **json_fields("value", message.value(), as_base64=as_base64),
            "headers": json_headers(headers_of(message), as_base64=as_base64),
        }
        return json_text(row).encode()

    return line_of


def text_line(record_format: str, *, as_base64: bool, for_terminal: bool) -> LineOf:
    """Prints a message in a format, with the bytes of its key and value as they are, or fit for
    a terminal.
    """
    # An argument may have bytes that are no text.
    format_bytes = os.fsencode(record_format)

    def shown(data: bytes | None) -> bytes | None:
        if data is None:
            return None
        if as_base64:
            return base64.b64encode(data)
        return terminal_text(data).encode() if for_terminal else data

    def line_of(message: Any) -> bytes:
        fields = {
            b"t": message.topic().encode(),
            b"p": b"%d" % message.partition(),
            b"o": b"%d" % message.offset(),
            b"T": b"%d" % message.timestamp()[1],
            b"k": shown(message.key()),
            b"s": shown(message.value()),
        }
        return formatted(format_bytes, fields)

    return line_of


def formatted(record_format: bytes, fields: Mapping[bytes, bytes | None]) -> bytes:
    """The format with its `%` marks replaced. Marks inside keys and values are not replaced."""

    def part(mark: re.Match[bytes]) -> bytes:
        text = mark[0]
        return _ESCAPES[text] if text in _ESCAPES else fields[text[1:]] or b""

    return _MARK.sub(part, record_format)
