"""The common parts of the rules that map Kerberos principals and certificate names to users. Pure.

Rules are in Java's syntax, and may be costly for a name that a client chose, so RE2 runs them.
"""

from __future__ import annotations

import re

from isotherm.errors import ConfigError, InvalidRegularExpressionError
from isotherm.patterns import JavaPattern, JavaReplacement

_GROUP = re.compile(r"\$([1-9][0-9]*)")


def rule_pattern(text: str, key: str) -> JavaPattern:
    """The pattern of a rule. Raises ConfigError, which names the key and what is not read."""
    try:
        return JavaPattern(text)
    except InvalidRegularExpressionError as error:
        raise ConfigError(f"the pattern of a rule cannot be read key={key} {error}") from error


def rule_replacement(text: str, groups: int, key: str) -> JavaReplacement:
    """The replacement of a rule. Raises ConfigError, which names the key."""
    try:
        return JavaReplacement(text, groups)
    except InvalidRegularExpressionError as error:
        raise ConfigError(f"the name of a rule cannot be read key={key} {error}") from error


def literal_unknown_groups(replacement: str, groups: int) -> str:
    """The replacement in which $4 is a literal if there are three groups, as in Kafka's
    SslPrincipalMapper.
    """
    if not groups:
        return replacement

    def escaped(reference: re.Match[str]) -> str:
        # Of $12 the 2 is literal if there is no group 12.
        return reference[0] if int(reference[1][0]) <= groups else "\\" + reference[0]

    return _GROUP.sub(escaped, replacement)


def in_case(user: str, case: str | None) -> str:
    """The user in the case that the end of a rule requests:

    L for lower case, U for upper case, else unchanged.
    """
    if not case:
        return user
    return user.lower() if case == "L" else user.upper()
