"""What rules that make users of Kerberos' and of certificates' names have in common. Pure."""

from __future__ import annotations

import re


def python_replacement(java: str) -> str:
    """A replacement of Java's regular expressions, with $1 for a group, as Python writes it."""
    return re.sub(r"\$(\d)", r"\\g<\1>", java.replace("\\", r"\\"))


def in_case(user: str, case: str | None) -> str:
    """As the end of a rule says: L for small letters, U for capitals, nothing for neither."""
    if not case:
        return user
    return user.lower() if case == "L" else user.upper()
