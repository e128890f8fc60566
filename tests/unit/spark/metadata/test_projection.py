"""Reads of a projection while a run replaces its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.metadata.folding.segment_fold import SEGMENTS, FoldState
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata import projection as module
from isotherm.spark.metadata.projection import ProjectedPartition, Projection, read_segments
from isotherm.spark.metadata.remote_metadata_log import LogIdentity

STATE = FoldState(SEGMENTS.empty_table())


@pytest.fixture
def settings(tmp_path: Path) -> ObjectStoreSettings:
    return ObjectStoreSettings(url=tmp_path.as_uri())


@pytest.fixture
def projection(settings: ObjectStoreSettings) -> Projection:
    """A projection with two metadata partitions."""
    made = Projection(settings, create=True)
    made.begin(LogIdentity("topic"))
    for number in (0, 1):
        made.write(number, 5, STATE)
    return made


def test_file_that_is_replaced_before_it_is_read_is_read_anew(
    projection: Projection, settings: ObjectStoreSettings
) -> None:
    tables = read_segments(settings)
    assert next(tables).schema.names == SEGMENTS.names
    replaced = projection.partitions()[1]
    projection.write(1, 6, STATE)
    projection.remove([replaced.key])
    assert next(tables).schema.names == SEGMENTS.names
    assert list(tables) == []


def test_file_that_is_gone_without_a_newer_one_is_an_error(
    projection: Projection, settings: ObjectStoreSettings
) -> None:
    tables = read_segments(settings)
    next(tables)
    projection.remove([projection.partitions()[1].key])
    with pytest.raises(RemoteResourceNotFoundError):
        next(tables)


@pytest.mark.parametrize(("step", "reads"), [(0, 1), (1, module.REPLACED_FILES_MAX + 1)])
def test_files_that_are_listed_and_never_there_are_given_up(
    projection: Projection,
    settings: ObjectStoreSettings,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    reads: int,
) -> None:
    """The listing names the same file again (step 0), or a newer one each time."""
    asked: list[int] = []

    def listed(_: Projection) -> dict[int, ProjectedPartition]:
        return {0: ProjectedPartition(0, 5 + len(asked) * step, "segments/0/x.parquet")}

    def gone(_: Projection, partition: ProjectedPartition, **options: Any) -> None:
        asked.append(partition.next_offset)
        raise RemoteResourceNotFoundError("no such object")

    monkeypatch.setattr(Projection, "partitions", listed)
    monkeypatch.setattr(Projection, "segments", gone)
    with pytest.raises(RemoteResourceNotFoundError):
        next(read_segments(settings))
    assert len(asked) == reads
