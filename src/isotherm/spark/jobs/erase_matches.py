"""Finds the records that an erasure acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.spark.jobs.erase_plan import ErasurePlan
from isotherm.spark.jobs.erase_selection import (
    ScanSettings,
    Selection,
    Selector,
    UndecodedValues,
    select_records,
)
from isotherm.spark.jobs.erase_settings import ErasureSettings
from isotherm.spark.jobs.erase_values import find_value_type
from isotherm.spark.tables.value_types import ValueType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.remote.rewriting.pieces import Piece


@dataclass(frozen=True, slots=True)
class Matches:
    """The matching records, and their number in each piece that has some. `undecoded` has the
    values that `value_type` cannot hold, by piece."""

    selection: Selection
    counts: Mapping[int, int]
    undecoded: Mapping[int, UndecodedValues] = field(default_factory=dict)
    value_type: ValueType = None

    def unpersist(self) -> None:
        self.selection.unpersist()

    def matching(self, pieces: Sequence[Piece]) -> list[Piece]:
        return [piece for piece in pieces if self.counts.get(piece.number)]

    def count(self, pieces: Sequence[Piece]) -> int:
        return sum(self.counts.get(piece.number, 0) for piece in pieces)

    def undecoded_in(self, pieces: Sequence[Piece]) -> UndecodedValues | None:
        """The values in these pieces that cannot be decoded, if there are any."""
        undecoded = [
            (piece, self.undecoded[piece.number])
            for piece in pieces
            if piece.number in self.undecoded
        ]
        if not undecoded:
            return None
        piece, first = undecoded[0]
        count = sum(values.count for _, values in undecoded)
        return UndecodedValues(count, piece.start_offset + first.first)


def find_matches(
    spark: SparkSession, plan: ErasurePlan, selector: Selector, settings: ErasureSettings
) -> Matches:
    """Read the log and find the records on which the action would change something.

    Raises PolicyViolationError if DROP selects a tombstone of a compacted topic, unless all records
    of its key are selected, and for a value that REDACT cannot change. Raises ConfigError for an
    expression that Spark refuses.
    """
    scan = ScanSettings(
        source=settings.source,
        fetch_bytes=settings.fetch_bytes,
        action=settings.action,
        fields=settings.fields,
        keeps_tombstones=settings.action is EraseAction.DROP
        and bool(plan.compacted)
        and not selector.names_whole_keys,
    )
    if selector.decodes and selector.value_type is None:
        pieces = plan.selected(selector)
        selector = replace(
            selector,
            value_type=find_value_type(
                spark, pieces, selector.value_format, settings.source, settings.fetch_bytes
            ),
        )
    selection = select_records(spark, plan.pieces, selector, scan)
    return Matches(selection, *selection.counts_of_pieces(), selector.value_type)
