"""The properties that open a catalog, and what a failed put leaves behind."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, Self

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from isotherm.errors import ConfigError, RemoteStorageError
from isotherm.spark.tables import iceberg_catalogs
from isotherm.spark.tables.iceberg_catalogs import open_catalog
from isotherm.spark.tables.iceberg_files import IcebergPlace

REST = {"type": "rest", "uri": "http://catalog"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The properties that PyIceberg gets."""
    found: list[dict[str, str]] = []

    def load(name: str, **properties: str) -> Catalog:
        found.append(properties)
        raise ValueError("not opened in this test")

    monkeypatch.setattr(iceberg_catalogs, "load_catalog", load)
    return found


@pytest.mark.parametrize(
    ("properties", "warehouse", "expected"),
    [
        (REST, "lake", "lake"),
        ({"uri": "https://catalog"}, "lake", "lake"),
        (REST, None, None),
        (REST | {"warehouse": "other"}, "lake", "other"),
        ({"type": "sql", "uri": "sqlite://"}, "s3://lake", "s3://lake"),
        ({"type": "sql", "uri": "sqlite://"}, "lake", "file://{here}/lake"),
        ({"type": "sql", "uri": "sqlite://"}, "a b", "file://{here}/a b"),
    ],
)
def test_a_rest_catalog_gets_the_name_of_the_warehouse_and_others_its_url(
    given: list[dict[str, str]],
    properties: dict[str, str],
    warehouse: str | None,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not opened in this test"):
        open_catalog(None, properties, warehouse)
    (found,) = given
    assert found.get("warehouse") == (expected and expected.replace("{here}", str(tmp_path)))


def test_a_catalog_of_no_known_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="no such catalog catalog=lakehouse reason="):
        open_catalog("lakehouse", {}, "lake")


class FullStream:
    """Writes ten bytes and then fails, as on a full disk."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, data: bytes) -> int:
        self._stream.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_put_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = PyArrowFile.create

    def full(self: PyArrowFile, overwrite: bool = False) -> Any:
        return FullStream(create(self, overwrite))

    monkeypatch.setattr(PyArrowFile, "create", full)
    source = tmp_path / "x.parquet"
    source.write_bytes(bytes(100))
    lake = tmp_path / "lake"
    place = IcebergPlace(PyArrowFileIO(), f"file://{lake}")
    with pytest.raises(RemoteStorageError) as refused:
        place.put("timestamp_day=2026-01-01/x.parquet", source)
    assert f"file=file://{lake}/timestamp_day=2026-01-01/x.parquet size=100" in str(refused.value)
    assert "No space left on device" in str(refused.value)
    assert [path for path in lake.rglob("*") if path.is_file()] == []
