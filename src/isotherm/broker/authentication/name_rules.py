"""The common parts of the rules that map Kerberos principals and certificate names to users. Pure."""

from __future__ import annotations

import re


def python_replacement(java: str) -> str:
    """A replacement text of a Java regular expression, with $1 for a group, in Python's notation."""
    return re.sub(r"\$(\d)", r"\\g<\1>", java.replace("\\", r"\\"))


def in_case(user: str, case: str | None) -> str:
    """The user in the case that the end of a rule requests: L for lower case, U for upper case, else unchanged."""
    if not case:
        return user
    return user.lower() if case == "L" else user.upper()
