"""`isotherm produce`: records from standard input, one a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from isotherm.cli.client import one_line_errors, producer
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    BootstrapServer,
    ClientProperties,
    CommandConfig,
    client_settings,
)
from isotherm.cli.output import error_console
from isotherm.errors import BrokerUnreachableError

_POLL_EVERY_RECORDS = 1000
_BUFFER_FULL_WAIT_S = 0.5


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Text between key and value of a line."),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", help="Partition; -1 is chosen by the key.")
    ] = -1,
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    client_property: ClientProperties = None,
    command_config: CommandConfig = None,
) -> None:
    """Produce one record per line of standard input, and wait until all are acknowledged.

    printf 'N14228:{"delay": 2}\\n' | isotherm produce flights -K :
    """
    properties = {
        "compression.type": compression,
        "acks": "all",
        **client_settings(command_config, client_property),
    }
    failures: list[str] = []

    def on_delivery(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    with one_line_errors(bootstrap_server):
        client = producer(bootstrap_server, properties)
    with one_line_errors(bootstrap_server), _spinner() as progress:
        task = progress.add_task("producing", total=None)
        for count, (key, value) in enumerate(_records(sys.stdin.buffer, key_separator), start=1):
            _send(client, topic, partition, key, value, on_delivery)
            if count % _POLL_EVERY_RECORDS == 0:
                client.poll(0)
                progress.update(task, completed=count)
            if failures:
                break
        client.flush()
    if failures:
        raise BrokerUnreachableError(
            f"records were not accepted count={len(failures)} first={failures[0]!r} topic={topic}"
        )


def _records(lines: BinaryIO, key_separator: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    separator = key_separator.encode() if key_separator else None
    for line in lines:
        text = line.rstrip(b"\n")
        if separator is None:
            yield None, text
        else:
            key, found, value = text.partition(separator)
            yield (key, value) if found else (None, text)


def _send(
    client: Any, topic: str, partition: int, key: bytes | None, value: bytes, on_delivery: Any
) -> None:
    while True:
        try:
            client.produce(topic, value, key, partition=partition, on_delivery=on_delivery)
        except BufferError:
            # librdkafka's queue is full (queue.buffering.max.messages). Wait until it has sent some.
            client.poll(_BUFFER_FULL_WAIT_S)
        else:
            return


def _spinner() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description} {task.completed:,} records"),
        TimeElapsedColumn(),
        console=error_console(),
        transient=True,
    )
