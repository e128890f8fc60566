"""The plug-ins of docs/plugins.md pass the suites, as the broker uses them, and serve a broker."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.remote.metadata.checked_metadata_manager import (
    checked_metadata,
    load_metadata_manager,
)
from isotherm.remote.storage.checked_storage_manager import checked_storage, load_storage_manager
from isotherm.spark.tier.users_storage import UsersStorage
from isotherm.testing.conformance.lists_segments import ListsSegmentsConformance
from isotherm.testing.conformance.random_histories import RandomHistoriesConformance
from isotherm.testing.conformance.remote_metadata import RemoteLogMetadataManagerConformance
from isotherm.testing.conformance.remote_storage import (
    FolderAccess,
    RemoteStorageManagerConformance,
    StoreUnderTest,
)
from isotherm.testing.sim_clock import SimClock

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
EXAMPLE = re.compile(r"<!-- example: (\w+)\.py -->\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's modules, as files on the import path."""
    found = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    directory = tmp_path / "examples"
    directory.mkdir()
    for name, code in found:
        (directory / f"{name}.py").write_text(code, encoding="utf-8")
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(directory))
    yield
    for name, _ in found:
        sys.modules.pop(name, None)


class TestStorage(RandomHistoriesConformance, RemoteStorageManagerConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        folder = tmp_path / "store"
        folder.mkdir()
        manager = load_storage_manager("my_storage.FolderStorage", {"dir": str(folder)})
        return StoreUnderTest(checked_storage(manager, SimClock()), FolderAccess(folder))


class TestListedStorage(
    RandomHistoriesConformance, ListsSegmentsConformance, RemoteStorageManagerConformance
):
    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        folder = tmp_path / "store"
        folder.mkdir()
        manager = load_storage_manager("my_listed_storage.ListedStorage", {"dir": str(folder)})
        return StoreUnderTest(UsersStorage(manager, SimClock()), FolderAccess(folder))


class TestMetadata(RemoteLogMetadataManagerConformance):
    @pytest.fixture
    def manager(self, tmp_path: Path) -> Any:
        config = {"dir": str(tmp_path), "broker.id": "7"}
        return checked_metadata(
            load_metadata_manager("my_metadata.SqliteMetadata", config), SimClock()
        )
