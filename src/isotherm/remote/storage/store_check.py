"""Checks once, at the start of a broker or job, whether the store can be used.

Without it a wrong bucket, missing rights or credentials, or a store that is down would only repeat
a warning while segments pile up on the disk.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from itertools import islice

from isotherm.errors import (
    ConfigError,
    IsothermError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TimestampMs

CHECK_DIRECTORY = "isotherm-check"
_CONTENT = b"isotherm looks whether it may write here"
_TIMEOUT_MS = 10_000
_LISTED_MAX = 1000
_SCHEMES_OVER_THE_NETWORK = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


def check_store(settings: ObjectStoreSettings, *, writes: bool) -> TimestampMs | None:
    """Get, list, and with `writes` put and delete a small object. Each is tried once.

    Returns the time of the put by the clock of the store; None if nothing was put, or if the
    listing does not show the object yet.

    Raises ConfigError if the bucket, the rights or the credentials are wrong, and
    RemoteStorageError if the store does not answer. Both name the operation, the URL and the
    endpoint. Only stores over the network are checked: a folder was checked when it was opened.
    """
    if settings.scheme not in _SCHEMES_OVER_THE_NETWORK:
        return None
    # A start does not wait for retries: the operator sees the error within seconds.
    once = replace(
        settings,
        retries=0,
        request_timeout_ms=min(settings.request_timeout_ms, _TIMEOUT_MS),
        upload_rate_limit_bytes_per_second=None,
    )
    client = ObjectClient(once, open_object_store(once, create_folder=False))
    root = (settings.key_prefix or "").rpartition("/")[0]
    directory = f"{root}/{CHECK_DIRECTORY}/" if root else f"{CHECK_DIRECTORY}/"
    # Brokers of several clusters may start at once.
    key = f"{directory}{secrets.token_hex(8)}"
    step = ""
    try:
        if writes:
            step = "put"
            client.put(key, _CONTENT)
        step = "get"
        _get(client, key, written=writes)
        step = "list"
        # One page shows that listing is allowed, however many brokers have left an object there.
        listed = list(islice(client.list_objects(directory), _LISTED_MAX))
        if writes:
            step = "delete"
            client.delete(key)
    except RemoteStorageError as error:
        raise _unusable(settings, step, error) from error
    return next((object_.last_modified_ms for object_ in listed if object_.key == key), None)


def _get(client: ObjectClient, key: str, *, written: bool) -> None:
    try:
        content = client.get(key, len(_CONTENT))
    except RemoteResourceNotFoundError as error:
        if not written:
            return
        raise RemoteStorageError("an object was put and is missing reason='not found'") from error
    if content != _CONTENT:
        raise RemoteStorageError("an object was put and has other bytes reason='other bytes'")


def _unusable(settings: ObjectStoreSettings, step: str, error: RemoteStorageError) -> IsothermError:
    kind = ConfigError if error.is_refusal else RemoteStorageError
    endpoint = settings.s3_endpoint_url or "default"
    return kind(
        f"the store cannot be used: {error.reason or error} operation={step}"
        f" url={settings.url} endpoint={endpoint}"
    )
