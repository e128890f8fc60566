"""`isotherm consume`: print a topic's records, from both tiers."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any

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
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientProperties,
    CommandConfig,
    client_settings,
)
from isotherm.cli.output import print_json
from isotherm.types import TimestampMs

_POLL_S = 0.5
_BATCH_COUNT_MAX = 1000
_MARK = re.compile(r"%[tpoTks%]|\\[tn]")
_ESCAPES = {r"\t": "\t", r"\n": "\n", "%%": "%"}
_NAMED_OFFSETS = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "-o",
            help="beginning, end, a number, or @TIME: the first record of each partition since then,"
            " in ms since 1970 or as 2026-01-31T12:00 (UTC unless it has an offset).",
        ),
    ] = "beginning",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="One partition; all if not given.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", help="Stop after this many records.")
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
    as_json: AsJson = False,
    client_property: ClientProperties = None,
    command_config: CommandConfig = None,
) -> None:
    """Print records. Without --follow it stops at the present end of the topic.

    As JSON, headers are a list of objects with key and value, as several may have one name.
    """
    is_time = offset.startswith("@")
    start = start_time_ms(offset[1:]) if is_time else _start_offset(offset)
    with one_line_errors(bootstrap_server):
        reader = consumer(bootstrap_server, client_settings(command_config, client_property))
        try:
            wanted = [
                Assignment(topic, found.partition, start)
                for found in partitions_of(reader, topic)
                if partition is None or found.partition == partition
            ]
            if not wanted:
                raise typer.BadParameter(f"no partition {partition}", param_hint="--partition")
            check_led(reader, topic, [each.partition for each in wanted])
            if is_time:
                wanted = reader.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S)
            reader.assign(wanted)
            _print_records(reader, len(wanted), max_records, follow, record_format, as_json)
        finally:
            reader.close()


def _start_offset(text: str) -> int:
    if text in _NAMED_OFFSETS:
        return _NAMED_OFFSETS[text]
    if not text.isdigit():
        raise typer.BadParameter(
            f"beginning, end, a number or @TIME: {text}", param_hint="--offset"
        )
    return int(text)


def start_time_ms(text: str) -> TimestampMs:
    """Parse milliseconds or a date with a time, which is in UTC unless it has an offset. Raises BadParameter for
    any other text."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"milliseconds since 1970, or a time such as 2026-01-31T12:00: {text}",
            param_hint="--offset",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _print_records(
    reader: Consumer,
    partition_count: int,
    max_records: int | None,
    follow: bool,
    record_format: str,
    as_json: bool,
) -> None:
    ended: set[int] = set()
    printed = 0
    while follow or len(ended) < partition_count:
        room = _BATCH_COUNT_MAX if max_records is None else max_records - printed
        if room <= 0:
            return
        for message in reader.consume(min(room, _BATCH_COUNT_MAX), _POLL_S):
            error = message.error()
            if error is None:
                _print_record(message, record_format, as_json)
                printed += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(int(message.partition() or 0))
            else:
                raise KafkaException(error)
        sys.stdout.flush()


def _print_record(message: Any, record_format: str, as_json: bool) -> None:
    _, timestamp_ms = message.timestamp()
    fields = {
        "t": message.topic(),
        "p": message.partition(),
        "o": message.offset(),
        "T": timestamp_ms,
        "k": _text(message.key()),
        "s": _text(message.value()),
    }
    if as_json:
        headers = [{"key": name, "value": _text(value)} for name, value in message.headers() or []]
        names = {"t": "topic", "p": "partition", "o": "offset", "T": "ts", "k": "key", "s": "value"}
        print_json({**{names[mark]: value for mark, value in fields.items()}, "headers": headers})
        return
    sys.stdout.write(formatted(record_format, fields) + "\n")


def formatted(record_format: str, fields: Mapping[str, object]) -> str:
    """The format with its `%` marks replaced. Marks inside keys and values are not replaced."""

    def part(mark: re.Match[str]) -> str:
        text = mark[0]
        if text in _ESCAPES:
            return _ESCAPES[text]
        value = fields[text[1]]
        return "" if value is None else str(value)

    return _MARK.sub(part, record_format)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")
