"""Keys as Spark compares them.

Two are equal if their values are: Python's, with -0.0 and 0.0 apart and NaN as one.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.jobs.newest_values import compared_keys

DOUBLES = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf"), None])
MAPS = st.none() | st.dictionaries(st.sampled_from("abc"), DOUBLES)
KIND = pa.struct(
    [
        ("double", pa.float64()),
        ("list", pa.list_(pa.float64())),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("maps", pa.list_(pa.map_(pa.string(), pa.float64()))),
        ("text", pa.string()),
    ]
)
KEYS = st.none() | st.fixed_dictionaries(
    {
        "double": DOUBLES,
        "list": st.none() | st.lists(DOUBLES, max_size=2),
        "map": MAPS,
        "maps": st.none() | st.lists(MAPS, max_size=2),
        "text": st.none() | st.sampled_from(["", "x"]),
    }
)


def told_apart(value: Any) -> Any:
    """The value with texts for doubles, which are equal only if no reader could tell them apart."""
    if isinstance(value, dict):
        return {name: told_apart(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [told_apart(each) for each in value]
    return repr(value)


@given(st.lists(KEYS, max_size=8), st.data())
def test_keys_are_equal_if_their_values_are(keys: list[Any], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, KIND)[start:]
    compared = compared_keys(column)
    compared.validate(full=True)
    assert compared.type == compared_keys(pa.array([], KIND)).type
    texts = list(map(repr, compared.to_pylist()))
    wanted = [repr(told_apart(key)) for key in keys[start:]]
    for number, text in enumerate(texts):
        same = [each == text for each in texts]
        assert same == [each == wanted[number] for each in wanted]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.timestamp("us", "UTC")])
def test_other_keys_stay_as_they_are(kind: pa.DataType) -> None:
    column = pa.array([None], kind)
    assert compared_keys(column) is column


def test_all_nan_are_one() -> None:
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    compared = compared_keys(pa.array([float("nan"), other, None], pa.float64())).to_pylist()
    assert compared[0] == compared[1] != compared[2]
