"""The storage manager of a tier, in the process that uses it.

It is opened once and kept until the process ends. Modules that load Arrow or an object store are
imported in the functions that need them: source.py gives the reason.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from isotherm.clock import SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions

if TYPE_CHECKING:
    from isotherm.remote.storage.api import RemoteStorageManager
    from isotherm.spark.reading.task_reading import TierStorage
    from isotherm.spark.tier.users_storage import UsersStorage

# The number of tiers with open clients in one Python worker.
_OPEN_TIERS_MAX = 8


def open_storage(options: SourceOptions, settings: ObjectStoreSettings | None) -> TierStorage:
    """The storage manager of this process for a tier. It is opened once, and again in a forked
    child, which cannot use its parent's connections. Raises ConfigError if the class in `options`
    cannot be used here."""
    return open_users_storage(options) if settings is None else _open_storage(os.getpid(), settings)


def open_users_storage(options: SourceOptions) -> UsersStorage:
    """As `open_storage`, for options that name a user's RemoteStorageManager."""
    assert options.storage_manager is not None
    config = tuple(sorted(options.storage_manager_settings.items()))
    return _open_users_storage(os.getpid(), options.storage_manager, config)


def storage_of_job(store: ObjectStoreSettings | SourceOptions) -> RemoteStorageManager:
    """The storage manager through which a job reads segments: that of a bucket in a built-in
    layout, or the user's that the options name."""
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    if isinstance(store, SourceOptions):
        return open_users_storage(store)
    opened = open_object_store(store, create_folder=False)
    return ObjectStoreRemoteStorageManager(store, store=opened)


# The process id is part of the key, so that a forked child does not find its parent's client.
@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_storage(_process_id: int, settings: ObjectStoreSettings) -> TierStorage:
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)


@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_users_storage(
    _process_id: int, class_name: str, config: tuple[tuple[str, str], ...]
) -> UsersStorage:
    from isotherm.remote.storage.checked_storage_manager import load_storage_manager
    from isotherm.spark.tier.users_storage import UsersStorage

    return UsersStorage(load_storage_manager(class_name, dict(config)), SystemClock())
