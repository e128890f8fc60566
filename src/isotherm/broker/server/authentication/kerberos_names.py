"""Maps Kerberos principals to users, by `sasl.kerberos.principal.to.local.rules`. Pure.

    alice@EXAMPLE.COM  kafka/broker-1.example.com@EXAMPLE.COM        component[/component]@REALM

    DEFAULT                                      for the default realm: the first component
    RULE:[n:format](regex)s/pattern/name/g/L     for names with n components: the format, in which
                                                 $0 is the realm and $1 and $2 are the components;
                                                 applies if the regex matches it as a whole; the
                                                 pattern is replaced once, or with g everywhere; L
                                                 makes the result lower case, U upper case

The first rule that applies decides. Source: Kafka KerberosName, KerberosRule, KerberosShortNamer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.broker.metadata.access.name_rules import in_case, rule_pattern, rule_replacement
from isotherm.errors import ConfigError
from isotherm.patterns import JavaPattern, JavaReplacement

_KEY = "sasl.kerberos.principal.to.local.rules"
_NAME = re.compile(r"(?P<service>[^/@]*)(?:/(?P<host>[^/@]*))?@(?P<realm>[^/@]*)")
_RULE = re.compile(
    r"DEFAULT|RULE:\[(?P<components>\d+):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<name>[^/]*)/(?P<everywhere>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER = re.compile(r"\$(\d+)")
_NO_USER = re.compile(r"[/@]")


class _Rule(NamedTuple):
    """A rule. DEFAULT has no format."""

    text: str
    components: int
    format: str | None
    match: JavaPattern | None
    pattern: JavaPattern | None
    name: JavaReplacement | None
    is_everywhere: bool
    case: str | None


class KerberosNames:
    """Thread-safe."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Raises ConfigError for a malformed rule."""
        self._rules = [_parsed(rule) for rule in rules or ("DEFAULT",)]
        self._default_realm = default_realm

    def user_of(self, principal: str) -> str | None:
        """The user of a principal. None, which refuses the client, if no rule applies or the result
        has a slash or an at sign."""
        match = _NAME.fullmatch(principal)
        if match is None:
            return None if "@" in principal else principal
        names = [match["realm"], match["service"]]
        if match["host"] is not None:
            names.append(match["host"])
        for rule in self._rules:
            user = self._apply(rule, names)
            if user is not None:
                return None if _NO_USER.search(user) else in_case(user, rule.case)
        return None

    def _apply(self, rule: _Rule, names: Sequence[str]) -> str | None:
        if rule.format is None:
            return names[1] if names[0] == self._default_realm else None
        if len(names) - 1 != rule.components:
            return None
        base = _PARAMETER.sub(lambda match: names[int(match[1])], rule.format)
        if rule.match is not None and not rule.match.matches(base):
            return None
        if rule.pattern is None or rule.name is None:
            return base
        return rule.pattern.replaced(base, rule.name, is_first_only=not rule.is_everywhere)


def _parsed(text: str) -> _Rule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"a rule must be DEFAULT or RULE:[N:FORMAT](REGEX)s/PATTERN/NAME/g/L key={_KEY}"
            f" value={text}"
        )
    if match["components"] is None:
        return _Rule(text, 0, None, None, None, None, False, None)
    components = int(match["components"])
    for parameter in _PARAMETER.finditer(match["format"]):
        if int(parameter[1]) > components:
            raise ConfigError(
                f"a rule uses a component that its names do not have key={_KEY} value={text}"
                f" component={parameter[0]}"
            )
    pattern = None if match["pattern"] is None else rule_pattern(match["pattern"], _KEY)
    return _Rule(
        text,
        components,
        match["format"],
        None if match["match"] is None else rule_pattern(match["match"], _KEY),
        pattern,
        None if pattern is None else rule_replacement(match["name"], pattern.groups, _KEY),
        match["everywhere"] is not None,
        match["case"],
    )
