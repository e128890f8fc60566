"""Sizes of volumes are read while the event loop serves others, with one thread a directory."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from isotherm.broker.partitions.volumes import Volumes
from isotherm.errors import LogDirFailedError
from isotherm.log.log_dir import LogDir, Volume

WAIT_S = 300


class HangingDisk(LogDir):
    """Answers when `answers` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()
        self.reads = 0

    def volume(self) -> Volume:
        self.reads += 1
        assert self.answers.wait(WAIT_S)
        return super().volume()


def test_disk_that_hangs_holds_only_those_who_ask_for_it(tmp_path) -> None:
    hanging, other = HangingDisk(tmp_path), LogDir(tmp_path)

    async def scenario() -> None:
        volumes = Volumes()
        waiting = [asyncio.create_task(volumes.read(hanging)) for _ in range(3)]
        cancelled = asyncio.create_task(volumes.read(hanging))
        assert (await volumes.read(other)).total_bytes > 0
        cancelled.cancel()
        assert not any(future.done() for future in waiting)
        hanging.answers.set()
        assert len(set(await asyncio.gather(*waiting))) == 1
        assert hanging.reads == 1
        await volumes.read(hanging)
        assert hanging.reads == 2

    asyncio.run(scenario())


def test_volume_that_cannot_be_read_takes_its_directory_offline(tmp_path) -> None:
    gone = LogDir(tmp_path / "gone")
    volumes = Volumes()
    with pytest.raises(LogDirFailedError):
        asyncio.run(volumes.read(gone))
    assert not gone.is_online
    with pytest.raises(LogDirFailedError):
        asyncio.run(volumes.read(gone))
