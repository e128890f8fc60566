"""A broker loses its power, and starts on each image that its disk may show afterwards.

The broker runs on a file system that knows what was synced. At many points of the run the test
makes images of the disk; models of disks differ in what they keep of unsynced writes. No flush is
requested. For every image:

- no record changes or comes twice, and all flushed records are there;
- segments that were deleted locally are in the remote tier, with their metadata;
- the log names each record that is missing before a later one;
- neither the start nor later appends lose anything more.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.partitions.partition import ACKS_LEADER
from isotherm.log.log_manager import LogManager
from isotherm.record.batch import build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicPartition
from tests.support.conditions import wait_until
from tests.support.crash_folder import folder_noted
from tests.support.crash_fs import CrashFileSystem, PowerLoss
from tests.support.data_directory import SETTINGS, Served, serve

T0 = 1_700_000_000_000
SMALL_SEGMENTS = {
    "segment.index.bytes": "48",
    "index.interval.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
TOPICS = {
    "plain": SMALL_SEGMENTS,
    "tiered": {**SMALL_SEGMENTS, "remote.storage.enable": "true", "local.retention.bytes": "1"},
}
GAP = re.compile(
    r"records are missing between segments partition=(\S+)-0"
    r" first_missing_offset=(\d+) next_offset=(\d+)"
)


class Known(NamedTuple):
    """The state of a topic when the power failed. `appended` counts records that may be there."""

    appended: int
    flushed: int
    local_start: int


class Image(NamedTuple):
    folder: Path
    model: PowerLoss
    known: dict[str, Known]


class Machine:
    """A broker, its disk, and the images of it."""

    def __init__(self, folder: Path, every: int, seed: int) -> None:
        self.images: list[Image] = []
        self.cut_points = 0
        self._folder = folder
        self._every = every
        self._rng = random.Random(seed)
        self._appended = dict.fromkeys(TOPICS, 0)
        self._broker: EmbeddedBroker | None = None
        self.fs = CrashFileSystem(on_operation=self._on_operation)

    def run(self) -> None:
        with running(self._folder / "machine", self.fs) as broker:
            _create_topics(broker)
            self._broker = broker
            for step in range(30):
                for topic in TOPICS:
                    self._append(topic)
                self._tick(step)
            self._broker = None

    def _append(self, topic: str) -> None:
        """Append a batch of up to three pages; each record's key is its offset."""
        first = self._appended[topic]
        count = self._rng.randint(1, 4)
        # Counted before the append: the power may fail during it, and its records may be there.
        self._appended[topic] = first + count
        assert self._broker is not None
        append(self._broker, topic, range(first, first + count), self._rng.randint(0, 3000))

    def _tick(self, step: int) -> None:
        assert self._broker is not None
        log_manager = logs_of(self._broker)
        if step % 4 == 1:
            log_manager.flush_closed_segments()
        if step % 5 == 2:
            log_manager.checkpoint()
        if step % 6 == 5:
            wait_until_copied(self._broker)
            log_manager.delete_expired_segments()
            log_manager.delete_marked_files()

    def _on_operation(self, number: int) -> None:
        if self._broker is None or number % self._every:
            return
        self.cut_points += 1
        known = {}
        for topic, appended in self._appended.items():
            log = logs_of(self._broker).log(TopicPartition(topic, 0))
            assert log is not None
            known[topic] = Known(appended, log.recovery_point, log.segments()[0].base_offset)
        for model in PowerLoss:
            folder = self._folder / f"{number}-{model.name.lower()}"
            rng = random.Random(f"{number} {model}")
            self.fs.crash_clone(rng, self._folder / "machine", folder, model)
            self.images.append(Image(folder, model, known))


def logs_of(broker: EmbeddedBroker) -> LogManager:
    return broker.node.services.replica_manager._log_manager


@contextmanager
def running(folder: Path, fs: CrashFileSystem) -> Iterator[EmbeddedBroker]:
    with folder_noted(fs), EmbeddedBroker(folder, SETTINGS, fs=fs) as broker:
        yield broker


def _create_topics(broker: EmbeddedBroker) -> None:
    services = broker.node.services
    new = [
        NewTopic(name=name, num_partitions=1, configs=configs) for name, configs in TOPICS.items()
    ]
    created = services.control_executor.submit(
        lambda: services.controller.create_topics(new)
    ).result()
    assert [each.error for each in created] == [None, None]


def append(broker: EmbeddedBroker, topic: str, numbers: range, size: int) -> None:
    records = [
        (T0 + number, b"%d" % number, bytes([number % 251]) * size, ()) for number in numbers
    ]
    partition = broker.node.services.replica_manager.find_partition(topic, None, 0)
    partition.append(build_batch(records), required_acks=ACKS_LEADER, now_ms=T0)


def content(served: Served | None) -> dict[int, int]:
    """The number in each record's key, by offset."""
    assert served is not None, "offline"
    return {offset: int(key or b"-1") for offset, (key, _) in served.records.items()}


def check(image: Image, caplog: pytest.LogCaptureFixture) -> int:
    """Start a broker on the image; return the number of records that are missing before a later
    one.
    """
    caplog.clear()
    gaps = 0
    with running(image.folder, CrashFileSystem.adopting(image.folder)) as broker:
        served = serve(broker)
        named = [
            (found[1], int(found[2]), int(found[3]))
            for record in caplog.records
            if (found := GAP.search(record.getMessage()))
        ]
        assert not [record for record in caplog.records if record.exc_info]
        before = {}
        for topic, known in image.known.items():
            found = content(served[TopicPartition(topic, 0)])
            assert all(number == offset for offset, number in found.items())
            assert max(found, default=-1) < known.appended
            safe = max(known.flushed, known.local_start)
            assert set(range(safe)) <= found.keys(), "what was safe is lost"
            end = logs_of(broker).log(TopicPartition(topic, 0)).log_end_offset  # type: ignore[union-attr]
            missing = set(range(end)) - found.keys()
            logged = {number for name, *gap in named if name == topic for number in range(*gap)}
            assert missing == logged, "the log names what is missing"
            gaps += len(missing)
            append(broker, topic, range(end, end + 1), 10)
            before[topic] = {**found, end: end}
    with running(image.folder, CrashFileSystem.adopting(image.folder)) as broker:
        again = serve(broker)
        for topic, found in before.items():
            assert content(again[TopicPartition(topic, 0)]) == found
        wait_until_copied(broker)
    return gaps


def wait_until_copied(broker: EmbeddedBroker) -> None:
    log = logs_of(broker).log(TopicPartition("tiered", 0))
    assert log is not None
    ends = [after.base_offset for each, after in pairwise(log.segments()) if each.size_in_bytes]
    end = max(ends, default=0)
    wait_until(lambda: log.highest_offset_in_remote_storage >= end - 1, "segments are copied")


def check_images(
    folder: Path, caplog: pytest.LogCaptureFixture, *, cut_points: int, seed: int
) -> int:
    caplog.set_level(logging.WARNING)
    machine = Machine(folder, every=7, seed=seed)
    machine.run()
    assert machine.cut_points >= 40
    chosen = random.Random(seed).sample(range(machine.cut_points), cut_points)
    faults, gaps = [], 0
    for point in chosen:
        for image in machine.images[point * len(PowerLoss) : (point + 1) * len(PowerLoss)]:
            try:
                gaps += check(image, caplog)
            except AssertionError as error:
                faults.append(f"{image.folder.name}: {error}")
    assert not faults, "\n".join(faults)
    return gaps


@pytest.mark.slow
def test_power_loss_takes_nothing_that_was_safe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_images(tmp_path, caplog, cut_points=5, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_power_loss_at_forty_points_takes_nothing_that_was_safe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gaps = sum(
        check_images(tmp_path / f"{seed}", caplog, cut_points=40, seed=seed) for seed in range(3)
    )
    assert gaps > 0, "some disks lose records before later ones"
