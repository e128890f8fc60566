"""Erased values are found wherever a file still holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.record.batch import CompressionType, build_batch
from isotherm.types import TopicPartition
from tests.support.correctness.erasing import Erased, unerased
from tests.support.correctness.workload import FORGETTING, encode_value

P0 = TopicPartition(FORGETTING, 0)


def log(*values: int, compression: CompressionType = CompressionType.NONE) -> bytes:
    records = [(1, None, encode_value(value), ()) for value in values]
    return bytes(build_batch(records, compression=compression))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("00000000000000000000.log", log(11, 112, compression=CompressionType.ZSTD)),
        ("00000000000000000000.log.deleted", log(112, compression=CompressionType.GZIP)),
        ("leftover.tmp", b"?" + log(112)[40:500]),
    ],
)
def test_erased_value_is_found_in_any_file(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "a" / name
    path.parent.mkdir()
    path.write_bytes(content)
    erased = Erased()
    erased.add(P0, {5: 112})
    (found,) = unerased(erased, [tmp_path])
    assert found == ("unerased", f"value=112 file={path}")


def test_other_values_are_not_erased_ones(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log(1121, 2112))
    erased = Erased()
    erased.add(P0, {5: 112, 6: 121})
    assert unerased(erased, [tmp_path, tmp_path / "missing"]) == []
