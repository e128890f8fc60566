r"""Patterns that users and clients write: their syntax, and what they match. Pure, thread-safe.

RE2 runs all of them. It takes time linear in the text, and bounded memory, for any pattern. Two
syntaxes are read, as Kafka reads them:

    RE2's    patterns in requests: subscriptions of consumer groups (KIP-848), ListTransactions.
             Their text comes from clients, so they are run by Arrow: it compiles and matches many
             names in one call that does not hold the interpreter's lock.
    Java's   patterns of configurations and jobs. A construct that means the same to RE2, or can be
             written in its syntax, is read. Any other is refused by its name: look-around, back
             references, possessive counts.

Java's syntax, of which all is read that has no remark:

    literals   any character, \. \- and so on, \t \n \r \f \a \e, \xhh, \x{h...}, \uhhhh, \Q...\E
    classes    . \d \D \s \S \w \W \p{Alpha} and the other POSIX names, \pL \p{Lu}, [a-z] [^\d_];
               not: a class or && in a class
    places     ^ $ \b \B \A \z \Z; words are of ASCII characters, as \w is; a line break at the end
               of the text is not passed over
    counts     * + ? {n} {n,} {n,m}, n and m up to 1000, also with ? behind; not: with + behind
    groups     (...) (?:...) (?<name>...); not: (?=...) (?!...) (?<=...) (?<!...) (?>...) \1
               \k<name>
    flags      (?is-is) (?is-is:...); i is of ASCII letters, as in Java; not: d m u x U

Source: java.util.regex.Pattern, RE2's syntax, re2j.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from isotherm.errors import InvalidRegularExpressionError

if TYPE_CHECKING:
    import re2

# Bounds the cost of compiling a pattern. Kafka has no such limit.
PATTERN_LENGTH_MAX = 10_000
# Compiled patterns in Java's syntax that are kept. They come from configurations, not from clients.
COMPILED_MAX = 64

_ARROWS_PREFIX = "Invalid regular expression: "


def matching_names(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that `pattern`, in RE2's syntax, matches from end to end.

    Takes up to seconds for a hostile pattern, so it is called in a thread. Raises
    InvalidRegularExpressionError.
    """
    _check_length(pattern)
    # Imported on first use, because the import would slow down every start.
    import pyarrow as pa
    import pyarrow.compute as pc

    ordered = list(names)
    try:
        # The pattern is compiled alone first, since `a)|(b` is invalid but valid inside the
        # brackets below.
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        mask = pc.match_substring_regex(
            pa.array(ordered, type=pa.string()), pattern=rf"\A(?:{pattern})\z"
        )
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix(_ARROWS_PREFIX)
        raise _unreadable(pattern, reason) from error
    return frozenset(
        name for name, matches in zip(ordered, mask.to_pylist(), strict=True) if matches
    )


class JavaPattern:
    """A pattern in Java's syntax."""

    def __init__(self, text: str) -> None:
        """Raises InvalidRegularExpressionError, which names what is not read."""
        _check_length(text)
        expression = _Translation(text).expression()
        import re2

        options = re2.Options()
        # The error is raised; RE2 would also write it to stderr.
        options.log_errors = False
        try:
            self._regexp: re2._Regexp = re2.compile(expression, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise _unreadable(text, reason) from error
        self.text = text

    @property
    def groups(self) -> int:
        return int(self._regexp.groups)

    def matches(self, text: str) -> bool:
        """Whether it matches from end to end (Matcher.matches)."""
        return self._regexp.fullmatch(text) is not None

    def is_in(self, text: str) -> bool:
        """Whether it matches somewhere (Matcher.find)."""
        return self._regexp.search(text) is not None

    def replaced(self, text: str, replacement: JavaReplacement, *, is_first_only: bool) -> str:
        """The text with the matches, or the first alone, replaced (Matcher.replaceAll,
        replaceFirst).
        """
        encoded = text.encode()
        parts, end = [], 0
        for match in self._matches(encoded):
            parts += [encoded[end : match.start()], replacement.expanded(match.group)]
            end = match.end()
            if is_first_only:
                break
        return b"".join((*parts, encoded[end:])).decode()

    def _matches(self, text: bytes) -> Iterator[re2._Match]:
        # Not `finditer`: it finds an empty match at the end of the text twice, and \B inside of
        # characters.
        position = 0
        while position <= len(text):
            match = self._regexp.search(text, position)
            if match is None:
                break
            start, position = match.span()
            if not _is_inside_character(text, start):
                yield match
            if start == position:
                position += 1


@lru_cache(maxsize=COMPILED_MAX)
def java_pattern(text: str) -> JavaPattern:
    """The compiled pattern. Raises InvalidRegularExpressionError, which names what is not read."""
    return JavaPattern(text)


class JavaReplacement:
    r"""A replacement in Java's syntax: $1 for a group, \ before a literal character."""

    def __init__(self, text: str, groups: int) -> None:
        """`groups` is the number of the pattern's groups. Raises InvalidRegularExpressionError."""
        self._parts = list(_replacement_parts(text, groups))

    def expanded(self, group: Callable[[int], bytes | None]) -> bytes:
        """The text, with `group(n)` for group n. A group that took no part is empty."""
        return b"".join(
            part.encode() if isinstance(part, str) else group(part) or b"" for part in self._parts
        )


# ---- Java's syntax

# In this order: the first that fits is the construct at a position.
_TOKEN = re.compile(
    r"""
      \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | (?P<place>\\[bBAzZ] | [$^])
    | (?P<set>\\[dDsSwW] | \\[pP](?:[A-Z]|\{\^?\w+\}))
    | (?P<character>
          \\(?: x[0-9A-Fa-f]{2} | x\{[0-9A-Fa-f]+\} | u[0-9A-Fa-f]{4} | [tnrfae] | [^0-9A-Za-z] )
        | [^\\\[(){}|*+?.^$] | \}
      )
    | (?P<any>\.)
    | (?P<class>\[)
    | (?P<flags>\(\?(?P<on>[is]*)(?:-(?P<off>[is]*))?(?P<scope>[:)]))
    | (?P<open>\((?!\?) | \(\?<(?P<name>[A-Za-z][A-Za-z0-9]*)>)
    | (?P<close>\))
    | (?P<or>\|)
    | (?P<count>(?:[*+?] | \{[0-9]+(?:,[0-9]*)?\}) (?P<kind>[?+]?))
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(
    r"""
      (?P<set>\\[dDsSwW] | \\[pP](?:[A-Z]|\{\^?\w+\}))
    | (?P<character>
          \\(?: x[0-9A-Fa-f]{2} | x\{[0-9A-Fa-f]+\} | u[0-9A-Fa-f]{4} | [tnrfae] | [^0-9A-Za-z] )
        | (?!&&) [^\\\[\]]
      )
    """,
    re.VERBOSE | re.DOTALL,
)
# What a construct that is not read is called: the first that fits.
_NAMES = (
    (r"\(\?<?[=!]", "look-around"),
    (r"\(\?>", "an atomic group"),
    (r"\\[1-9]|\\k<", "a back reference"),
    (r"\(\?", "a flag or a kind of group"),
    (r"&&|\[", "a class in a class"),
    (r"\{", "a count"),
    (r"\\[pP]", "a property of characters"),
    (r"\\", "an escape"),
    (r"[*+?]", "a count of nothing"),
    (r"", "a construct"),
)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_LAST = 0x10FFFF
# A surrogate, which no text has. RE2 takes [kK] for (?i)k, which is found in a Kelvin sign, but not
# a class of three.
_NEVER = r"\x{d800}"
# Java's \s has a vertical tab, RE2's has none.
_SPACES = r"\t-\r "
_SETS = {r"\s": _SPACES, r"\S": r"\x00-\x08\x0e-\x1f!-\x{10ffff}"}
_POSIX = (
    *("Alnum", "Alpha", "ASCII", "Blank", "Cntrl", "Digit", "Graph"),
    *("Lower", "Print", "Punct", "Space", "Upper", "XDigit"),
)
_CATEGORY = re.compile(r"\\[pP](?:[CLMNPSZ]|\{[CLMNPSZ][a-z]?\})")
_POSIX_SET = re.compile(r"\\(?P<sign>[pP])\{(?P<name>\w+)\}")
_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_SHOWN_LENGTH = 12


class _Translation:
    """The translation of one pattern from Java's syntax to RE2's."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._flags = frozenset[str]()
        self._outer_flags: list[frozenset[str]] = []
        self._group_names = set[str]()
        # Whether a count may follow.
        self._has_atom = False

    def expression(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        while self._position < len(self._text):
            token = _TOKEN.match(self._text, self._position)
            if token is None:
                raise self._refused()
            yield self._translated(token)

    def _translated(self, token: re.Match[str]) -> str:
        kind = next(name for name in _TRANSLATIONS if token[name] is not None)
        part = _TRANSLATIONS[kind](self, token)
        # A class has moved the position to its end by itself.
        self._position = max(self._position, token.end())
        self._has_atom = kind not in ("flags", "open", "or", "count") and bool(part)
        return part

    # ---- one construct each, from its token

    def _quoted(self, token: re.Match[str]) -> str:
        return "".join(map(self._literal, token["quoted"]))

    def _place(self, token: re.Match[str]) -> str:
        return r"\z" if token[0] == r"\Z" else token[0]

    def _set(self, token: re.Match[str]) -> str:
        return f"[{self._members(token[0])}]"

    def _character(self, token: re.Match[str]) -> str:
        return self._literal(self._character_of(token[0]))

    def _any(self, _token: re.Match[str]) -> str:
        return "(?s:.)" if "s" in self._flags else f"[^{_LINE_ENDS}]"

    def _set_flags(self, token: re.Match[str]) -> str:
        outer = self._flags
        self._flags = (outer | set(token["on"])) - set(token["off"] or "")
        # The flags change what is written: RE2's (?i) takes more than ASCII letters together.
        if token["scope"] == ")":
            return ""
        self._outer_flags.append(outer)
        return "(?:"

    def _open(self, token: re.Match[str]) -> str:
        name = token["name"]
        if name in self._group_names:
            raise self._refused("a name of two groups")
        if name is not None:
            self._group_names.add(name)
        self._outer_flags.append(self._flags)
        return "("

    def _close(self, token: re.Match[str]) -> str:
        if not self._outer_flags:
            raise self._refused("a bracket that was not opened")
        self._flags = self._outer_flags.pop()
        return token[0]

    def _or(self, token: re.Match[str]) -> str:
        return token[0]

    def _count(self, token: re.Match[str]) -> str:
        if token["kind"] == "+":
            raise self._refused("a possessive count")
        if not self._has_atom:
            raise self._refused("a count of nothing")
        return token[0]

    # ---- classes of characters

    def _class(self, token: re.Match[str]) -> str:
        begin, self._position = self._position, token.end()
        parts = ["["]
        if self._text.startswith("^", self._position):
            parts.append("^")
            self._position += 1
        first = self._position
        while not self._text.startswith("]", self._position):
            member = _IN_CLASS.match(self._text, self._position)
            if member is None:
                if self._position >= len(self._text):
                    self._position = begin
                    raise self._refused("a class without an end")
                raise self._refused()
            self._position = member.end()
            if member["set"] is not None:
                parts.append(self._members(member["set"]))
            else:
                parts.append(self._range(self._character_of(member[0])))
        if self._position == first:
            raise self._refused("a class of nothing")
        self._position += 1
        return "".join((*parts, "]"))

    def _range(self, low: str) -> str:
        """The range that begins with `low`, which has just been read, or the character alone."""
        high = low
        if self._text.startswith("-", self._position):
            token = _IN_CLASS.match(self._text, self._position + 1)
            if token is not None and token["character"] is not None:
                high = self._character_of(token[0])
                self._position = token.end()
            elif not self._text.startswith("]", self._position + 1):
                raise self._refused("a range without an end")
        if high < low:
            raise self._refused("a range whose end comes before its beginning")
        ranges = [(low, high)]
        never = ""
        if "i" in self._flags:
            never = _NEVER
            for letters in (string.ascii_lowercase, string.ascii_uppercase):
                begin, end = max(low, letters[0]), min(high, letters[-1])
                if begin <= end:
                    ranges.append((begin.swapcase(), end.swapcase()))
        return (
            "".join(
                _escaped(one) if one == other else f"{_escaped(one)}-{_escaped(other)}"
                for one, other in ranges
            )
            + never
        )

    def _members(self, escape: str) -> str:
        """The members of a class such as \\d, as they are written between square brackets."""
        if escape in _SETS:
            return _SETS[escape]
        if escape[1] not in "pP":
            return escape
        posix = _POSIX_SET.fullmatch(escape)
        has_cases = "i" in self._flags
        if not has_cases and _CATEGORY.fullmatch(escape) is not None:
            return escape
        if not has_cases and posix is not None and posix["name"] in _POSIX:
            negation = "^" if posix["sign"] == "P" else ""
            return f"[:{negation}{posix['name'].lower()}:]"
        raise self._refused()

    # ---- characters

    def _character_of(self, token: str) -> str:
        if not token.startswith("\\"):
            return token
        escape = token[1:]
        if escape[0] not in "xu":
            return _ESCAPES.get(escape, escape)
        code = int(escape[1:].strip("{}"), 16)
        if code > _LAST or 0xD800 <= code <= 0xDFFF:
            raise self._refused("a character that does not exist")
        return chr(code)

    def _literal(self, character: str) -> str:
        if "i" in self._flags and character.isascii() and character.isalpha():
            return f"[{character.lower()}{character.upper()}{_NEVER}]"
        return _escaped(character)

    def _refused(self, name: str | None = None) -> InvalidRegularExpressionError:
        rest = self._text[self._position : self._position + _SHOWN_LENGTH]
        if name is None:
            name = next(name for start, name in _NAMES if re.match(start, rest))
        return InvalidRegularExpressionError(
            f"a pattern has {name}, which is not read pattern={self._text!r}"
            f" position={self._position} at={rest!r}"
        )


_TRANSLATIONS: Mapping[str, Callable[[_Translation, re.Match[str]], str]] = {
    "quoted": _Translation._quoted,
    "place": _Translation._place,
    "set": _Translation._set,
    "character": _Translation._character,
    "any": _Translation._any,
    "class": _Translation._class,
    "flags": _Translation._set_flags,
    "open": _Translation._open,
    "close": _Translation._close,
    "or": _Translation._or,
    "count": _Translation._count,
}


def _is_inside_character(text: bytes, position: int) -> bool:
    return position < len(text) and text[position] & 0xC0 == 0x80


def _escaped(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return rf"\x{{{ord(character):x}}}"


def _replacement_parts(text: str, groups: int) -> Iterator[str | int]:
    position = 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "\\" and following:
            yield following
            position += 2
        elif character == "$" and "0" <= following <= "9":
            end = position + 2
            # As many digits as make a group that there is.
            while text[end : end + 1].isdecimal() and int(text[position + 1 : end + 1]) <= groups:
                end += 1
            group = int(text[position + 1 : end])
            if group > groups:
                raise _bad_replacement(text, "a group that the pattern does not have")
            yield group
            position = end
        elif character in "\\$":
            raise _bad_replacement(text, "a backslash or dollar sign with nothing behind it")
        else:
            yield character
            position += 1


def _bad_replacement(text: str, problem: str) -> InvalidRegularExpressionError:
    return InvalidRegularExpressionError(f"a replacement has {problem} replacement={text!r}")


def _check_length(pattern: str) -> None:
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRegularExpressionError(
            f"the pattern is too long length={len(pattern)} length_max={PATTERN_LENGTH_MAX}"
        )


def _unreadable(pattern: str, reason: str) -> InvalidRegularExpressionError:
    return InvalidRegularExpressionError(
        f"not a regular expression pattern={pattern!r} reason={reason!r}"
    )
