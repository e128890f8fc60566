"""Plug-ins: which ones a start refuses, and that a failing call fails only its own caller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import (
    ConfigError,
    CorruptObjectError,
    IsothermError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageThrottledError,
)
from isotherm.remote import plugin as plugin_module
from isotherm.remote.metadata import checked_metadata_manager
from isotherm.remote.metadata.checked_metadata_manager import METADATA_MANAGER, checked_metadata
from isotherm.remote.plugin import LOG_INTERVAL_S, PluginKind, load_plugin, place_config
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.api import FillsBuffers
from isotherm.remote.storage.checked_storage_manager import (
    STORAGE_MANAGER,
    checked_storage,
    load_storage_manager,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.testing.segment_files import MadeSegment, SegmentMaker
from isotherm.testing.sim_clock import SimClock


class Plugin:
    """Has every method of both interfaces. Each returns, calls or raises the answer in
    `answers`."""

    config: Mapping[str, str] = {}

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.closed = 0

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Plugin:
        made = cls()
        made.config = config
        return made

    def _answer(self, name: str, *arguments: Any) -> Any:
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    def copy_log_segment_data(self, metadata: Any, data: Any) -> Any:
        return self._answer("copy_log_segment_data")

    def fetch_log_segment(self, metadata: Any, start: int, end: int | None = None) -> Any:
        return self._answer("fetch_log_segment", start, end)

    def fetch_index(self, metadata: Any, index_type: Any) -> Any:
        return self._answer("fetch_index")

    def delete_log_segment_data(self, metadata: Any) -> Any:
        return self._answer("delete_log_segment_data")

    def add_remote_log_segment_metadata(self, metadata: Any) -> Any:
        return self._answer("write")

    def update_remote_log_segment_metadata(self, update: Any) -> Any:
        return self._answer("write")

    def put_remote_partition_delete_metadata(self, metadata: Any) -> Any:
        return self._answer("write")

    def remote_log_segment_metadata(self, partition: Any, epoch: int, offset: int) -> Any:
        return self._answer("remote_log_segment_metadata")

    def highest_offset_for_epoch(self, partition: Any, epoch: int) -> Any:
        return self._answer("highest_offset_for_epoch")

    def next_segment_with_txn_index(self, partition: Any, epoch: int, offset: int) -> Any:
        return self._answer("next_segment_with_txn_index")

    def list_remote_log_segments(self, partition: Any, epoch: int | None = None) -> Any:
        return self._answer("list_remote_log_segments")

    def remote_log_size(self, partition: Any, epoch: int) -> Any:
        return self._answer("remote_log_size")

    def on_partition_leadership_changes(self, leaders: Any, followers: Any) -> Any:
        return self._answer("on_partition_leadership_changes")

    def on_stop_partitions(self, partitions: Any) -> Any:
        return self._answer("on_stop_partitions")

    def is_ready(self, partition: Any) -> Any:
        return self._answer("is_ready")

    def close(self) -> None:
        self.closed += 1
        if "close" in self.answers:
            self._answer("close")


class FillingPlugin(Plugin):
    def fetch_log_segment_into(
        self, metadata: Any, start: int, buffer: memoryview, on_filled: Any
    ) -> Any:
        return self._answer("fetch_log_segment_into", start, buffer, on_filled)


class LacksDelete(Plugin):
    delete_log_segment_data = None  # type: ignore[assignment]


class OtherArguments(Plugin):
    def fetch_index(self, metadata: Any) -> Any:  # type: ignore[override]
        return b""


class Coroutine(Plugin):
    async def fetch_index(self, metadata: Any, index_type: Any) -> Any:
        return b""


class LacksIsReady(Plugin):
    is_ready = None  # type: ignore[assignment]


class FailsToOpen(Plugin):
    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Plugin:
        raise KeyError("dir")


class RefusesItsConfig(Plugin):
    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Plugin:
        raise ConfigError("no such key key=rsm.config.dri")


def load(kind: PluginKind, name: str, **config: str) -> Plugin:
    found = load_plugin(kind, f"{__name__}.{name}", config)
    assert isinstance(found, Plugin)
    return found


@pytest.fixture
def clock() -> SimClock:
    return SimClock(auto_advance=True)


@pytest.fixture
def segment(tmp_path: Path) -> MadeSegment:
    return SegmentMaker(tmp_path / "segments").segment(size=1000)


# -- the start


@pytest.mark.parametrize("kind", [STORAGE_MANAGER, METADATA_MANAGER])
def test_whole_plugin_is_made_from_its_keys(kind: PluginKind) -> None:
    config = place_config(
        {"dir": "/x", "broker.id": "9"}, broker_id=4, cluster_id="abc", log_dir="/data"
    )
    assert load(kind, "Plugin", **config).config == {
        "dir": "/x",
        "broker.id": "4",
        "cluster.id": "abc",
        "log.dir": "/data",
    }


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        (STORAGE_MANAGER, "NoSuchClass", "NoSuchClass"),
        (STORAGE_MANAGER, "threading", "methods='from_config(config)'"),
        (STORAGE_MANAGER, "LacksDelete", "missing methods='delete_log_segment_data(metadata)'"),
        (STORAGE_MANAGER, "OtherArguments", "expected='fetch_index(metadata, index_type)'"),
        (STORAGE_MANAGER, "Coroutine", "no plain functions expected='fetch_index"),
        (STORAGE_MANAGER, "FailsToOpen", "cause=\"KeyError: 'dir'\""),
        (METADATA_MANAGER, "LacksIsReady", "missing methods='is_ready(partition)'"),
    ],
)
def test_start_refuses_a_plugin_and_names_what_is_wrong(
    kind: PluginKind, name: str, named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(kind, name)
    for wanted in (named, f"key={kind.key}", f"value={__name__}.{name}"):
        assert wanted in str(caught.value)


def test_refusal_of_the_plugins_own_goes_through() -> None:
    with pytest.raises(ConfigError, match=r"^no such key key=rsm\.config\.dri$"):
        load(STORAGE_MANAGER, "RefusesItsConfig")


def test_plugin_that_cannot_be_imported_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_a_plugin.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        load_plugin(STORAGE_MANAGER, "half_a_plugin.Storage", {})


def test_storage_manager_is_the_object_store_unless_reported_otherwise() -> None:
    class_name = RemoteLogManagerConfig().remote_log_storage_manager_class_name
    config = place_config({"url": "memory://"}, broker_id=1, cluster_id="c", log_dir="/d")
    storage = load_storage_manager(class_name, config)
    assert isinstance(storage, ObjectStoreRemoteStorageManager)
    storage.close()


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "isotherm.remote.storage.object_store.NoSuchClass",
        "pathlib.Path",
        "NoModule",
    ],
)
def test_class_that_cannot_be_loaded_is_refused_naming_the_key(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"key=remote\.log\.storage\.manager\.class\.name"
    ) as caught:
        load_storage_manager(name, {})
    assert name in str(caught.value)


# -- calls of a storage manager


STORAGE_CALLS: dict[str, Callable[[Any, MadeSegment], object]] = {
    "copy_log_segment_data": lambda each, made: each.copy_log_segment_data(
        made.metadata, made.data
    ),
    "fetch_log_segment": lambda each, made: each.fetch_log_segment(made.metadata, 0, 9),
    "fetch_log_segment_into": lambda each, made: each.fetch_log_segment_into(
        made.metadata, 0, memoryview(bytearray(10)), lambda count: None
    ),
    "fetch_index": lambda each, made: each.fetch_index(made.metadata, IndexType.OFFSET),
    "delete_log_segment_data": lambda each, made: each.delete_log_segment_data(made.metadata),
}


@pytest.mark.parametrize("method", STORAGE_CALLS)
@pytest.mark.parametrize("foreign", [KeyError("k"), ConfigError("c"), TimeoutError(), ValueError()])
def test_foreign_error_of_a_storage_manager_is_reported_with_its_cause(
    method: str,
    foreign: Exception,
    clock: SimClock,
    segment: MadeSegment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = checked_storage(FillingPlugin(**{method: foreign}), clock)
    with pytest.raises(RemoteStorageError) as caught:
        STORAGE_CALLS[method](storage, segment)
    for wanted in (
        f"class={__name__}.FillingPlugin",
        f"method={method}",
        str(segment.metadata.segment_id),
        type(foreign).__name__,
    ):
        assert wanted in str(caught.value)
        assert wanted in caplog.text
    assert caught.value.__cause__ is foreign


@pytest.mark.parametrize("method", STORAGE_CALLS)
@pytest.mark.parametrize(
    "known",
    [RemoteStorageThrottledError("t"), RemoteResourceNotFoundError("n"), CorruptObjectError("c")],
)
def test_error_that_the_interface_knows_goes_through(
    method: str,
    known: IsothermError,
    clock: SimClock,
    segment: MadeSegment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = checked_storage(FillingPlugin(**{method: known}), clock)
    with pytest.raises(type(known)) as caught:
        STORAGE_CALLS[method](storage, segment)
    assert caught.value is known
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("copy_log_segment_data", "text", RemoteStorageError),
        ("copy_log_segment_data", 5, RemoteStorageError),
        ("fetch_log_segment", None, RemoteStorageError),
        ("fetch_log_segment", "0123456789", RemoteStorageError),
        ("fetch_log_segment", b"", CorruptObjectError),
        ("fetch_log_segment", b"012345678", CorruptObjectError),
        ("fetch_log_segment", b"0123456789a", CorruptObjectError),
        ("fetch_log_segment", memoryview(b"01234567890123456789")[::2], RemoteStorageError),
        ("fetch_index", None, RemoteStorageError),
        ("fetch_index", 3, RemoteStorageError),
        ("fetch_log_segment_into", None, CorruptObjectError),
        (
            "fetch_log_segment_into",
            lambda start, buffer, on_filled: on_filled(9),
            CorruptObjectError,
        ),
        (
            "fetch_log_segment_into",
            lambda start, buffer, on_filled: on_filled(11),
            RemoteStorageError,
        ),
        (
            "fetch_log_segment_into",
            lambda start, buffer, on_filled: [on_filled(5), on_filled(4)],
            RemoteStorageError,
        ),
        (
            "fetch_log_segment_into",
            lambda start, buffer, on_filled: on_filled("10"),
            RemoteStorageError,
        ),
    ],
)
def test_wrong_answer_of_a_storage_manager_is_an_error_that_is_logged(
    method: str,
    answer: Any,
    expected: type[Exception],
    clock: SimClock,
    segment: MadeSegment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = checked_storage(FillingPlugin(**{method: answer}), clock)
    with pytest.raises(expected, match=f"method={method}"):
        STORAGE_CALLS[method](storage, segment)
    assert f"method={method}" in caplog.text


def test_right_answers_go_through(clock: SimClock, segment: MadeSegment) -> None:
    def fill(start: int, buffer: memoryview, on_filled: Callable[[int], None]) -> None:
        buffer[:] = b"x" * len(buffer)
        on_filled(4)
        on_filled(len(buffer))

    content = segment.log_bytes()
    storage: Any = checked_storage(
        FillingPlugin(
            copy_log_segment_data=b"custom",
            fetch_log_segment=lambda start, end: bytearray(content[start : end + 1]),
            fetch_index=bytearray(b"index"),
            delete_log_segment_data="anything",
            fetch_log_segment_into=fill,
        ),
        clock,
    )
    metadata = segment.metadata
    assert storage.copy_log_segment_data(metadata, segment.data) == b"custom"
    assert storage.fetch_log_segment(metadata, 5, 9) == content[5:10]
    assert storage.fetch_log_segment(metadata, 990) == content[990:]
    assert storage.fetch_log_segment(metadata, 990, 5000) == content[990:]
    for start, last in ((-1, 9), (10, 9), (1000, None), (1000, 5000)):
        with pytest.raises(ValueError, match="not within the segment"):
            storage.fetch_log_segment(metadata, start, last)
    assert storage.fetch_index(metadata, IndexType.OFFSET) == b"index"
    assert storage.delete_log_segment_data(metadata) is None
    buffer = bytearray(10)
    filled: list[int] = []
    storage.fetch_log_segment_into(metadata, 0, memoryview(buffer), filled.append)
    assert (filled, bytes(buffer)) == ([4, 10], b"x" * 10)


def test_buffers_are_filled_by_those_who_can(clock: SimClock) -> None:
    assert isinstance(checked_storage(FillingPlugin(), clock), FillsBuffers)
    assert not isinstance(checked_storage(Plugin(), clock), FillsBuffers)


@pytest.mark.parametrize("swallows", [False, True])
def test_reader_who_leaves_ends_the_fetch_whatever_the_plugin_makes_of_it(
    *, swallows: bool, clock: SimClock, segment: MadeSegment
) -> None:
    class LeftError(RemoteStorageError):
        pass

    def leave(count: int) -> None:
        raise LeftError("nobody waits")

    def fill(start: int, buffer: memoryview, on_filled: Callable[[int], None]) -> None:
        try:
            on_filled(len(buffer))
        except Exception as error:
            if not swallows:
                raise RuntimeError("wrapped") from error

    storage: Any = checked_storage(FillingPlugin(fetch_log_segment_into=fill), clock)
    with pytest.raises(LeftError):
        storage.fetch_log_segment_into(segment.metadata, 0, memoryview(bytearray(4)), leave)


def test_failure_that_goes_on_is_logged_at_intervals(
    clock: SimClock, segment: MadeSegment, caplog: pytest.LogCaptureFixture
) -> None:
    storage = checked_storage(Plugin(fetch_index=KeyError("k"), fetch_log_segment=b""), clock)

    def fail(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            for method in ("fetch_index", "fetch_log_segment"):
                with pytest.raises(IsothermError):
                    STORAGE_CALLS[method](storage, segment)
        return [record.getMessage() for record in caplog.records]

    assert [text.partition("left_out=")[2] for text in fail(3)] == ["0", "0"]
    clock.advance(round(LOG_INTERVAL_S * 0.9 * 1000))
    assert fail(1) == []
    clock.advance(round(LOG_INTERVAL_S * 0.2 * 1000))
    assert [text.partition("left_out=")[2] for text in fail(1)] == ["3", "3"]


def test_close_that_fails_or_hangs_does_not_hold_up_a_stop(
    clock: SimClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Plugin(close=OSError("disk"))
    checked_storage(failing, clock).close()
    assert failing.closed == 1
    assert "disk" in caplog.text
    monkeypatch.setattr(plugin_module, "CLOSE_TIMEOUT_S", 0.01)
    released = threading.Event()
    hanging = Plugin(close=released.wait)
    checked_metadata(hanging, clock).close()
    released.set()
    assert hanging.closed == 1
    assert "still closing" in caplog.text


# -- calls of a metadata manager


def metadata_calls(made: MadeSegment) -> dict[str, Callable[[Any], object]]:
    """Each method of the metadata manager, with arguments for the segment."""
    partition = made.metadata.topic_id_partition
    return {
        "remote_log_segment_metadata": lambda each: each.remote_log_segment_metadata(
            partition, 0, 5
        ),
        "next_segment_with_txn_index": lambda each: each.next_segment_with_txn_index(
            partition, 0, made.metadata.end_offset_inclusive + 1
        ),
        "list_remote_log_segments": lambda each: each.list_remote_log_segments(partition),
        "highest_offset_for_epoch": lambda each: each.highest_offset_for_epoch(partition, 0),
        "remote_log_size": lambda each: each.remote_log_size(partition, 0),
        "is_ready": lambda each: each.is_ready(partition),
        "on_stop_partitions": lambda each: each.on_stop_partitions([partition]),
        "on_partition_leadership_changes": lambda each: each.on_partition_leadership_changes(
            [partition], []
        ),
        "write": lambda each: each.add_remote_log_segment_metadata(made.metadata).result(),
    }


@pytest.mark.parametrize(
    "method",
    [
        "remote_log_segment_metadata",
        "next_segment_with_txn_index",
        "list_remote_log_segments",
        "highest_offset_for_epoch",
        "remote_log_size",
        "is_ready",
        "on_stop_partitions",
        "on_partition_leadership_changes",
        "write",
    ],
)
def test_foreign_error_of_a_metadata_manager_is_reported_with_its_cause(
    method: str, clock: SimClock, segment: MadeSegment, caplog: pytest.LogCaptureFixture
) -> None:
    call = metadata_calls(segment)[method]
    with pytest.raises(RemoteStorageError, match="KeyError"):
        call(checked_metadata(Plugin(**{method: KeyError("k")}), clock))
    assert "KeyError" in caplog.text
    known = RemoteResourceNotFoundError("not assigned")
    with pytest.raises(RemoteResourceNotFoundError, match=r"^not assigned$"):
        call(checked_metadata(Plugin(**{method: known}), clock))


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("remote_log_segment_metadata", "text"),
        ("next_segment_with_txn_index", 5),
        ("list_remote_log_segments", None),
        ("list_remote_log_segments", [None]),
        ("list_remote_log_segments", ["text"]),
        ("highest_offset_for_epoch", "5"),
        ("highest_offset_for_epoch", -1),
        ("highest_offset_for_epoch", True),
        ("remote_log_size", None),
        ("remote_log_size", -5),
        ("is_ready", None),
        ("is_ready", 1),
        ("write", None),
    ],
)
def test_wrong_type_of_a_metadata_manager_is_an_error(
    method: str, answer: Any, clock: SimClock, segment: MadeSegment
) -> None:
    with pytest.raises(RemoteStorageError):
        metadata_calls(segment)[method](checked_metadata(Plugin(**{method: answer}), clock))


def test_segment_that_was_not_asked_for_is_an_error(
    clock: SimClock, tmp_path: Path, remote_segment: Callable[..., Any]
) -> None:
    other = SegmentMaker(tmp_path / "segments").segment().metadata
    segment = remote_segment({0: 10, 2: 15}, 19)
    partition = segment.topic_id_partition
    manager = Plugin(remote_log_segment_metadata=segment, next_segment_with_txn_index=segment)
    checked = checked_metadata(manager, clock)
    for epoch, offset in ((0, 10), (2, 19)):
        assert checked.remote_log_segment_metadata(partition, epoch, offset) is segment
    # The last two lie in the segment, in its other epoch. Local retention goes from epoch to epoch,
    # and such an answer would lead it in circles.
    for epoch, offset in ((0, 9), (0, 20), (1, 12), (0, 16), (2, 12)):
        with pytest.raises(RemoteStorageError, match=f"epoch {epoch} and offset {offset}"):
            checked.remote_log_segment_metadata(partition, epoch, offset)
    assert checked.next_segment_with_txn_index(partition, 0, 19) is segment
    with pytest.raises(RemoteStorageError, match="ends at 20 or later"):
        checked.next_segment_with_txn_index(partition, 0, 20)
    for method in ("remote_log_segment_metadata", "next_segment_with_txn_index"):
        with pytest.raises(RemoteStorageError, match="of the partition"):
            getattr(checked_metadata(Plugin(**{method: other}), clock), method)(partition, 0, 0)
    unsorted = Plugin(list_remote_log_segments=[remote_segment({0: 20}, 29), segment])
    starts = [
        log_segment.start_offset
        for log_segment in checked_metadata(unsorted, clock).list_remote_log_segments(partition)
    ]
    assert starts == [10, 20]


def test_future_that_fails_or_never_ends_is_an_error(
    clock: SimClock, segment: MadeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    future: Future[None] = Future()
    checked = checked_metadata(Plugin(write=future), clock)
    stored = checked.add_remote_log_segment_metadata(segment.metadata)
    monkeypatch.setattr(checked_metadata_manager, "WRITE_WAIT_S", 0.01)
    with pytest.raises(RemoteStorageError, match="not stored an event in time"):
        stored.result()
    future.set_exception(KeyError("k"))
    with pytest.raises(RemoteStorageError, match="KeyError"):
        stored.result()


def test_plugin_without_a_predecessor_has_none(clock: SimClock, segment: MadeSegment) -> None:
    assert checked_metadata(Plugin(), clock).predecessor(segment.metadata) is None


def test_warning_has_the_traceback(
    clock: SimClock, segment: MadeSegment, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RemoteStorageError):
        STORAGE_CALLS["fetch_index"](
            checked_storage(Plugin(fetch_index=KeyError()), clock), segment
        )
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info
