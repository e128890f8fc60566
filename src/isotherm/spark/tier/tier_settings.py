"""The settings of a tier, from the options of a query or a job."""

from __future__ import annotations

from dataclasses import replace

from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.layout.names import AIVEN, LOCAL_TIERED_STORAGE
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions, needs_built_in, storage_url


def read_settings(options: SourceOptions, layout: str | None = None) -> ObjectStoreSettings | None:
    """As `tier_settings`, for a query. None if a user's RemoteStorageManager reads the tier."""
    return None if options.storage_manager is not None else tier_settings(options, layout)


def tier_settings(options: SourceOptions, layout: str | None = None) -> ObjectStoreSettings:
    """The store that `path` names. Its layout is `layout`, else the option, else detected.

    Raises ConfigError for settings that contradict each other, and for a folder that does not
    exist.
    """
    settings = named_store(options)
    return replace(settings, layout=layout or options.layout or detect_layout(settings))


def named_store(options: SourceOptions) -> ObjectStoreSettings:
    """The settings of the store alone, without a request to it. Raises ConfigError if a user's
    RemoteStorageManager reads the tier."""
    if options.storage_manager is not None:
        raise needs_built_in(options.storage_manager)
    config = {**options.storage_settings, "url": storage_url(options.path)}
    return ObjectStoreSettings.from_config(config)


def detect_layout(settings: ObjectStoreSettings) -> str:
    """The layout of the first object of a segment that is found. AIVEN in an empty bucket."""
    client = open_for_reading(settings)
    for name in (AIVEN, LOCAL_TIERED_STORAGE):
        layout = replace(settings, layout=name).create_layout()
        for directory in client.list_directories(layout.root_directory):
            if layout.directory_topic(directory) is not None and any(
                layout.parse_key(stored.key) for stored in client.list_objects(directory + "/")
            ):
                return name
    return AIVEN
