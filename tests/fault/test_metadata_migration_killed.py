"""The migration of a stopped broker's log directory is stopped at every operation on the disk.

It can then be repeated, and the metadata has the same segments as before.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from isotherm.broker.startup.log_dir_migration import migrate_log_dirs
from isotherm.clock import SystemClock
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.crash_fs import CrashFileSystem, SimulatedCrash

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka" / "log"
SETTINGS = {
    "remote.log.metadata.compaction.initial.level": "0",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "log.initial.task.delay.ms": "600000",
}
# A crash at one operation takes some 50 ms; the deep run tries all operations.
STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 7


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped broker's folder at level 0, with what Kafka wrote to two metadata partitions."""
    directory = tmp_path_factory.mktemp("stopped")
    with EmbeddedBroker(directory, SETTINGS):
        pass
    log_dir = directory / "log"
    for number, source in enumerate(("__remote_log_metadata-46", "__remote_log_metadata-49")):
        for path in (GOLDEN / source).iterdir():
            if path.name != "partition.metadata":
                shutil.copyfile(path, log_dir / f"__remote_log_metadata-{number}" / path.name)
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    return directory


def migrate(directory: Path, fs: FileSystem) -> None:
    migrate_log_dirs(
        EmbeddedBroker(directory, SETTINGS).config,
        clock=SystemClock(),
        fs=fs,
        rng=random.Random(1),
        progress=lambda number, written, total: None,
    )


def segments(directory: Path) -> list[RemoteLogSegmentMetadata]:
    caches = fold_metadata_topic(LogDirMetadataTopic([directory / "log"]), lambda _: True)
    return [segment for cache in caches.values() for segment in cache.segments()]


def test_migration_stopped_at_any_operation_is_begun_again(stopped: Path, tmp_path: Path) -> None:
    expected = segments(stopped)
    assert len(expected) == 5
    whole = tmp_path / "whole"
    shutil.copytree(stopped, whole)
    counting = CrashFileSystem.adopting(whole)
    migrate(whole, counting)
    for crash_at in range(1, counting.operation_count, STRIDE):
        crashing, left = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-left"
        shutil.copytree(stopped, crashing)
        fs = CrashFileSystem.adopting(crashing, crash_at)
        # If the disk fails in the middle of a roll, closing that log afterwards is beside the
        # point: a machine that stops closes nothing.
        with pytest.raises((SimulatedCrash, AssertionError)):
            migrate(crashing, fs)
        assert fs.operation_count >= crash_at
        left.mkdir()
        fs.crash_clone(random.Random(crash_at), crashing, left)
        assert segments(left) == expected
        migrate(left, OsFileSystem())
        assert segments(left) == expected
        with EmbeddedBroker(left, SETTINGS) as broker:
            controller = broker.node.services.controller
            assert controller.topic_config("__remote_log_metadata").compacts
        shutil.rmtree(crashing)
        shutil.rmtree(left)
