"""A reader that gets nothing says where it waits."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, TopicPartition

from isotherm.cli.consume import WAIT_NOTICE_S, WaitNotice
from isotherm.testing.sim_clock import SimClock


class ReaderAt:
    """A consumer with a position in partition 0 alone."""

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return [
            TopicPartition(
                partition.topic, partition.partition, OFFSET_INVALID if partition.partition else 70
            )
            for partition in partitions
        ]


STARTS = [
    TopicPartition("t", 0, 50),
    TopicPartition("t", 1, 20),
    TopicPartition("t", 2, OFFSET_BEGINNING),
    TopicPartition("t", 3, 0),
]


def test_silence_names_each_place_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = SimClock()
    notice = WaitNotice(clock, STARTS)
    reader: Any = ReaderAt()
    notice.look(reader, {3})
    clock.advance(int(WAIT_NOTICE_S * 1000) - 1000)
    notice.look(reader, {3})
    assert capsys.readouterr().err == ""
    clock.advance(1000)
    notice.look(reader, {3})
    notice.look(reader, {3})
    (line,) = capsys.readouterr().err.splitlines()
    assert "for 5 s, still waiting topic=t partitions='0 at 70, 1 at 20, 2 at its start'" in line
    notice.end()
    clock.advance(int(WAIT_NOTICE_S * 1000))
    notice.look(reader, {1, 2, 3})
    assert "partitions='0 at 70'" in capsys.readouterr().err
