"""What brokers log that an operator has to act on.

A restart, a kill and the return of a broker are no such events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from oracle.cluster_members import IsothermMember, Member

WARNINGS_MAX: Final = 5
"""Per broker, for what a slow machine brings: a stop that takes longer than it should."""
_LINE: Final = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) (.*)$", re.MULTILINE)
_NO_EVENTS: Final = (
    # The tests give all brokers some keys that only Kafka's have. Each start says so.
    "isotherm.config.server_properties: configuration key has no effect",
    # An outage that lasts a minute is worth a line. Here only the machine can make one last.
    " since_s=",
)
_TRACEBACK: Final = "Traceback (most recent call last)"


class NewLines:
    """The log lines of a cluster's Isotherm brokers from now on."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._before: Mapping[IsothermMember, int] = {
            member: len(member.whole_log)
            for member in members
            if isinstance(member, IsothermMember)
        }

    def for_operators(self) -> list[str]:
        """All lines at ERROR and tracebacks, and the warnings of a broker that has more than
        WARNINGS_MAX.
        """
        found = []
        for member, before in self._before.items():
            text = member.whole_log[before:]
            lines = [
                (level, f"broker={member.node_id} {level} {rest}")
                for level, rest in _LINE.findall(text)
                if not any(each in rest for each in _NO_EVENTS)
            ]
            warnings = [line for level, line in lines if level == "WARNING"]
            found += [line for level, line in lines if level != "WARNING"]
            found += warnings if len(warnings) > WARNINGS_MAX else []
            found += [f"broker={member.node_id} {_TRACEBACK}"] * text.count(_TRACEBACK)
        return found
