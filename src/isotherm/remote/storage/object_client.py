"""The only module that calls `obstore` and knows its exceptions.

Every kind of store behaves alike behind it. An object is visible whole or not at all: a local
folder renames a finished file into place, the others show an object when its last part has arrived.
An object is durable when `put` returns: in a local folder the file and the folders above it are
synced, the others promise it.

A crash may leave parts of an upload behind that no listing shows: `<name>#<n>` files in a local
folder, unfinished multipart uploads elsewhere, which a lifecycle rule of the bucket removes.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from isotherm.clock import Clock, SystemClock
from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageThrottledError,
)
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.storage.folder_objects import create_object, store_object
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_reasons import REFUSALS, is_absence, store_reason
from isotherm.types import Position, TimestampMs

# obstore gives the status and code of a refused request in the text of its error only.
_THROTTLED = re.compile(r"status code: (429|503)|SlowDown|TooManyRequests")
_RANGE_REFUSED = re.compile("range", re.IGNORECASE)


KEY_SIZE_MAX = 1024
"""Size limit of an object's key in UTF-8: that of S3, GCS and Azure."""
_NAME_SIZE_MAX = 255
_KEY_SHOWN_MAX = 100
# What `object_store`, the library below obstore, refuses in a path: empty and relative names, and
# control characters. A folder is named with a slash at its end.
_KEY_FAULT = re.compile(r"(?:^|/)(?:\.\.?)?/|(?:^|/)\.\.?$|[\x00-\x1f\x7f\ud800-\udfff]")
_UNFINISHED = re.compile(r"#\d+$")
# A file stands where a folder of the key would be, or a folder where the object would be.
_OTHER_FILE = re.compile(r"os error (20|21)\b|\[Errno (20|21)\]")
_FILLED_SIZE = 2 * 1024 * 1024
"""Bytes between two calls of `on_filled`: few enough to be still in the processor's cache when
their batches are checked."""
_PIECE_SIZE = 256 * 1024
"""Bytes that a paced upload sends at once."""
# The windows of Kafka's copy quota.
_PACE_WINDOW = QuotaWindows(window_ms=1000, count=11)


class StoredObject(NamedTuple):
    """An object as a listing shows it."""

    key: str
    size: int
    last_modified_ms: TimestampMs


class ObjectRange(NamedTuple):
    """Bytes of an object, and the size of the whole object at that moment."""

    data: memoryview
    object_size: int


class ObjectClient:
    """Thread-safe. Every method raises RemoteStorageError if the store fails."""

    def __init__(
        self, settings: ObjectStoreSettings, store: ObjectStore, clock: Clock | None = None
    ) -> None:
        """`clock` paces uploads if upload.rate.limit.bytes.per.second is set."""
        self._store = store
        self._url = settings.url
        self._upload_pace: RemoteQuota | None = None
        if settings.upload_rate_limit_bytes_per_second is not None:
            self._upload_pace = RemoteQuota(
                settings.upload_rate_limit_bytes_per_second, _PACE_WINDOW, clock or SystemClock()
            )
        self._part_size = settings.upload_part_size
        self._concurrency = settings.upload_concurrency
        self._folder = store.prefix if isinstance(store, LocalStore) else None

    def put(self, key: str, content: Path | bytes | Iterable[bytes]) -> None:
        """Store an object, replacing one of this name."""
        with self._translated("object cannot be written", key, absent_is_an_answer=False):
            pieces = content if self._upload_pace is None else _paced(content, self._upload_pace)
            if self._folder is not None:
                # obstore syncs neither the file nor its folders.
                store_object(self._folder, key, pieces)
                return
            obstore.put(
                self._store,
                key,
                pieces,
                chunk_size=self._part_size,
                max_concurrency=self._concurrency,
            )

    def create(self, key: str, content: bytes) -> bool:
        """Store an object unless there is one of this name. Of several writers one succeeds; the
        others get False."""
        with self._translated("object cannot be created", key, absent_is_an_answer=False):
            try:
                if self._folder is not None:
                    create_object(self._folder, key, content)
                else:
                    obstore.put(self._store, key, content, mode="create")
            except (FileExistsError, AlreadyExistsError):
                return False
        return True

    def get_range(self, key: str, start: Position, end: Position) -> ObjectRange:
        """Bytes [start, end) of an object, 0 <= start < end, in one request.

        Fewer bytes if the object ends before, none if it ends before `start`. Raises
        RemoteResourceNotFoundError if there is no such object.
        """
        result, size = self._open_range(key, start, end)
        if result is None:
            return ObjectRange(memoryview(b""), size)
        with self._translated("object cannot be read", key):
            data = memoryview(result.bytes())
        if len(data) != min(end, size) - start:
            raise _wrong_count(key, start, end, size, len(data))
        return ObjectRange(data, size)

    def _open_range(
        self, key: str, start: Position, end: Position
    ) -> tuple[obstore.GetResult | None, int]:
        """The answer to a ranged GET and the object's size; None and the size if the object ends
        before `start`."""
        try:
            with self._translated("object cannot be read", key):
                result = obstore.get(self._store, key, options={"range": (start, end)})
                return result, result.meta["size"]
        except RemoteStorageError as error:
            # Stores refuse a range beyond the end with different texts, so the size decides.
            if not _RANGE_REFUSED.search(str(error.__cause__)):
                raise
            # One more request, only for a range beyond the end.
            size = self.object_size(key)
            if size > start:
                raise
            return None, size

    def fill(
        self,
        key: str,
        start: Position,
        buffer: memoryview,
        object_size: int,
        on_filled: Callable[[int], None],
    ) -> int | None:
        """Same as `get_range`, but into `buffer`. `on_filled` gets the number of bytes that have
        arrived, every few MiB and at the end.

        Returns None. If the object's size is not `object_size`, reads nothing and returns its size.
        """
        if self._folder is not None:
            path = self._folder / key
            return self._fill_from_file(path, key, start, buffer, object_size, on_filled)
        end = start + len(buffer)
        result, size = self._open_range(key, start, end)
        if result is None or size != object_size:
            return size
        # Pieces as they arrive. By default obstore collects larger ones, which would delay readers.
        pieces = iter(result.stream(min_chunk_size=1))
        filled = reported = 0
        while True:
            with self._translated("object cannot be read", key):
                piece = next(pieces, None)
            if piece is None:
                break
            room = buffer[filled:]
            filled += len(piece)
            # Before the copy: a slice of the buffer never takes more bytes than it has.
            if filled > len(buffer):
                break
            room[: len(piece)] = memoryview(piece)
            # The call for the last bytes follows the check of their number. `on_filled` runs
            # outside `_translated`: its OSError would look like one of the store.
            if filled - reported >= _FILLED_SIZE and filled < len(buffer):
                reported = filled
                on_filled(filled)
        if filled != len(buffer):
            raise _wrong_count(key, start, end, size, filled)
        on_filled(filled)
        return None

    def _fill_from_file(
        self,
        path: Path,
        key: str,
        start: Position,
        buffer: memoryview,
        object_size: int,
        on_filled: Callable[[int], None],
    ) -> int | None:
        """`fill` for a folder: reads the file into the buffer without a copy in between."""
        with self._translated("object cannot be read", key):
            # One descriptor, so that size and bytes are of one version: the object may be replaced
            # meanwhile.
            descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if size != object_size:
                return size
            filled = 0
            while filled < len(buffer):
                with self._translated("object cannot be read", key):
                    room = buffer[filled : filled + _FILLED_SIZE]
                    count = os.preadv(descriptor, [room], start + filled)
                # The file was cut off after `fstat`.
                if count == 0:
                    raise _wrong_count(key, start, start + len(buffer), size, filled)
                filled += count
                on_filled(filled)
        finally:
            os.close(descriptor)
        return None

    def get(self, key: str, size_max: int) -> bytes:
        """A whole object. Raises CorruptObjectError if it is larger than `size_max`."""
        with self._translated("object cannot be read", key):
            result = obstore.get(self._store, key)
            size = result.meta["size"]
            # By the answer's head: the body is not in memory yet.
            if size > size_max:
                raise CorruptObjectError(
                    f"object is larger than its kind can be object={key}"
                    f" size={size} size_max={size_max}"
                )
            return bytes(result.bytes())

    def object_size(self, key: str) -> int:
        with self._translated("object cannot be read", key):
            return obstore.head(self._store, key)["size"]

    def exists(self, key: str) -> bool:
        try:
            self.object_size(key)
        except (RemoteResourceNotFoundError, CorruptMetadataError):
            return False  # no store has an object of an impossible key
        return True

    def copy(self, key: str, target: str) -> None:
        """Copy an object within the store, replacing one at `target`. Raises
        RemoteResourceNotFoundError if there is no such object."""
        with self._translated("object cannot be copied", key):
            if self._folder is not None:
                # Synced, unlike by obstore: a sweep deletes the original next.
                store_object(self._folder, target, self._folder / key)
            else:
                obstore.copy(self._store, key, target)

    def delete(self, key: str) -> None:
        """Delete an object. An absent one is no error."""
        try:
            with self._translated("object cannot be deleted", key):
                obstore.delete(self._store, key)
        # A folder, GCS and Azure refuse to delete an absent object; S3 does not tell.
        except RemoteResourceNotFoundError:
            return

    def list_objects(self, directory: str) -> Iterator[StoredObject]:
        """All objects under a folder (`` or a path that ends in a slash), in the store's order,
        each once. A page that the store left out cannot be detected. A page without a new object,
        as after a lost continuation token, raises RemoteStorageError: the listing would not end."""
        shown: set[str] = set()
        with self._translated("folder cannot be listed", directory):
            for batch in obstore.list(self._store, directory.rstrip("/") or None):
                shown_before = len(shown)
                for entry in batch:
                    if entry["path"] not in shown:
                        shown.add(entry["path"])
                        modified_ms = int(entry["last_modified"].timestamp() * 1000)
                        yield StoredObject(entry["path"], entry["size"], modified_ms)
                if len(shown) == shown_before:
                    raise RemoteStorageError(f"listing repeats itself folder={directory}")

    def list_directories(self, directory: str) -> list[str]:
        """The folders directly under a folder, as paths without a trailing slash. See
        `list_objects` for pages that a store may leave out."""
        with self._translated("folder cannot be listed", directory):
            listing = obstore.list_with_delimiter(self._store, directory.rstrip("/") or None)
            return sorted(set(listing["common_prefixes"]))

    def list_level(self, directory: str) -> tuple[list[str], list[StoredObject]]:
        """The folders directly under a folder, as in `list_directories`, and the objects in it."""
        with self._translated("folder cannot be listed", directory):
            listing = obstore.list_with_delimiter(self._store, directory.rstrip("/") or None)
            objects = [
                StoredObject(
                    entry["path"], entry["size"], int(entry["last_modified"].timestamp() * 1000)
                )
                for entry in listing["objects"]
            ]
            return sorted(set(listing["common_prefixes"])), objects

    @contextmanager
    def _translated(
        self, fact: str, key: str, *, absent_is_an_answer: bool = True
    ) -> Iterator[None]:
        """Turn obstore's exceptions into ours.

        For a read or a deletion a missing object is an answer. A missing bucket or folder is a
        failure, and so is either of them for a write. Raises CorruptMetadataError for a key that no
        store accepts: an object or a record that names it is wrong, and not the store.
        """
        self._check_key(key)
        try:
            yield
        except FileNotFoundError as error:
            if absent_is_an_answer and self._is_absence(error):
                raise RemoteResourceNotFoundError(f"object does not exist object={key}") from error
            raise _failure(fact, self._place_of(key), error) from error
        except (BaseError, OSError) as error:
            if absent_is_an_answer and self._folder is not None and _OTHER_FILE.search(str(error)):
                raise RemoteResourceNotFoundError(f"object does not exist object={key}") from error
            raise _failure(fact, self._place_of(key), error) from error

    def _check_key(self, key: str) -> None:
        fault = _KEY_FAULT.search(key)
        is_long = len(key.encode(errors="surrogatepass")) > KEY_SIZE_MAX
        if self._folder is not None and fault is None:
            # A name that a file system has not, or that the store keeps for unfinished uploads.
            fault = _UNFINISHED.search(key)
            is_long |= any(len(os.fsencode(name)) > _NAME_SIZE_MAX for name in key.split("/"))
        if fault is not None or is_long:
            shown = ascii(key[:_KEY_SHOWN_MAX])
            raise CorruptMetadataError(
                f"no store has an object of this key object={shown} size={len(key)}"
                f" size_max={KEY_SIZE_MAX}"
            )

    def _place_of(self, key: str) -> str:
        return f"object={key}" if key else f"url={self._url}"

    def _is_absence(self, error: FileNotFoundError) -> bool:
        if self._folder is not None:
            return self._folder.is_dir()
        return is_absence(error)


def _failure(fact: str, place: str, error: BaseException) -> RemoteStorageError:
    kind = RemoteStorageThrottledError if _THROTTLED.search(str(error)) else RemoteStorageError
    reason = store_reason(error)
    failure = kind(f"{fact} {place} reason={reason!r}")
    failure.reason = reason
    failure.is_refusal = reason.startswith(REFUSALS)
    return failure


def _wrong_count(
    key: str, start: Position, end: Position, object_size: int, received: int
) -> CorruptObjectError:
    return CorruptObjectError(
        f"store sent another number of bytes than it announced object={key}"
        f" range={start}-{end} object_size={object_size} received={received}"
    )


def _paced(content: Path | bytes | Iterable[bytes], pace: RemoteQuota) -> Iterator[bytes]:
    """Yield the content in pieces, each when `pace` admits it."""
    never = threading.Event()
    for piece in _pieces(content):
        pace.admit(len(piece), never)
        yield piece


def _pieces(content: Path | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield from (content[at : at + _PIECE_SIZE] for at in range(0, len(content), _PIECE_SIZE))
    elif isinstance(content, Path):
        with content.open("rb") as file:
            while piece := file.read(_PIECE_SIZE):
                yield piece
    else:
        for part in content:
            yield from _pieces(part)


def _folder_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def open_object_store(settings: ObjectStoreSettings, *, create_folder: bool) -> ObjectStore:
    """Open the store of the URL. Sends no request to a store over the network.

    Raises ConfigError if the URL or the credentials are invalid, or if a local folder does not
    exist and `create_folder` is False.
    """
    options: dict[str, Any] = {}
    if settings.scheme == "file":
        options["mkdir"] = create_folder
        # As in a bucket, which has no folders: an emptied one goes with its last object.
        options["automatic_cleanup"] = True
    elif settings.scheme != "memory":
        options["config"] = _store_config(settings)
        options["client_options"] = {
            "timeout": timedelta(milliseconds=settings.request_timeout_ms),
            "connect_timeout": timedelta(milliseconds=settings.connect_timeout_ms),
            "allow_http": (settings.s3_endpoint_url or "").startswith("http://"),
            **_own_authorities(settings),
        }
        options["retry_config"] = {
            "max_retries": settings.retries,
            "retry_timeout": timedelta(milliseconds=settings.retry_timeout_ms),
            "backoff": {
                "init_backoff": timedelta(milliseconds=settings.retry_backoff_ms),
                "max_backoff": timedelta(milliseconds=settings.retry_backoff_max_ms),
            },
        }
    if settings.scheme == "file" and not create_folder and not _folder_of(settings.url).is_dir():
        raise ConfigError(f"there is no such folder url={settings.url}")
    try:
        return from_url(settings.url, **options)
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(f"object store cannot be opened url={settings.url}") from error


def _own_authorities(settings: ObjectStoreSettings) -> dict[str, Any]:
    path = settings.ca_certificates_path
    if path is None:
        return {}
    from isotherm.config.key_stores import pem_certificates

    try:
        return {"root_certificate": pem_certificates(Path(path).read_bytes())}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"certificates cannot be read key=ca.certificates.path value={path} reason='{error}'"
        ) from error


def _store_config(settings: ObjectStoreSettings) -> dict[str, Any]:
    """The settings under obstore's names, without those that are not set."""
    if settings.scheme in ("s3", "s3a"):
        config: dict[str, Any] = {
            "endpoint": settings.s3_endpoint_url,
            "region": settings.s3_region,
            "access_key_id": settings.aws_access_key_id,
            "secret_access_key": settings.aws_secret_access_key,
            "session_token": settings.aws_session_token,
            "virtual_hosted_style_request": not settings.s3_path_style_access_enabled,
        }
    elif settings.scheme == "gs":
        config = {"service_account": settings.gcs_credentials_path}
    else:
        config = {
            "account_name": settings.azure_account_name,
            "account_key": settings.azure_account_key,
            "sas_key": settings.azure_sas_token,
        }
    return {name: value for name, value in config.items() if value is not None}
