"""The principals of clients that authenticate with a certificate.

Source: Kafka SslPrincipalMapper, DefaultKafkaPrincipalBuilder.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from isotherm.broker.metadata.access.name_rules import (
    in_case,
    literal_unknown_groups,
    rule_pattern,
    rule_replacement,
)
from isotherm.broker.metadata.access.principal import ANONYMOUS, USER, Principal
from isotherm.errors import ConfigError
from isotherm.patterns import JavaPattern, JavaReplacement

_RULES_KEY = "ssl.principal.mapping.rules"
_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class _Rule(NamedTuple):
    pattern: JavaPattern
    replacement: JavaReplacement
    case: str


class PrincipalMapper:
    """Maps the subjects of certificates to principals, by `ssl.principal.mapping.rules`.

    Source: Kafka SslPrincipalMapper. Its rules replace all matches in a name that they match as a
    whole.
    """

    def __init__(self, rules: str) -> None:
        """Raises ConfigError for malformed rules, and for patterns that RE2 cannot run."""
        # None is DEFAULT, the name itself.
        self._rules: list[_Rule | None] = []
        position = 0
        while position < len(rules.strip()):
            rule = _RULE.match(rules, position)
            if rule is None:
                raise ConfigError(
                    f"a rule is DEFAULT or RULE:PATTERN/NAME/ key={_RULES_KEY} value={rules}"
                )
            self._rules.append(_parsed_rule(rule))
            position = rule.end()

    def principal(self, certificate: bytes | None) -> Principal | None:
        """The principal of a certificate in DER; ANONYMOUS without one. None, which refuses the
        client, if no rule matches."""
        if certificate is None:
            return ANONYMOUS
        from cryptography import x509

        name = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
        for rule in self._rules:
            if rule is None:
                return Principal(USER, name)
            if rule.pattern.matches(name):
                user = rule.pattern.replaced(name, rule.replacement, is_first_only=False)
                return Principal(USER, in_case(user, rule.case))
        return None


def _parsed_rule(rule: re.Match[str]) -> _Rule | None:
    if rule[1] is None:
        return None
    pattern = rule_pattern(rule[1], _RULES_KEY)
    name = literal_unknown_groups(rule[2], pattern.groups)
    return _Rule(pattern, rule_replacement(name, pattern.groups, _RULES_KEY), rule[3])
