"""Which partitions and offsets the options of `pipeline erase` select."""

from __future__ import annotations

import pytest
import typer

from isotherm.cli.pipeline_erase_selection import SelectedRecords, selector_of


@pytest.mark.parametrize(
    ("text", "partitions"), [("0", {0}), ("0,3,5-7", {0, 3, 5, 6, 7}), ("4-4", {4})]
)
def test_partitions_are_numbers_and_ranges(text: str, partitions: set[int]) -> None:
    selector = selector_of(SelectedRecords(where="true", partitions=text))
    assert selector.partitions == partitions


@pytest.mark.parametrize(
    "selected",
    [
        SelectedRecords(where="true", partitions="7-3"),
        SelectedRecords(where="true", partitions="7-"),
        SelectedRecords(where="true", partitions="-3"),
        SelectedRecords(where="true", partitions="0-2000000"),
        SelectedRecords(where="true", partitions="\N{SUPERSCRIPT TWO}"),
        SelectedRecords(where="true", partitions=""),
        SelectedRecords(where="true", from_="10", until="10"),
        SelectedRecords(where="true", from_="2026-01-02", until="2026-01-01"),
    ],
)
def test_options_that_select_nothing_are_refused(selected: SelectedRecords) -> None:
    with pytest.raises(typer.BadParameter):
        selector_of(selected)
