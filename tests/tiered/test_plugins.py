"""Brokers with plug-ins of the remote tier: faulty ones, and those of docs/plugins.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, TopicPartition

from isotherm.errors import ConfigError
from isotherm.remote.remote_tier_metrics import READERS_IDLE
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.recording_store import RecordingStore

TIMEOUT_S = 300
RECORDS = [(b"k%d" % number, b"v%d" % number) for number in range(4)]
PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
EXAMPLE = re.compile(r"<!-- example: (\w+)\.py -->\n```python\n(.*?)```", re.DOTALL)


def foreign_error(found: memoryview) -> memoryview:
    raise LookupError("a plug-in's own error")


class SickStore(RecordingStore):
    """Passes the result of each fetch of the topic "sick" through `sickness`."""

    sickness: ClassVar[Callable[[memoryview], Any] | None] = None
    config: ClassVar[dict[str, str]] = {}
    closed: ClassVar[int] = 0

    @classmethod
    def from_config(cls, config: Any) -> SickStore:
        SickStore.config = dict(config)
        return super().from_config(config)

    def fetch_log_segment(self, metadata: Any, start: int, end: int | None = None) -> Any:
        found = super().fetch_log_segment(metadata, start, end)
        sickness = type(self).sickness
        if sickness is not None and metadata.topic_id_partition.topic == "sick":
            return sickness(found)
        return found

    def close(self) -> None:
        SickStore.closed += 1
        super().close()


def consume_both(tiers: Any, wanted: Callable[[dict[str, list[bytes]]], bool]) -> dict[str, Any]:
    """Read both topics with one consumer until it has the wanted values."""
    consumer = Consumer({**tiers.client, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("sick", 0, 0), TopicPartition("well", 0, 0)])
    found: dict[str, list[bytes]] = {"sick": [], "well": []}
    try:
        while not wanted(found):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"got {found}"
            if message.error() is None:
                found[message.topic()].append(message.value())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(
    "sickness",
    [lambda found: found[:-1], lambda found: b"", lambda found: None, foreign_error],
    ids=["short", "empty", "none", "foreign"],
)
def test_sick_plugin_harms_the_partition_that_was_asked_for_and_no_other(
    sickness: Any,
    tmp_path: Path,
    open_tiers: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SickStore, "sickness", staticmethod(sickness))
    name = f"{SickStore.__module__}.{SickStore.__qualname__}"
    tiers = open_tiers(tmp_path / "broker", {"remote.log.storage.manager.class.name": name})
    try:
        for topic in ("sick", "well"):
            tiers.create_topic(topic)
            tiers.produce(topic, *RECORDS)
        for topic in ("sick", "well"):
            tiers.expect_earliest_local(topic, 3)
        values = [value for _, value in RECORDS]
        found = consume_both(tiers, lambda found: len(found["well"]) == len(RECORDS))
        assert found["well"] == values
        tiers.expect(lambda: "method=fetch_log_segment" in caplog.text, "the error in the log")
        monkeypatch.setattr(SickStore, "sickness", None)
        found = consume_both(tiers, lambda found: all(len(each) == 4 for each in found.values()))
        assert found == {"sick": values, "well": values}
        tiers.expect(
            lambda: tiers.broker.node.metrics.value(READERS_IDLE) == 1.0, "every reader is idle"
        )
        place = {
            name: SickStore.config.get(name) for name in ("broker.id", "cluster.id", "log.dir")
        }
        cluster_id = tiers.broker.node.services.cluster_id
        assert place == {
            "broker.id": str(tiers.broker.config.node_id),
            "cluster.id": cluster_id,
            "log.dir": str(tiers.broker.config.log_dirs[0]),
        }
    finally:
        closed = SickStore.closed
        tiers.stop()
    assert SickStore.closed == closed + 1


class HalfAMetadataManager:
    @classmethod
    def from_config(cls, config: Any) -> HalfAMetadataManager:
        return cls()


@pytest.mark.parametrize("kind", ["storage", "log.metadata"])
def test_broker_does_not_start_with_half_a_plugin(kind: str, tmp_path: Path) -> None:
    key = "remote.log.storage.manager.class.name"
    first = "copy_log_segment_data"
    if kind == "log.metadata":
        key = "remote.log.metadata.manager.class.name"
        first = "add_remote_log_segment_metadata"
    name = f"{__name__}.HalfAMetadataManager"
    settings = {key: name}
    if kind == "log.metadata":
        settings["rlmm.config.remote.log.metadata.topic.num.partitions"] = "1"
    with pytest.raises(ConfigError, match=rf"missing methods=.*{first}\(.*key={re.escape(key)}"):
        EmbeddedBroker(tmp_path / "broker", settings).start()


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's modules, as files on the import path."""
    directory = tmp_path / "examples"
    directory.mkdir()
    found = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    for name, code in found:
        (directory / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(directory))
    yield
    for name, _ in found:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("examples")
def test_broker_tiers_reads_restarts_and_deletes_with_the_pages_plugins(
    tmp_path: Path, open_tiers: Any
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    settings = {
        "remote.log.storage.manager.class.name": "my_storage.FolderStorage",
        "rsm.config.dir": str(place / "bucket"),
        "remote.log.metadata.manager.class.name": "my_metadata.SqliteMetadata",
        "rlmm.config.dir": str(place),
    }
    tiers = open_tiers(tmp_path / "broker", settings)
    try:
        tiers.create_topic("a")
        tiers.produce("a", *RECORDS)
        tiers.expect_earliest_local("a", 3)
        assert tiers.consume("a", 4) == RECORDS
        tiers.stop()
        tiers.start()
        tiers.expect(lambda: tiers.log("a").highest_offset_in_remote_storage == 2, "what is copied")
        assert tiers.consume("a", 4) == RECORDS
        topics = tiers.admin.list_topics(timeout=TIMEOUT_S).topics
        assert [name for name in topics if "remote_log_metadata" in name] == []
        assert len(list((place / "bucket").iterdir())) == 3
        tiers.delete_topic("a")
        tiers.expect(lambda: not list((place / "bucket").iterdir()), "no segments")
    finally:
        tiers.stop()
