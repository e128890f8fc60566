"""The properties of a client as they were given, and errors that name them but show no value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from isotherm.errors import ConfigError


class GivenProperties(NamedTuple):
    texts: Mapping[str, Any]
    place: str

    def text(self, key: str) -> str | None:
        value = self.texts.get(key)
        return None if value is None else str(value)

    def any_of(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if self.texts.get(key) is not None), None)

    def error(self, problem: str, key: str, hint: str = "") -> ConfigError:
        place = f" {self.place}" if self.place else ""
        return ConfigError(f"{problem} key={key}{place}{f' hint={hint!r}' if hint else ''}")
