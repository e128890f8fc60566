r"""The expressions of `subscribePattern`: those that mean the same to Java, whose words users
write, and to Python.

Spark's Kafka source FINDS the expression in a topic's name, with `java.util.regex`. An expression
of another meaning here would read other topics without a word. So only this syntax is read, and any
other is refused by name. Names of topics have ASCII letters, digits, `.`, `_` and `-`, which makes
more alike than it is in general (`$` and `\Z`, `.`, `\w`).

    literals   any character, \. \- and so on, \t \n \r \f \a, \xhh, \uhhhh, \Q...\E
    classes    . \d \D \s \S \w \W [abc] [^a-z], without [ or && in one
    places     ^ $ \b \B \A \Z
    counts     * + ? {n} {n,} {n,m}, each also with ? or + behind it
    groups     (...) (?:...) (?>...) (?=...) (?!...) (?<=...) (?<!...) \1 to \9; | between
               alternatives
    flags      (?ims) at the start, (?ims-ims:...)

Source: Spark SubscribePatternStrategy (`findFirstIn`), java.util.regex.Pattern, Python's re.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from isotherm.errors import ConfigError

_PATTERNS_MAX = 64

# In this order: the first that fits is the construct at a position.
_TOKEN = re.compile(
    r"""
      \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | (?P<same>
          \\(?:[dDsSwWbBAZtnrfa]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[1-9](?![0-9])|[^0-9A-Za-z])
        | \((?!\?) | \(\?(?:[:>=!]|<[=!]) | \(\?[ims]*(?:-[ims]+)?: | \) | \|
        | (?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?
        | \[ \^?+ (?:
              \\(?:[dDsSwWtnrfa]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^0-9A-Za-z])
            | (?!&&|--|~~|\|\|) [^\[\]\\]
          )+ \]
        | [^\\\[(){}]
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_FLAGS_AT_START = re.compile(r"\(\?[ims]+\)")
_SHOWN_SIZE = 12
_HINT = r"hint='write it with the syntax that Java and Python share: docs/spark-switching.md'"


class TopicPattern(NamedTuple):
    """An expression that is found in names of topics."""

    expression: re.Pattern[str]

    def selects(self, topic: str) -> bool:
        return self.expression.search(topic) is not None


@lru_cache(maxsize=_PATTERNS_MAX)
def topic_pattern(text: str) -> TopicPattern:
    """Parse an expression. Raises ConfigError, which names what is not read, and its position."""
    flags = _FLAGS_AT_START.match(text)
    position = flags.end() if flags is not None else 0
    parts = [text[:position]]
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            construct = text[position : position + _SHOWN_SIZE]
            raise ConfigError(
                f"an expression has syntax that is not read option=subscribePattern value={text!r}"
                f" position={position} found={construct!r} {_HINT}"
            )
        quoted = token["quoted"]
        parts.append(token["same"] if quoted is None else re.escape(quoted))
        position = token.end()
    try:
        # ASCII, because Java's classes and (?i) are.
        return TopicPattern(re.compile("".join(parts), re.ASCII))
    except re.error as error:
        raise ConfigError(
            f"not a regular expression option=subscribePattern value={text!r} reason={str(error)!r}"
        ) from error
