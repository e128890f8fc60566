"""Tables of topics for the console, without a catalog."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.spark.tables.dead_letters import DeadLetters
from isotherm.spark.tables.listed_table import ListedTable


class ScriptedTables:
    """A `TableReader`. Each table has the same dead letters."""

    def __init__(
        self, tables: Sequence[ListedTable] = (), dead_letters: DeadLetters | None = None
    ) -> None:
        self._tables = tables
        self._dead_letters = dead_letters or DeadLetters()

    def listed(self) -> Sequence[ListedTable]:
        return self._tables

    def dead_letters(self, table: tuple[str, str]) -> DeadLetters:
        return self._dead_letters
