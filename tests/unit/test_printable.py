"""Texts that clients choose stay on their line of a log, and do not command a terminal."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from isotherm.cli import output
from isotherm.errors import ConfigError, IsothermError
from isotherm.printable import LINE_LENGTH_MAX, LineFormatter, printable, without_passwords

FORGED = (
    "mine-\n2026-11-27 21:00:00,000 INFO kafka.authorizer.logger: Principal = User:bob is Allowed"
)


def logged(emit: object) -> list[str]:
    """The lines that a logger with the formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("test")
    logger.addHandler(handler)
    emit(logger)  # type: ignore[operator]
    return stream.getvalue().split("\n")[:-1]


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
)
def test_line_break_of_any_kind_forges_no_line(character: str) -> None:
    text = f"a{character}b"
    (line,) = logged(lambda logger: logger.warning("group=%s", text))
    assert line.splitlines() == [f"WARNING test: group=a{ascii(character)[1:-1]}b"]


@given(st.text())
def test_printable_has_one_line_and_no_control_character(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize(
    "text", ["orders", "Zürich", "日本語", "a b", "back\\slash", "emoji 🙂", ""]
)
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),  # clears a terminal
        ("\u202eabc", "\\u202eabc"),  # turns the direction of text
        ("\ud800", "\\ud800"),
        ("\x00", "\\x00"),
        ("a\tb", "a\\tb"),
    ],
)
def test_characters_that_command_a_terminal_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_text_of_an_error_forges_no_line_in_its_traceback() -> None:
    def emit(logger: logging.Logger) -> None:
        try:
            raise ValueError(FORGED)
        except ValueError:
            logger.exception("request failed client_id=%s", FORGED, stack_info=True)

    first, *rest = logged(emit)
    assert first == f"ERROR test: request failed client_id={printable(FORGED)}"
    assert len(rest) > 4
    assert all(line.startswith("    ") for line in rest)


def test_cells_of_a_table_are_printed_as_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would read brackets as markup, and a closing one without an opening one is an error."""
    rows = [{"group": "[/red] [bold]x", "members": ["a\x1b[2J", "b\nc"]}]
    output.print_rows(["group", "members"], rows, as_json=False)
    printed = capsys.readouterr().out
    assert "[/red] [bold]x" in printed
    assert "a\\x1b[2J, b\\nc" in printed


def test_error_of_a_command_is_one_line() -> None:
    from isotherm.cli.main import app

    done = CliRunner().invoke(app, ["topics", "list", "-b", "no\x1b[2J such host"])
    assert "\x1b[2J" not in done.output


SECRET = "5ecr3t"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:5ecr3t@bucket/prefix", "s3://[hidden]@bucket/prefix"),
        ("https://user:5ecr3t@registry:8081", "https://[hidden]@registry:8081"),
        ("https://5ecr3t@host", "https://[hidden]@host"),
        ("https://user:5ecr3t@[::1]:80/x", "https://[hidden]@[::1]:80/x"),
        ("https://:5ecr3t@host", "https://[hidden]@host"),
        ("https://us%40er:5ecr3t%2F@host", "https://[hidden]@host"),
        # As people write them: a URL would need escapes.
        ("s3://AKIA:ab/5ecr3t+x=@bucket", "s3://[hidden]@bucket"),
        ("s3://AKIA:a@b/5ecr3t@bucket", "s3://[hidden]@bucket"),
        ("https://me@example.com:5ecr3t@host/x", "https://[hidden]@host/x"),
        ("https://user:1?5ecr3t#1@host", "https://[hidden]@host"),
        ("https://user:123456/5ecr3t@host", "https://[hidden]@host"),
        ("two=s3://a:5ecr3t@b,s3://c:5ecr3t@d e=f@g", "two=s3://[hidden]@b,s3://[hidden]@d e=f@g"),
        ('{"url":"http://a:5ecr3t@b","mail":"x@y"}', '{"url":"http://[hidden]@b","mail":"x@y"}'),
        ("https://host/?a=1&sig=5ecr3t&b=2", "https://host/?a=1&sig=[hidden]&b=2"),
        ("https://b.s3/k?X-Amz-Signature=5ecr3t", "https://b.s3/k?X-Amz-Signature=[hidden]"),
        (
            "https://b.s3/k?x-amz-security-token=5ecr3t",
            "https://b.s3/k?x-amz-security-token=[hidden]",
        ),
        (
            "https://b.s3/k?X%2DAmz%2DCredential=5ecr3t",
            "https://b.s3/k?X%2DAmz%2DCredential=[hidden]",
        ),
        ("https://host/cb#access_token=5ecr3t", "https://host/cb#access_token=[hidden]"),
        ("https://host/?api-key=5ecr3t;x=1", "https://host/?api-key=[hidden];x=1"),
        ("AccountName=a;AccountKey=5ecr3t==;X=1", "AccountName=a;AccountKey=[hidden];X=1"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert without_passwords(shown) == shown
    assert without_passwords(f"failed url={text} reason='no'") == f"failed url={shown} reason='no'"


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a@b", "PLAINTEXT://h:9092,SSL://h:9093 mail=a@b.c",
        "s3://bucket/a@b:c", "http://[::1]:80/x@y",
        "https://h/?author=x&monkey=1&offset=5&time=3", "key=url value=x token=", "a:b@c",
        "user=a@b password", "",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert without_passwords(text) == text


@pytest.mark.parametrize(
    "piece", ["://", "://a:b", "://a:b/", "a:b@", "?token=", "&" * 3, "://:", "=;"]
)
def test_hiding_takes_linear_time(piece: str) -> None:
    """Quadratic, it would take hours."""
    assert without_passwords(piece * (200_000 // len(piece)))


@pytest.mark.parametrize("error", [IsothermError, ConfigError])
def test_text_of_an_error_has_no_password(error: type[IsothermError]) -> None:
    made = error(f"cannot be read url=https://user:{SECRET}@host/?sig={SECRET}")
    assert str(made) == "cannot be read url=https://[hidden]@host/?sig=[hidden]"


def test_log_has_no_password_in_messages_and_traces() -> None:
    def emit(logger: logging.Logger) -> None:
        try:
            raise OSError(f"no route to https://user:{SECRET}@host")
        except OSError:
            logger.exception("store fails url=%s", f"s3://key:{SECRET}@bucket", stack_info=True)

    lines = logged(emit)
    assert lines[0] == "ERROR test: store fails url=s3://[hidden]@bucket"
    assert "https://[hidden]@host" in "".join(lines)
    # The line of the source has the constant's name alone.
    assert SECRET not in "".join(lines)


def test_line_of_a_log_is_cut_off() -> None:
    name = "n" * 32_767
    (line,) = logged(lambda logger: logger.warning("group=%s", name))
    prefix = "WARNING test: group="
    beyond = len(prefix) + len(name) - LINE_LENGTH_MAX
    kept = "n" * (LINE_LENGTH_MAX - len(prefix))
    assert line == f"{prefix}{kept}... ({beyond} more characters)"


def test_text_of_an_error_in_a_traceback_is_cut_off() -> None:
    def fail(logger: logging.Logger) -> None:
        try:
            raise ConfigError("n" * 32_767)
        except ConfigError:
            logger.exception("failed")

    assert max(map(len, logged(fail))) < LINE_LENGTH_MAX + 100
