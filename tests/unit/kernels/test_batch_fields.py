"""Kernels have the same numbers of the batch format as the record package."""

from __future__ import annotations

from isotherm import types
from isotherm.kernels import batch_fields
from isotherm.record import batch_header


def test_the_fields_of_kernels_are_those_of_the_batch_header() -> None:
    known = {**vars(types), **vars(batch_header)}
    names = [name for name in vars(batch_fields) if name.isupper()]
    assert {name: getattr(batch_fields, name) for name in names} == {
        name: known[name] for name in names
    }
    assert names
