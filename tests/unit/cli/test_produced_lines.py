"""Each line that `isotherm produce` reads is acknowledged, or named. The client is scripted: its
queue and its reports are the test's."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.cli.produce import (
    NOTICE_S,
    STOP_WAIT_S_MAX,
    LineDelivery,
    _Refusal,
    blocks_of_lines,
    refusal_lines,
    separator_bytes,
)
from isotherm.cli.stop_signals import HeldSignals, held_signals
from isotherm.errors import BrokerUnreachableError
from isotherm.testing.sim_clock import SimClock


@dataclass
class ScriptedClient:
    """A producer.

    `verdict` is the error of a record; None if it is acknowledged; WAITS if it never is.
    """

    verdict: Callable[[bytes], int | None]
    refused_at_once: Callable[[bytes], int | None] = lambda _: None
    room: int = 3
    queue: list[tuple[bytes, bytes | None, Any]] = field(default_factory=list)
    stored: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    on_flush: Callable[[], None] = lambda: None

    def produce(self, topic: str, value: bytes, key: bytes | None, **options: Any) -> None:
        code = self.refused_at_once(value)
        if code is not None:
            raise KafkaException(KafkaError(code))
        if len(self.queue) >= self.room:
            raise BufferError
        self.queue.append((value, key, options["on_delivery"]))

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self._report()

    def flush(self, timeout_s: float) -> None:
        self._report()
        self.on_flush()

    def _report(self) -> None:
        waiting = []
        for value, key, report in self.queue:
            code = self.verdict(value)
            if code == WAITS:
                waiting.append((value, key, report))
                continue
            if code is None:
                self.stored.append((key, value))
            sent = SimpleNamespace(key=lambda key=key: key, value=lambda value=value: value)
            report(None if code is None else KafkaError(code), sent)
        self.queue = waiting

    def __len__(self) -> int:
        return len(self.queue)


WAITS = 12345
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


def accepted(_: bytes) -> int | None:
    return None


class Run:
    def __init__(
        self,
        client: ScriptedClient,
        single: ScriptedClient | None = None,
        clock: SimClock | None = None,
    ) -> None:
        self.signals = HeldSignals()
        self.printed: list[str] = []
        self.client = client

        def open_single() -> Any:
            if single is None:
                raise BrokerUnreachableError("no broker is reachable")
            return single

        self.delivery = LineDelivery(
            client,
            open_single,
            "t",
            -1,
            self.printed.append,
            self.signals,
            clock or SimClock(),  # type: ignore[arg-type]
        )

    def send(self, *lines: bytes, separator: bytes | None = None) -> Run:
        self.delivery.send(lines, separator)
        return self

    @property
    def counts(self) -> tuple[int, int]:
        return self.delivery.lines, self.delivery.acknowledged


def test_lines_around_a_refused_one_are_stored_and_it_is_named() -> None:
    client = ScriptedClient(accepted, lambda value: TOO_LARGE if value == b"large" else None)
    run = Run(client).send(b"a", b"b", b"large", b"c", b"d", b"e")
    run.delivery.finish()
    assert [value for _, value in client.stored] == [b"a", b"b", b"c", b"d", b"e"]
    assert run.counts == (6, 5)
    (line,) = run.printed
    assert "line=3 " in line
    assert "MSG_SIZE_TOO_LARGE" in line


def test_lines_that_brokers_refuse_are_named_by_their_reasons() -> None:
    codes = {b"x": KafkaError.INVALID_RECORD, b"y": KafkaError.TOPIC_AUTHORIZATION_FAILED}
    run = Run(ScriptedClient(codes.get, room=100)).send(b"x", b"x", b"ok", b"y", b"x")
    run.delivery.finish()
    assert run.counts == (5, 1)
    named = [line.split("reason=")[0].split()[-1] for line in run.printed]
    assert named == ["lines=1-2", "line=4", "line=5"]


def test_lines_of_a_batch_that_is_too_large_are_sent_again_alone() -> None:
    """A broker refuses the batch, and would take its records."""
    single = ScriptedClient(lambda value: TOO_LARGE if value == b"large" else None)
    run = Run(ScriptedClient(lambda _: TOO_LARGE), single)
    run.send(b"k:", b"k:1", b"k:large", b"k:2", b"k:3", separator=b":")
    run.delivery.finish()
    assert sorted(single.stored) == [(b"k", b""), (b"k", b"1"), (b"k", b"2"), (b"k", b"3")]
    assert run.counts == (5, 4)
    assert len(run.printed) == 1
    assert "line=3 " in run.printed[0]


def test_lines_that_cannot_be_sent_again_are_named() -> None:
    run = Run(ScriptedClient(lambda _: TOO_LARGE)).send(b"a", b"b")
    run.delivery.finish()
    assert run.counts == (2, 0)
    assert "lines=1-2 " in run.printed[0]


def test_line_without_a_separator_is_named_and_not_sent() -> None:
    run = Run(ScriptedClient(accepted))
    run.send(b"a\tb", b"none", b"\tempty key", b"c\t", separator=b"\t")
    run.delivery.finish()
    assert run.client.stored == [(b"a", b"b"), (b"", b"empty key"), (b"c", b"")]
    assert run.counts == (4, 3)
    assert run.printed == [
        "isotherm: not acknowledged line=2 reason='the line has no key separator'"
    ]


def test_refusals_are_printed_once_a_second() -> None:
    clock = SimClock()
    run = Run(ScriptedClient(accepted), clock=clock)
    for _ in range(4):
        run.delivery.send([b"none"], b":")
    clock.advance(1000)
    run.delivery.send([b"none"], b":")
    run.delivery.send([b"none"], b":")
    assert [line.split()[3] for line in run.printed] == ["lines=1-5"]
    run.delivery.finish()
    assert run.printed[-1].split()[3] == "line=6"


def test_after_a_signal_what_was_sent_is_waited_for_within_a_bound() -> None:
    clock = SimClock()
    client = ScriptedClient(lambda value: WAITS if value == b"slow" else None)
    client.on_flush = lambda: clock.advance(1000)
    run = Run(client, clock=clock).send(b"a", b"slow")
    run.signals.count = 1
    run.delivery.finish()
    assert run.counts == (2, 1)
    assert clock.monotonic_s() - SimClock().monotonic_s() == STOP_WAIT_S_MAX


def test_second_signal_ends_the_wait() -> None:
    client = ScriptedClient(lambda _: WAITS)
    run = Run(client).send(b"a")

    def second() -> None:
        run.signals.count += 1

    client.on_flush = second
    run.delivery.finish()
    assert run.signals.count == 2
    assert run.counts == (1, 0)


def test_signal_ends_the_wait_for_room() -> None:
    client = ScriptedClient(lambda _: WAITS, room=0)
    run = Run(client)
    client.poll = lambda timeout_s: setattr(run.signals, "count", 1)  # type: ignore[method-assign]
    run.send(b"a")
    assert run.counts == (1, 0)


def test_help_names_the_escapes_as_they_are_typed() -> None:
    shown = " ".join(CliRunner().invoke(app, ["produce", "--help"]).output.replace("│", "").split())
    assert r"\t, \n, \r, \0, \\ and \xNN stand for a byte" in shown


@given(st.binary(max_size=12).map(lambda each: each.replace(b"x", b"\n")), st.integers(1, 5))
def test_blocks_have_the_lines(data: bytes, size: int) -> None:
    pipe = io.BytesIO(data)
    blocks = blocks_of_lines(lambda _: pipe.read(size), HeldSignals())
    lines = [line for block in blocks for line in block]
    assert lines == [line.removesuffix(b"\n") for line in io.BytesIO(data)]


def test_lines_after_a_signal_are_not_counted() -> None:
    client = ScriptedClient(accepted)
    run = Run(client)

    def interrupted() -> Iterator[bytes]:
        yield b"a"
        run.signals.count = 1
        yield b"b"

    run.delivery.send(interrupted(), None)
    run.delivery.finish()
    assert run.counts == (1, 1)


def test_runs_of_lines_are_told_together() -> None:
    refusals = [_Refusal(line, "one") for line in (7, 2, 1, 3)] + [_Refusal(4, "other")]
    assert [line.split()[3] for line in refusal_lines(refusals)] == [
        "lines=1-3",
        "line=4",
        "line=7",
    ]
    assert list(refusal_lines([])) == []


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        (":", b":"),
        (r"\t", b"\t"),
        (r"\n", b"\n"),
        (r"\r", b"\r"),
        (r"\0", b"\0"),
        (r"\x1f", b"\x1f"),
        (r"\xFF\xfe", b"\xff\xfe"),
        (r"a\tb\\t", rb"a" + b"\t" + rb"b\t"),
        ("\\", b"\\"),
        ("\udcff", b"\xff"),
        ("→", "→".encode()),
    ],
)
def test_separator_has_escapes(text: str, separator: bytes) -> None:
    assert separator_bytes(text) == separator


@pytest.mark.parametrize("text", ["", r"\d", r"\xg1", r"\x1"])
def test_separator_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        separator_bytes(text)


def test_signal_is_raised_within_released_calls_only() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert (signals.count, signals.exit_code) == (1, 130)
        with pytest.raises(KeyboardInterrupt):
            signals.released(threading.Event().wait)
        signals.count = 0
        with pytest.raises(KeyboardInterrupt):
            signals.released(signal.raise_signal, signal.SIGTERM)
        assert (signals.count, signals.exit_code) == (1, 130)
    assert signal.getsignal(signal.SIGINT) is before


def test_silence_is_said_once_and_ends_with_what_is_not_stored() -> None:
    clock = SimClock()
    client = ScriptedClient(lambda value: WAITS if value == b"late" else None)
    run = Run(client, clock=clock)
    said: list[list[str]] = []

    def turn() -> None:
        clock.advance(int(NOTICE_S * 500))
        said.append(list(run.printed))
        if len(said) == 4:
            client.verdict = lambda _: KafkaError._MSG_TIMED_OUT

    client.on_flush = turn
    run.delivery.send([b"early", b"late"], None)
    run.delivery.finish()
    assert (run.delivery.lines, run.delivery.acknowledged) == (2, 1)
    waiting, refused = run.printed
    assert "no line was acknowledged for 5 s, still trying waiting=1 topic=t" in waiting
    assert "not acknowledged line=2 reason='_MSG_TIMED_OUT: no broker has stored it" in refused
