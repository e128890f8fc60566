"""Opens the parts that a query's driver uses, from its options: the tier, its metadata, the
brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from isotherm.clock import SystemClock
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.layout.names import AIVEN, LOCAL_TIERED_STORAGE
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.projection_source import TableSegmentSource
from isotherm.spark.driver.sources_of_metadata import (
    BucketSegmentSource,
    SegmentSource,
    TopicSegmentSource,
    UsersSegmentSource,
)
from isotherm.spark.options import SourceOptions, needs_built_in, storage_url
from isotherm.spark.reading.brokers import Brokers, KafkaBrokers, RequestSettings


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


@contextmanager
def open_segment_source(
    options: SourceOptions, settings: ObjectStoreSettings | None, *, by_name: bool = False
) -> Iterator[SegmentSource]:
    """Open the segment source that `options` name. With `by_name` it may answer from the names in
    the bucket (see listed_segments.py)."""
    if options.metadata_source == "bucket" and settings is None:
        from isotherm.spark.source_task import open_users_storage

        yield UsersSegmentSource(open_users_storage(options))
        return
    if options.metadata_source == "bucket":
        assert settings is not None, "the other case"
        yield BucketSegmentSource(
            open_for_reading(settings),
            settings.create_layout(),
            fail_on_data_loss=options.fail_on_data_loss,
            by_name=by_name,
        )
        return
    if options.metadata_table is not None:
        url = storage_url(options.metadata_table)
        table = {**options.storage_settings, "url": url}
        yield TableSegmentSource(ObjectStoreSettings.from_config(table))
        return
    with closing(KafkaMetadataTopic(options.kafka_properties)) as topic:
        yield TopicSegmentSource(topic)


def open_brokers(options: SourceOptions) -> Brokers | None:
    if not options.has_brokers:
        return None
    settings = RequestSettings(
        retries=options.fetch_offset_retries,
        retry_interval_ms=options.fetch_offset_retry_interval_ms,
    )
    return KafkaBrokers(
        options.kafka_properties,
        SystemClock(),
        settings,
        reads_committed=options.reads_committed,
    )
