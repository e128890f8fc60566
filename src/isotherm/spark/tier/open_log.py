"""Opens what a query reads, from its options: the list of its segments, its brokers, and the log of
both tiers.

Executors open it, too, if a segment is gone when they read it. They name no brokers then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from isotherm.clock import SystemClock
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions, storage_url
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from isotherm.spark.tier.segment_list_sources import (
    BucketSegmentSource,
    SegmentSource,
    TableSegmentSource,
    TopicSegmentSource,
    UsersSegmentSource,
)
from isotherm.spark.tier.storage import open_storage, open_users_storage
from isotherm.spark.tier.tiered_log import TieredLog


@contextmanager
def open_tiered_log(
    options: SourceOptions,
    settings: ObjectStoreSettings | None,
    brokers: KafkaBrokers | None,
    *,
    by_name: bool = False,
) -> Iterator[TieredLog]:
    """Open the topics of a query. `settings` are those of `read_settings`; for `by_name` see
    `open_segment_source`."""
    with open_segment_source(options, settings, by_name=by_name) as segments:
        yield TieredLog(options, open_storage(options, settings), segments, brokers)


@contextmanager
def open_segment_source(
    options: SourceOptions, settings: ObjectStoreSettings | None, *, by_name: bool = False
) -> Iterator[SegmentSource]:
    """Open the segment source that `options` name. With `by_name` it may answer from the names in
    the bucket (see listed_segments.py)."""
    if options.metadata_source == "bucket" and settings is None:
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


def open_brokers(options: SourceOptions, *, to_last_record: bool = False) -> KafkaBrokers | None:
    """The brokers that the options name. With `to_last_record` the log ends behind its last
    replicated record, whatever the options say of open transactions."""
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
        reads_committed=options.reads_committed and not to_last_record,
    )
