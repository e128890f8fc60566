"""What an erasure refuses without Spark: a tombstone whose key would come back, a topic that is
gone, and places that cannot be written to."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from isotherm.remote.erasure.certificate import ErasedPartition, ErasureCertificate
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs import erase_tail
from isotherm.spark.jobs.erase_selection import ScanSettings, _Selected
from isotherm.spark.jobs.erase_settings import settings_of
from isotherm.spark.jobs.erase_tail import waiting_tails
from isotherm.spark.jobs.erase_where import _is_of_the_time
from isotherm.spark.jobs.rewrite_run import check_settings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.types import TopicIdPartition

USERS = TopicIdPartition(uuid.UUID(int=1), "users", 0)


def selected(is_open: list[bool]) -> pa.RecordBatch:
    """Records of one piece, from offset 40 on."""
    count = len(is_open)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(40, 40 + count), pa.int64()),
            "_piece": pa.array([3] * count, pa.int32()),
            "_is_open": is_open,
            "_is_dead": [False] * count,
        }
    )


@pytest.mark.parametrize(
    ("where", "is_refused"),
    [
        ("timestamp < now()", True),
        ("timestamp < `now` ()", True),
        ("timestamp < now/* */()", True),
        ("timestamp < system.builtin.now()", True),
        ("timestamp < current_date", True),
        ("timestamp < TIMESTAMP 'now'", True),
        ('timestamp < date r"Yesterday UTC"', True),
        ("timestamp < timestamp_ntz'2020-01-01'", False),
        ("value.now = 1 AND value.`current_date` = 2 AND value.current_time = 3", False),
        ("value.update = 'now' OR key = 'date ''now''' OR key = \"now()\" -- now()", False),
    ],
)
def test_what_is_another_value_at_another_time_is_refused(where: str, is_refused: bool) -> None:
    assert _is_of_the_time(where) is is_refused


@pytest.mark.parametrize("keeps_tombstones", [False, True])
def test_tombstone_of_a_compacted_topic_is_refused_by_its_offset(
    tmp_path: Path, keeps_tombstones: bool
) -> None:
    select = _Selected(
        np.array([3], np.int64),
        np.array([40], np.int64),
        {3: str(USERS)},
        ScanSettings(
            source=ObjectStoreSettings(url=tmp_path.as_uri()),
            fetch_bytes=1000,
            action=EraseAction.DROP,
            keeps_tombstones=keeps_tombstones,
        ),
    )
    (rows,) = select(iter([selected([True, True])]))
    assert rows.to_pylist() == [row_of(0, 1)]
    rows_of_tombstone = select(iter([selected([True, False])]))
    if keeps_tombstones:
        with pytest.raises(PolicyViolationError, match=r"would come back .*users-0 offset=41 "):
            list(rows_of_tombstone)
    else:
        assert next(rows_of_tombstone).to_pylist() == [row_of(0, 1)]


def row_of(*offsets: int, piece: int = 3, is_dead: bool = False) -> dict[str, object]:
    return {
        "piece": piece,
        "is_dead": is_dead,
        "records": len(offsets),
        "first": offsets[0],
        "offsets": np.array(offsets, np.int64).tobytes(),
    }


def test_selected_records_become_a_row_for_each_piece(tmp_path: Path) -> None:
    select = _Selected(
        np.array([3, 5], np.int64),
        np.array([40, 90], np.int64),
        {3: str(USERS), 5: str(USERS)},
        ScanSettings(
            source=ObjectStoreSettings(url=tmp_path.as_uri()),
            fetch_bytes=1000,
            action=EraseAction.DROP,
        ),
    )
    joined = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([97, 44, 91, 41, 40, 99], pa.int64()),
            "_piece": pa.array([5, 3, 5, 3, 3, 5], pa.int32()),
            "_is_open": [True] * 6,
            "_is_dead": [False, False, True, False, False, False],
        }
    )
    none, rows = select(iter([joined.slice(0, 0), joined]))
    assert none.num_rows == 0
    assert rows.to_pylist() == [
        row_of(0, 1, 4),
        row_of(7, 9, piece=5),
        row_of(1, piece=5, is_dead=True),
    ]


def certificate_up_to(end: int) -> ErasureCertificate:
    return ErasureCertificate(
        run="r",
        action="drop",
        fields=(),
        selector="",
        in_place=True,
        location="",
        time_ms=0,
        partitions=(ErasedPartition(partition=USERS, start_offset=0, end_offset=end, matched=0),),
    )


@pytest.mark.parametrize("topic_id", [None, uuid.UUID(int=2)])
def test_topic_that_is_gone_or_made_anew_ends_the_wait_for_its_tail(
    monkeypatch: pytest.MonkeyPatch, topic_id: uuid.UUID | None
) -> None:
    now = {} if topic_id is None else {USERS._replace(topic_id=topic_id): OffsetBounds(0, 90)}
    monkeypatch.setattr(erase_tail, "read_log_bounds", lambda *_: now)
    options: Any = None
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted while the run waited"):
        waiting_tails(options, certificate_up_to(50), {USERS: 60})
    # Nothing is left to wait for.
    assert waiting_tails(options, certificate_up_to(60), {USERS: 60}) == []


@pytest.mark.parametrize("bounds", [OffsetBounds(60, 90), OffsetBounds(0, 50)])
def test_offsets_that_are_deleted_or_truncated_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, bounds: OffsetBounds
) -> None:
    monkeypatch.setattr(erase_tail, "read_log_bounds", lambda *_: {USERS: bounds})
    options: Any = None
    assert waiting_tails(options, certificate_up_to(50), {USERS: 60}) == []


def test_places_that_cannot_take_staged_segments_are_refused(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    where = {"path": str(bucket), "subscribe": "users"}
    act: dict[str, Any] = {"now_ms": 1, "action": EraseAction.DROP}

    options = parse_options({**where, "layout": "local-tiered-storage"})
    with pytest.raises(UnsupportedVersionError, match="cannot be staged in this layout"):
        check_settings(settings_of(options, **act), options)
    options = parse_options(where)
    with pytest.raises(ConfigError, match="erasure in place needs the metadata topic"):
        check_settings(settings_of(options, **act), options)
    with pytest.raises(ConfigError, match="the target of a copy is its source"):
        check_settings(settings_of(options, **act, to_url=str(bucket)), options)
