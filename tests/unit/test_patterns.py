"""Which patterns are read, in RE2's and Java's syntax, and what they match.

The expectations of Java's syntax are Java's own: tests/spark/test_drop_in.py and
tests/oracle/test_kerberos_names.py compare with java.util.regex.
"""

from __future__ import annotations

import pytest

from isotherm.errors import InvalidRegularExpressionError
from isotherm.patterns import (
    PATTERN_LENGTH_MAX,
    JavaPattern,
    JavaReplacement,
    java_pattern,
    matching_names,
)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("a.*", {"ab", "abc"}),
        ("b", set()),
        ("ab|x", {"ab", "x"}),
        ("(a|b)+c", {"abc"}),
        ("(x+x+)+y", set()),
        ("", set()),
    ],
)
def test_pattern_matches_whole_names(pattern: str, matched: set[str]) -> None:
    assert matching_names(pattern, ["ab", "abc", "x"]) == matched


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?=a)", r"(a)\1", "[", "a{2000}", "a*+"])
def test_pattern_outside_re2_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="reason="):
        matching_names(pattern, ["ab"])


def test_pattern_has_a_length_at_most() -> None:
    assert matching_names("|".join(["a"] * 5000) + "b", ["a", "ab"]) == {"a", "ab"}
    for read in (lambda text: matching_names(text, ["a"]), JavaPattern):
        with pytest.raises(InvalidRegularExpressionError, match="length=10001 length_max=10000"):
            read("a" * (PATTERN_LENGTH_MAX + 1))


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (r"a\.b", ["a.b"]),
        ("a.b", ["a.b", "a\u00e9b"]),
        (r"\Qa.b", ["a.b"]),
        (r"\Qa.\Eb", ["a.b"]),
        ("(?s)a.b", ["a.b", "a\u00e9b", "a\nb", "a\rb", "a\u2028b"]),
        ("((?s)a.b)", ["a.b", "a\u00e9b", "a\nb", "a\rb", "a\u2028b"]),
        ("(?s:a).b", ["a.b", "a\u00e9b"]),
        ("(?s)(?-s:a.b)", ["a.b", "a\u00e9b"]),
        # (?i) is of ASCII letters: a Kelvin sign is no k, and a long s no s.
        ("(?i)k", ["k", "K"]),
        ("(?i)[j-l]", ["k", "K"]),
        ("(?i)[^J-L]", ["s", "\u212a", "\u017f", "\v", "{"]),
        ("(?i:K)|s", ["k", "K", "s"]),
        ("(?i)[k]|S", ["k", "K", "s"]),
        (r"(?i)\QK\E", ["k", "K"]),
        (r"\s", ["\v"]),
        (r"[\s]", ["\v"]),
        (r"[\S]", ["k", "K", "s", "\u212a", "\u017f", "{"]),
        (r"\p{Lower}", ["k", "s"]),
        (r"\P{Alpha}", ["\u212a", "\u017f", "\v", "{"]),
        (r"\p{Lu}|\x{17f}", ["K", "\u212a", "\u017f"]),
        (r"[\p{Punct}]|\u004b|\x73", ["K", "s", "{"]),
        (r"[+--{]", ["{"]),
        ("a{1}", []),
        (r"\Aabc\Z", ["abc"]),
        (r"^abc$", ["abc"]),
        (r"(?<first>a)b?\Bc", ["abc"]),
        ("a(b|x){1,2}?c", ["abc"]),
    ],
)
def test_java_pattern_matches_as_in_java(text: str, whole: list[str]) -> None:
    texts = [
        "a.b",
        "a\u00e9b",
        "a\nb",
        "a\rb",
        "a\u2028b",
        "abc",
        "k",
        "K",
        "s",
        "\u212a",
        "\u017f",
    ]
    assert [each for each in [*texts, "\v", "{"] if java_pattern(text).matches(each)] == whole


@pytest.mark.parametrize(
    ("text", "name", "position"),
    [
        ("a(?=b)", "look-around", 1),
        ("a(?!b)", "look-around", 1),
        ("(?<=a)b", "look-around", 0),
        ("(?<!a)b", "look-around", 0),
        ("(?>a)b", "an atomic group", 0),
        (r"(a)\1", "a back reference", 3),
        (r"(?<x>a)\k<x>", "a back reference", 7),
        ("a*+", "a possessive count", 1),
        ("a{2}+", "a possessive count", 1),
        ("a**", "a count of nothing", 2),
        ("(*a)", "a count of nothing", 1),
        ("(?i)*a", "a count of nothing", 4),
        (r"\Q\E*", "a count of nothing", 4),
        ("a{,2}", "a count", 1),
        ("[a-z&&[^b]]", "a class in a class", 4),
        ("x[a[bc]]", "a class in a class", 3),
        ("[]a]", "a class of nothing", 1),
        ("a[b", "a class without an end", 1),
        (r"[a-\d]", "a range without an end", 2),
        ("(?x)a b", "a flag or a kind of group", 0),
        ("(?m)^a", "a flag or a kind of group", 0),
        ("(?<n>a)(?<n>b)", "a name of two groups", 7),
        ("(?P<n>a)", "a flag or a kind of group", 0),
        (r"\p{javaLowerCase}", "a property of characters", 0),
        (r"(?i)\p{Lower}", "a property of characters", 4),
        (r"a\v", "an escape", 1),
        (r"\h", "an escape", 0),
        (r"\012", "an escape", 0),
        (r"\C", "an escape", 0),
        ("a\\", "an escape", 1),
        ("a)b", "a bracket that was not opened", 1),
        (r"\x{110000}", "a character that does not exist", 0),
    ],
)
def test_what_re2_lacks_is_refused_by_its_name(text: str, name: str, position: int) -> None:
    with pytest.raises(InvalidRegularExpressionError) as raised:
        JavaPattern(text)
    assert f"has {name}, which is not read pattern={text!r} position={position} " in str(
        raised.value
    )


@pytest.mark.parametrize("text", ["(a", "a{1001}", "a{2,1}"])
def test_what_re2_refuses_has_its_reason(text: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="reason="):
        JavaPattern(text)


@pytest.mark.parametrize(
    ("pattern", "replacement", "replaced"),
    [
        ("a*", "-", "-b--c-"),
        ("(b)(a*)", "$2$1", "aaabc"),
        ("(b)", "$12", "b2aaac"),
        ("(b)|(x)", "<$2>", "<>aaac"),
        ("b", r"\$0\\", r"$0\aaac"),
        ("[bc]", "$0$0", "bbaaacc"),
        ("^b", "", "aaac"),
    ],
)
def test_replacement_is_javas(pattern: str, replacement: str, replaced: str) -> None:
    compiled = java_pattern(pattern)
    parsed = JavaReplacement(replacement, compiled.groups)
    assert compiled.replaced("baaac", parsed, is_first_only=False) == replaced


def test_first_match_alone_is_replaced() -> None:
    text = java_pattern("[bc]").replaced("baaac", JavaReplacement("x", 0), is_first_only=True)
    assert text == "xaaac"


@pytest.mark.parametrize("text", ["$", "a\\", "$x", "$2", "${name}"])
def test_replacement_that_java_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="replacement="):
        JavaReplacement(text, 1)


def test_pattern_that_takes_a_backtracking_engine_for_ever_ends() -> None:
    """RE2 is linear: 2**4000 steps would never end."""
    assert not java_pattern("(a+)+b").matches("a" * 4000)
    assert matching_names("(a+)+b", ["a" * 4000]) == set()
