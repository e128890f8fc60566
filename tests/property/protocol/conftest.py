"""Strategies for random entities of any message class in kio's style."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import types
import typing
import uuid

import pytest
from hypothesis import strategies as st
from kio.static.primitive import Records, TZAware, i32Timedelta, i64Timedelta

ITEMS_MAX = 3
WHOLE_SECONDS_MAX = 253_402_300_799  # 9999-12-31; kio writes datetimes through a float

_LEAVES = {
    uuid.UUID: st.uuids(allow_nil=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=20),
    Records: st.binary(max_size=20),
    i32Timedelta: st.integers(-(2**31), 2**31 - 1).map(lambda ms: datetime.timedelta(0, 0, 0, ms)),
    i64Timedelta: st.integers(-(2**40), 2**40).map(lambda ms: datetime.timedelta(0, 0, 0, ms)),
    TZAware: st.integers(0, WHOLE_SECONDS_MAX).map(
        lambda s: datetime.datetime.fromtimestamp(s, tz=datetime.UTC)
    ),
}


@functools.cache
def _values(annotation: object) -> st.SearchStrategy:
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        arms = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
        return st.one_of(st.none(), *map(_values, arms))
    if origin is tuple:
        return st.lists(_values(typing.get_args(annotation)[0]), max_size=ITEMS_MAX).map(tuple)
    if dataclasses.is_dataclass(annotation):
        return _entities(annotation)
    if annotation in _LEAVES:
        return _LEAVES[annotation]
    if isinstance(annotation, type) and issubclass(annotation, str):
        return _LEAVES[str]
    return st.from_type(annotation)


@functools.cache
def _entities(entity_type: type) -> st.SearchStrategy:
    annotations = typing.get_type_hints(entity_type)
    fields = {f.name: _values(annotations[f.name]) for f in dataclasses.fields(entity_type)}
    return st.builds(entity_type, **fields)


@pytest.fixture(scope="session")
def entities():
    """A function from a message class to a strategy for its entities."""
    return _entities
