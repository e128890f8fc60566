"""The options that name the source of metadata for jobs, and their points in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.cli.pipeline_metadata import (
    MetadataPlace,
    as_of,
    metadata_log,
    store_settings,
)
from isotherm.errors import ConfigError, PolicyViolationError
from isotherm.spark.jobs.project import cost_of_projecting
from isotherm.spark.jobs.replay import AsOf, cost_of_log
from isotherm.spark.metadata.remote_metadata_log import TopicMetadataLog
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC
from tests.support.flights_history import write_flights_history

TOPIC = "__remote_log_metadata"


def test_one_place_is_named() -> None:
    cluster = MetadataPlace("b:1", {"security.protocol": "SSL"}, None, None, None)
    log = metadata_log(cluster, TOPIC, audit=True)
    assert log == TopicMetadataLog(
        {"bootstrap.servers": "b:1", "security.protocol": "SSL"}, REMOTE_LOG_METADATA_AUDIT_TOPIC
    )
    for bootstrap_server, log_dirs in ((None, None), ("b:1", [Path("log")])):
        place = MetadataPlace(bootstrap_server, {}, log_dirs, None, None)
        with pytest.raises(ConfigError, match="choose one of --bootstrap-server"):
            metadata_log(place, TOPIC)


def test_a_log_that_is_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    write_flights_history(tmp_path / "log")
    place = MetadataPlace(None, {}, [tmp_path / "log"], None, None)
    log = metadata_log(place, TOPIC)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert cost_of_log(log).bytes_read == size
    assert metadata_log(place, TOPIC, max_bytes=size) == log
    with pytest.raises(PolicyViolationError, match=f"bytes={size}"):
        metadata_log(place, TOPIC, max_bytes=size - 1)
    projection = store_settings(str(tmp_path / "projection"), None)
    assert cost_of_projecting(log, projection).bytes_read == size


def test_points_in_time_are_parsed_or_refused() -> None:
    assert as_of("2026-01-01", None) == AsOf({}, 1767225600000)
    assert as_of(None, '{"0": 12}') == AsOf({0: 12})
    with pytest.raises(ConfigError, match="not a time value='yesterday'"):
        as_of("yesterday", None)
    for text in ("12", '{"a": 1}', "nonsense"):
        with pytest.raises(ConfigError, match="not offsets by metadata partition"):
            as_of(None, text)
