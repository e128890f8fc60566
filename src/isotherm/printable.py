"""Texts from outside on one line: of a log, of a table, of a terminal.

Clients, objects and records choose names, ids and messages. A line break in one of them would forge
a line of the log, and other control characters would command a terminal. So whatever is printed
goes through `printable`: each logger's lines in `LineFormatter`, the rows and messages of commands
in `isotherm.cli.output`. PURE.

Addresses may have passwords in them (`s3://key:secret@bucket`). `without_passwords` hides them in
lines of logs, in each IsothermError's text, in `--print-config` and on the console's pages.
"""

from __future__ import annotations

import logging
import re

TRACEBACK_INDENT = "    "
LINE_LENGTH_MAX = 16_384
"""Characters of a line of a log. Clients choose names of 32,767 bytes, and name many in a request.
"""
HIDDEN = "[hidden]"

# The part of a URL before the host.
_USER_INFO = re.compile(r"""(?<=://)[^\s/?#"<>]*@""")
# The same with a password that has a slash or a question mark, which a URL may not have, but which
# people write; up to the last @. Digits behind the first colon are a port. The bounds keep the
# search linear.
_ODD_USER_INFO = re.compile(
    r"""(?<=://)(?!\[)[^\s/?#"<>@:]{0,256}:(?!\d{0,5}(?:[/,\s"']|$))(?:[^\s"<>:]|:(?!//)){0,256}@"""
)
_PARAMETER = re.compile(r"""([?&;#])([\w.%~-]{1,64})=([^\s&;#"'<>]+)""")
_SECRET_NAMES = frozenset(
    {"auth", "authorization", "code", "jwt", "key", "pass", "pwd", "sas", "sig"}
)
_SECRET_PARTS = (
    "accesskey", "accountkey", "apikey", "credential", "passphrase", "passwd", "password", "secret",
    "signature", "token",
)  # fmt: skip


def without_passwords(text: str) -> str:
    """Hide the user info of each URL in a text, and parameters that are named like secrets:
    `token`, `X-Amz-Signature`, `AccountKey`. The rest stays as it is.

    `https://user:pw@host/?sig=x` becomes `https://[hidden]@host/?sig=[hidden]`.
    """
    if "://" in text:
        text = _ODD_USER_INFO.sub(f"{HIDDEN}@", text)
        text = _USER_INFO.sub(f"{HIDDEN}@", text)
    return _PARAMETER.sub(_shown_parameter, text) if "=" in text else text


def _shown_parameter(match: re.Match[str]) -> str:
    start, name, _ = match.groups()
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    is_secret = plain in _SECRET_NAMES or any(part in plain for part in _SECRET_PARTS)
    return f"{start}{name}={HIDDEN}" if is_secret else match[0]


def printable(text: str) -> str:
    """Escape the characters that are not printable as Python does: `\\n`, `\\x1b`, `\\u2028`.

    Those are control characters, separators of lines, marks of text direction, and halves of pairs.
    Backslashes stay, so the result is for reading only.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def printable_lines(text: str, indent: str = "") -> str:
    """The same for each line of a text that has several, such as a traceback.

    Hides passwords in addresses.
    """
    text = without_passwords(text)
    return "\n".join(indent + _bounded(printable(line)) for line in text.split("\n"))


def _bounded(line: str) -> str:
    beyond = len(line) - LINE_LENGTH_MAX
    return line if beyond <= 0 else f"{line[:LINE_LENGTH_MAX]}... ({beyond} more characters)"


class LineFormatter(logging.Formatter):
    """Writes a record on one line, without passwords in addresses, and cut off after
    LINE_LENGTH_MAX.

    The lines of a traceback follow it, indented, since errors have texts too.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _bounded(printable(without_passwords(super().formatMessage(record))))

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        return printable_lines(text, TRACEBACK_INDENT)

    def formatStack(self, stack_info: str) -> str:
        return printable_lines(stack_info, TRACEBACK_INDENT)
