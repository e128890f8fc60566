"""Checks a plug-in's storage manager against the interface. The broker calls plug-ins through it.

Every answer of a plug-in is checked before it is used: its type, and the length of a range. The
plug-in's own errors become RemoteStorageError (isotherm.remote.plugin); errors of the interface
pass unchanged. So a failing plug-in fails only the reads and copies of the requested segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from isotherm.clock import Clock
from isotherm.errors import (
    CorruptObjectError,
    RetriableError,
    UnreadableDataError,
)
from isotherm.remote.plugin import PluginCalls, PluginKind, load_plugin
from isotherm.remote.segment_metadata import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import FillsBuffers, HasLocation, RemoteStorageManager
from isotherm.types import Position

STORAGE_MANAGER = PluginKind(
    "remote storage manager", "remote.log.storage.manager.class.name", RemoteStorageManager
)
_EXPECTED = (RetriableError, UnreadableDataError)


def load_storage_manager(class_name: str, config: Mapping[str, str]) -> RemoteStorageManager:
    """Make the class that `remote.log.storage.manager.class.name` names.

    Its `from_config` gets the keys under `rsm.config.` without the prefix. It must keep the
    contract of isotherm.testing.conformance. Raises ConfigError if there is no such class, or if it
    is not a storage manager.
    """
    return cast("RemoteStorageManager", load_plugin(STORAGE_MANAGER, class_name, config))


def checked_storage(inner: RemoteStorageManager, clock: Clock) -> CheckedStorageManager:
    """Wrap `inner` in the checks. The result implements FillsBuffers if `inner` does."""
    if isinstance(inner, FillsBuffers):
        return _CheckedFillingStorageManager(inner, inner, clock)
    return CheckedStorageManager(inner, clock)


def location_of(storage: RemoteStorageManager) -> str:
    """The place of the objects, for display."""
    return storage.location if isinstance(storage, HasLocation) else type(storage).__name__


class CheckedStorageManager:
    """Implements isotherm.remote.storage.api.RemoteStorageManager; thread-safe."""

    def __init__(self, inner: RemoteStorageManager, clock: Clock) -> None:
        self._inner = inner
        self._calls = PluginCalls(STORAGE_MANAGER, inner, _EXPECTED, clock)

    @property
    def location(self) -> str:
        return location_of(self._inner)

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        method, place = "copy_log_segment_data", metadata.segment_id
        custom_metadata = self._calls.call(
            method, place, lambda: self._inner.copy_log_segment_data(metadata, data)
        )
        is_right = custom_metadata is None or isinstance(custom_metadata, bytes)
        self._calls.check(method, place, "bytes or None", type(custom_metadata), is_right=is_right)
        return custom_metadata

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        method, place = "fetch_log_segment", metadata.segment_id
        last = metadata.segment_size_in_bytes - 1
        # Cut here, so that there is one right length for the plug-in's answer.
        end = last if end_position_inclusive is None else min(end_position_inclusive, last)
        if not 0 <= start_position <= end:
            raise ValueError(
                f"range is not within the segment segment={place} start={start_position}"
                f" end={end_position_inclusive} size={metadata.segment_size_in_bytes}"
            )
        stream = self._calls.call(
            method,
            place,
            # Inside the call: an answer without a buffer is an error of the plug-in.
            lambda: memoryview(self._inner.fetch_log_segment(metadata, start_position, end)),
        )
        expected = end + 1 - start_position
        if stream.nbytes != expected:
            raise CorruptObjectError(
                self._calls.wrong_answer(
                    method,
                    f"{place} start={start_position} end={end}",
                    f"{expected} bytes",
                    f"{stream.nbytes} bytes",
                )
            )
        return self._calls.call(method, place, lambda: stream.cast("B"))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        method, place = "fetch_index", f"{metadata.segment_id} index={index_type.value}"
        stream: object = self._calls.call(
            method, place, lambda: self._inner.fetch_index(metadata, index_type)
        )
        is_right = isinstance(stream, bytes | bytearray | memoryview)
        self._calls.check(method, place, "bytes", type(stream), is_right=is_right)
        return stream if isinstance(stream, bytes) else bytes(stream)  # type: ignore[call-overload]

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._calls.call(
            "delete_log_segment_data",
            metadata.segment_id,
            lambda: self._inner.delete_log_segment_data(metadata),
        )

    def close(self) -> None:
        """Returns in bounded time, and raises nothing."""
        self._calls.close(self._inner.close)


class _CheckedFillingStorageManager(CheckedStorageManager):
    def __init__(self, inner: RemoteStorageManager, filling: FillsBuffers, clock: Clock) -> None:
        super().__init__(inner, clock)
        self._filling = filling

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        method, place = "fetch_log_segment_into", f"{metadata.segment_id} start={start_position}"
        filled = 0
        stopped: list[BaseException] = []

        def note_filled(count: int) -> None:
            nonlocal filled
            expected = f"{filled} to {len(buffer)} bytes"
            is_right = count in range(filled, len(buffer) + 1)
            self._calls.check(method, place, expected, count, is_right=is_right)
            filled = count
            try:
                on_filled(count)
            except BaseException as error:
                stopped.append(error)
                raise

        def fetch() -> None:
            self._filling.fetch_log_segment_into(metadata, start_position, buffer, note_filled)

        try:
            self._calls.call(method, place, fetch)
        except Exception:
            # The plug-in may have wrapped the error of `on_filled`.
            if stopped:
                raise stopped[0]  # noqa: B904
            raise
        # The plug-in may have swallowed it. A fetch that was ended must not look complete.
        if stopped:
            raise stopped[0]
        if filled != len(buffer):
            raise CorruptObjectError(
                self._calls.wrong_answer(method, place, f"{len(buffer)} bytes", f"{filled} bytes")
            )
