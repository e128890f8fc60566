"""Kinds of damage, planted in one bucket: the responsible jobs find and name each, and sound topics
beside them have no findings. The jobs run through the command line.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from Crypto.PublicKey import RSA
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import UnknownTopicOrPartitionError
from tests.support.planted_bucket import PlantedBucket
from tests.support.planted_damage import PLANTED, plant_all

DAY_S = 86_400


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    bucket = PlantedBucket(tmp_path_factory.mktemp("planted"))
    bucket.add_sound_topics()
    plant_all(bucket)
    bucket.write_dumps()
    return bucket


def run(
    job: str, bucket: PlantedBucket, *arguments: str, exit_code: int, source: str = "--dump"
) -> list[dict[str, Any]]:
    """The rows that the job prints."""
    place = ["--path", str(bucket.folder), "-o", "key.prefix=tiered/", source, str(bucket.dump)]
    result = CliRunner().invoke(app, ["pipeline", job, *place, "--json", *arguments])
    assert result.exit_code == exit_code, result.output + str(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def kinds_by_topic(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        if "kind" in row:
            found.setdefault(row["topic"], set()).add(row["kind"])
    return found


def age(bucket: PlantedBucket) -> None:
    """Make every object two days old."""
    for path in bucket.folder.rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - 2 * DAY_S, stat.st_mtime - 2 * DAY_S))


def test_sweep_names_what_is_planted_and_deletes_nothing_on_metadata_that_lags(
    spark: SparkSession, planted: PlantedBucket
) -> None:
    age(planted)
    before = sorted(planted.folder.rglob("*"))
    found = kinds_by_topic(run("sweep", planted, "--everywhere", "--delete", exit_code=1))
    expected = {damage.name: {kind.value for kind in damage.sweep} for damage in PLANTED}
    assert found == {name: kinds for name, kinds in expected.items() if kinds}
    assert sorted(planted.folder.rglob("*")) == before


def test_scrub_names_what_is_planted(spark: SparkSession, planted: PlantedBucket) -> None:
    found = kinds_by_topic(run("scrub", planted, exit_code=3))
    expected = {damage.name: {kind.value for kind in damage.scrub} for damage in PLANTED}
    assert found == {name: kinds for name, kinds in expected.items() if kinds}


def test_verify_names_what_differs_in_the_metadata(
    spark: SparkSession, planted: PlantedBucket
) -> None:
    arguments = ["--dump", str(planted.dump), "--against-dump", str(planted.sound_dump), "--json"]
    result = CliRunner().invoke(app, ["pipeline", "verify", *arguments])
    assert result.exit_code == 3, result.output
    found = kinds_by_topic([json.loads(line) for line in result.stdout.splitlines()])
    assert found == {damage.name: damage.verify for damage in PLANTED if damage.verify}


LONG_MAX = 2**63 - 1
IMPOSSIBLE: dict[str, dict[str, object]] = {
    "end-at-the-limit": {"endOffset": LONG_MAX},
    "end-beyond-the-limit": {"endOffset": LONG_MAX + 1},
    "end-below-the-start": {"endOffset": 3},
    "start-negative": {"startOffset": -1},
    "start-a-fraction": {"startOffset": 28.5},
    "time-negative": {"maxTimestampMs": -LONG_MAX - 1},
    "event-time-negative": {"eventTimestampMs": -LONG_MAX - 1},
    "no-epoch": {"segmentLeaderEpochs": {}},
    "epoch-negative": {"segmentLeaderEpochs": {"-1": 28}},
    "epoch-beyond-the-end": {"segmentLeaderEpochs": {"2": LONG_MAX}},
    "epoch-beyond-its-type": {"segmentLeaderEpochs": {"2147483648": 28}},
    "file-size-negative": {"originalFileSize": -1},
    "file-size-at-the-limit": {"originalFileSize": 2**31 - 1},
    "chunk-size-zero": {"originalChunkSize": 0},
    "stored-chunk-size-negative": {"transformedChunkSize": -1},
}


@pytest.fixture(scope="module")
def impossible(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    """A topic for each impossible number in the manifest of its middle segment."""
    bucket = PlantedBucket(tmp_path_factory.mktemp("impossible"))
    bucket.add_sound_topics()
    for name, numbers in IMPOSSIBLE.items():
        topic = bucket.add_topic(name)
        topic.retell_manifest(topic.middle, **numbers)
    return bucket


@pytest.mark.parametrize(
    ("job", "rest"),
    [
        pytest.param("rebuild", {"history-gap"}, marks=pytest.mark.nightly),
        ("scrub", {"history-gap"}),
    ],
)
def test_job_over_manifests_names_each_that_has_impossible_numbers(
    spark: SparkSession, impossible: PlantedBucket, job: str, rest: set[str]
) -> None:
    place = ["--path", str(impossible.folder), "-o", "key.prefix=tiered/"]
    result = CliRunner().invoke(app, ["pipeline", job, *place, "--json"])
    assert result.exit_code == 3, result.output + str(result.exception)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    found = kinds_by_topic(rows)
    assert found == {name: {"damaged-manifest"} | rest for name in IMPOSSIBLE}
    for row in rows:
        if row.get("kind") == "damaged-manifest":
            topic = impossible.topics[row["topic"]]
            key = topic.path(topic.middle, "rsm-manifest").relative_to(impossible.folder)
            assert str(key) in row["detail"]
    ends = {row["topic"]: row["log_end"] for row in rows if "log_end" in row}
    assert job == "scrub" or set(ends) == set(impossible.topics)


IMPOSSIBLE_TOLD: dict[str, dict[str, object]] = {
    "stated-end-at-the-limit": {"end_offset_inclusive": LONG_MAX},
    "stated-end-below-the-start": {"end_offset_inclusive": 3},
    "stated-start-negative": {"start_offset": -1},
    "stated-start-at-the-least": {"start_offset": -LONG_MAX - 1},
    "stated-time-at-the-least": {"max_timestamp_ms": -LONG_MAX - 1},
    "stated-time-at-the-limit": {"max_timestamp_ms": LONG_MAX},
    "stated-event-time-at-the-least": {"event_timestamp_ms": -LONG_MAX - 1},
    "stated-event-time-at-the-limit": {"event_timestamp_ms": LONG_MAX},
    "stated-size-negative": {"segment_size_in_bytes": -1},
    "stated-size-zero": {"segment_size_in_bytes": 0},
    "stated-size-at-the-limit": {"segment_size_in_bytes": 2**31 - 1},
    "stated-no-epoch": {"segment_leader_epochs": {}},
    "stated-epoch-at-the-limit": {"segment_leader_epochs": {2**31 - 1: LONG_MAX}},
    "stated-epochs-that-fall": {"segment_leader_epochs": {2: LONG_MAX, 3: -LONG_MAX - 1}},
}


# These make no valid segment: the record is damaged, and its segment unknown.
REFUSED_TOLD = {
    "stated-end-below-the-start",
    "stated-start-negative",
    "stated-start-at-the-least",
    "stated-no-epoch",
}
# The COPY_SEGMENT_FINISHED event has another time.
SUPERSEDED_STATED = {"stated-event-time-at-the-least", "stated-event-time-at-the-limit"}


@pytest.fixture(scope="module")
def impossible_events(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    """A topic for each impossible number in the metadata of its middle segment."""
    bucket = PlantedBucket(tmp_path_factory.mktemp("stated"))
    bucket.add_sound_topics()
    for name, numbers in IMPOSSIBLE_TOLD.items():
        middle = bucket.add_topic(name).middle
        place = next(
            place
            for place, event in enumerate(bucket.events)
            if getattr(event, "segment_id", None) == middle.segment_id
        )
        event = copy.copy(bucket.events[place])
        for field, number in numbers.items():
            object.__setattr__(event, field, number)
        bucket.events[place] = event
    bucket.write_dumps()
    return bucket


@pytest.mark.parametrize(
    "job",
    [
        "audit",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("sweep", "scrub", "verify")),
    ],
)
def test_job_over_metadata_goes_on_where_it_has_impossible_numbers(
    spark: SparkSession, impossible_events: PlantedBucket, job: str
) -> None:
    place = {
        "audit": ["--retention-ms", "stated-time-at-the-least=1000"],
        "verify": ["--against-dump", str(impossible_events.sound_dump)],
    }
    of_bucket = ["--path", str(impossible_events.folder), "-o", "key.prefix=tiered/"]
    source = ["--dump", str(impossible_events.dump), "--json", *place.get(job, of_bucket)]
    result = CliRunner().invoke(app, ["pipeline", job, *source])
    assert result.exit_code == 3, result.output[-2000:] + str(result.exception)
    assert "end offset is below the start offset" in result.output
    found = kinds_by_topic([json.loads(line) for line in result.stdout.splitlines()])
    if job == "sweep":
        assert found == {}
        return
    at_the_limit = {"stated-end-at-the-limit": {"overlap"}}
    others = (
        set(IMPOSSIBLE_TOLD) - REFUSED_TOLD - SUPERSEDED_STATED if job != "audit" else at_the_limit
    )
    assert set(found) == REFUSED_TOLD | set(others)
    of_refused = {"audit": "gap", "scrub": "history-gap", "verify": "extra"}[job]
    assert all(found[name] == {of_refused} for name in REFUSED_TOLD)
    assert job != "audit" or at_the_limit.items() <= found.items()


@pytest.fixture
def of_two(tmp_path: Path) -> PlantedBucket:
    """A topic with a segment that duplicates another's offsets, and a sound topic."""
    bucket = PlantedBucket(tmp_path)
    damage = next(each for each in PLANTED if each.name == "segment-twice")
    damage.plant(bucket.add_topic("twice"))
    bucket.add_topic("sound")
    return bucket


@pytest.fixture(scope="module")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    private = tmp_path_factory.mktemp("keys") / "private.pem"
    private.write_bytes(RSA.generate(2048).export_key(pkcs=8))
    pairs = "encryption.key.pairs"
    return ["-o", f"{pairs}=Of2026", "-o", f"{pairs}.Of2026.private.key.file={private}"]


def test_leftovers_are_reported_apart_from_damage(
    spark: SparkSession, of_two: PlantedBucket, key_pair: list[str]
) -> None:
    """With a key pair configured, and with either source of the metadata topic."""
    of_two.write_dumps()
    rows = run("scrub", of_two, *key_pair, exit_code=0)
    assert kinds_by_topic(rows) == {"twice": {"duplicate-segment"}}
    counts = rows[-1]["scrubbed"]
    assert (counts["findings"], counts["damage"], counts["leftovers"]) == (1, 0, 1)
    sound = of_two.topics["sound"]
    sound.flip_bit(sound.middle, "log", 150)
    counts = run("scrub", of_two, *key_pair, exit_code=3, source="--log-dir")[-1]["scrubbed"]
    assert (counts["findings"], counts["damage"], counts["leftovers"]) == (2, 1, 1)


def test_segment_of_given_up_epochs_is_damage_where_no_other_holds_its_offsets(
    spark: SparkSession, of_two: PlantedBucket
) -> None:
    topic = of_two.topics["sound"]
    last = topic.segments[2]
    topic.retell_manifest(last, segmentLeaderEpochs={"1": last.start_offset})
    place = ["--path", str(of_two.folder), "-o", "key.prefix=tiered/", "--sample", "0.0001%"]
    result = CliRunner().invoke(app, ["pipeline", "scrub", *place, "--json"])
    assert result.exit_code == 3, result.output + str(result.exception)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert kinds_by_topic(rows) == {"twice": {"duplicate-segment"}, "sound": {"outside-history"}}


def test_segment_that_has_just_expired_is_not_beyond_retention(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Brokers look for expired segments at intervals: each audit of a sound tier found some."""
    bucket = PlantedBucket(tmp_path)
    topic = bucket.add_topic("sound")
    bucket.write_dumps()
    expires_ms = min(segment.max_timestamp_ms for segment in topic.segments) + 1000
    source = ["--dump", str(bucket.dump), "--json", "--retention-ms", "sound=1000"]
    for late_ms, exit_code in ((3_600_000, 0), (3_600_001, 3)):
        now = ["--now", str(expires_ms + late_ms)]
        result = CliRunner().invoke(app, ["pipeline", "audit", *source, *now])
        assert result.exit_code == exit_code, result.output
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert any(row["table"] == "retention" for row in rows) == (exit_code == 3)


def test_topic_without_segments_is_not_clean(spark: SparkSession, of_two: PlantedBucket) -> None:
    """A mistyped name had no findings and exit code 0."""
    place = ["--path", str(of_two.folder), "-o", "key.prefix=tiered/"]
    place += ["-o", "subscribe=sound,soumd"]
    for more in ((), ("--dry-run",)):
        result = CliRunner().invoke(app, ["pipeline", "scrub", *place, "--json", *more])
        assert isinstance(result.exception, UnknownTopicOrPartitionError), result.output
        assert str(result.exception).endswith("topics=soumd nearest=sound")
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert [row["scrubbed"]["segments"] for row in rows if "scrubbed" in row] == (
            [] if more else [3]
        )


def test_sweep_asks_manifests_for_sizes_where_key_pairs_are_configured(
    spark: SparkSession, of_two: PlantedBucket, key_pair: list[str]
) -> None:
    """A stored log with its segment's size is wrong too, if the manifest has another stored
    size.
    """
    topic = of_two.topics["sound"]
    stored = topic.middle.segment_size_in_bytes + 28
    topic.retell_manifest(
        topic.middle, transformedChunkSize=stored, finalTransformedChunkSize=stored
    )
    short = topic.path(topic.segments[0], "log")
    short.write_bytes(short.read_bytes()[:-1])
    damaged = topic.path(topic.segments[2], "rsm-manifest")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    of_two.write_dumps()
    rows = run("sweep", of_two, *key_pair, exit_code=3)
    found = {(row["kind"], row["start_offset"], row["key"]) for row in rows if "kind" in row}
    paths = [short, topic.path(topic.middle, "log"), damaged]
    keys = [str(path.relative_to(of_two.folder)) for path in paths]
    starts = [segment.start_offset for segment in topic.segments]
    kinds = ["wrong-size", "wrong-size", "damaged-manifest"]
    assert found == set(zip(kinds, starts, keys, strict=True))
    costs = [row["cost"] for row in rows if "cost" in row]
    manifests = [topic.path(s, "rsm-manifest") for t in of_two.topics.values() for s in t.segments]
    assert costs[1]["gets"] == 7
    assert costs[1]["bytes"] >= sum(path.stat().st_size for path in manifests[3:])
