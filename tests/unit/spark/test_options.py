"""Options of the Spark source. Names, defaults and errors follow Spark's Kafka source."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError, UnknownConfigError
from isotherm.spark.option_parsing import parse_options, parse_stream_options
from isotherm.spark.options import SourceOptions, storage_url
from isotherm.spark.plan.offsets import (
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    SpecificOffsets,
    SpecificTimestamps,
)
from isotherm.spark.tier.tier_settings import read_settings, tier_settings
from isotherm.types import TopicPartition

A0 = TopicPartition("a", 0)
BUCKET = {"path": "s3://bucket", "subscribe": "a"}
BROKER = BUCKET | {"kafka.bootstrap.servers": "h:9092"}


def parse(base: dict[str, str], **more: str) -> SourceOptions:
    return parse_options(base | more)


def test_defaults_are_those_of_the_kafka_source() -> None:
    options = parse(BROKER)
    assert options.starting_limit == EarliestOffsets()
    assert options.ending_limit == LatestOffsets()
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert (options.poll_timeout_ms, options.fetch_offset_retries) == (120_000, 3)
    assert options.starting_offsets_by_timestamp_strategy == "error"
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)


def test_names_are_case_insensitive() -> None:
    # Spark's CaseInsensitiveDict iterates over lower-cased keys.
    options = parse_options(
        {"PATH": "s3://b", "SUBSCRIBE": "a", "includeheaders": "true", "KAFKA.Client.Id": "x"}
    )
    assert options.include_headers
    assert options.kafka_properties == {"client.id": "x"}


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownConfigError, match="option=startingoffset nearest=startingOffsets"):
        parse(BUCKET, startingoffset="earliest")


@pytest.mark.parametrize(
    "name", ["s3.endpoint.url", "aws.access.key.id", "key.prefix", "gcs.credentials.path"]
)
def test_storage_settings_are_handed_on(name: str) -> None:
    assert parse_options(BUCKET | {name: "x"}).storage_settings == {name: "x"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "One of the following options must be specified"),
        (
            {"subscribe": "a", "assign": '{"a":[0]}'},
            "Only one of the following .* specified=subscribe,assign",
        ),
        (
            {"subscribe": "a", "subscribePattern": "a.*"},
            "Only one of the following .* specified=subscribe,subscribepattern",
        ),
    ],
)
def test_exactly_one_option_chooses_topics(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_options({"path": "s3://b"} | given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": " , "}, "No topics to subscribe to .* 'subscribe' is ' , '"),
        ({"subscribePattern": " "}, "Pattern to subscribe is empty .* 'subscribePattern' is ' '"),
        ({"subscribePattern": "a["}, r"option=subscribePattern value='a\[' position=1 found='\['"),
        ({"assign": "a-0"}, "No topicpartitions to assign .* 'assign' is 'a-0'"),
        ({"assign": '{"a":["0"]}'}, r'Expected e.g. .*got {"a":\["0"\]} option=assign'),
        ({"assign": "{}"}, "no partition is assigned option=assign"),
    ],
)
def test_choice_of_no_topic_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_options({"path": "s3://b"} | given)


def test_subscribe_is_a_trimmed_list() -> None:
    options = parse_options({"path": "s3://b", "subscribe": " a, b ,,c"})
    assert options.named_topics == {"a", "b", "c"}
    assert options.selects_topic("b")
    assert not options.selects_topic("d")


def test_pattern_is_found_in_the_name() -> None:
    options = parse_options({"path": "s3://b", "subscribePattern": " ^flights "})
    assert options.selects_topic("flights-2013")
    assert not options.selects_topic("old-flights-2013")


def test_strategy_may_be_in_capitals() -> None:
    options = parse_options(
        {"path": "b", "subscribe": "a", "startingOffsetsByTimestampStrategy": "LATEST"}
    )
    assert options.starting_offsets_by_timestamp_strategy == "latest"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "can't be latest .* option=startingOffsets"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "option=startingOffsets partition=a-0 offset=-3"),
        ({"startingOffsets": "first"}, "Expected e.g. .* got first option=startingOffsets"),
        ({"startingOffsets": ""}, "Expected e.g. .* got  option=startingOffsets"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "not a number: topic=a partition='0' value=True"),
        ({"startingOffsets": '{"a":[0]}'}, "a topic needs a number for each partition: topic=a"),
        ({"startingOffsets": "[]"}, "not a JSON object"),
        ({"endingOffsets": "earliest"}, "can't be earliest .* option=endingOffsets"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest"),
        ({"endingOffsets": '{"a":{"0":-7}}'}, "option=endingOffsets partition=a-0 offset=-7"),
        (
            {"startingOffsets": '{"a":{"0":4}}', "endingOffsets": '{"a":{"0":3}}'},
            "The specified start offset 4 is greater than the end offset 3 for topic a partition 0",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":4}}',
                "endingOffsetsByTimestamp": '{"a":{"0":3}}',
            },
            "The specified start timestamp 4 is greater than the end timestamp 3 for topic a",
        ),
        ({"startingTimestamp": "-1"}, "for configuration startingTimestamp: "),
        ({"startingTimestamp": "soon"}, "for configuration startingTimestamp: "),
        ({"endingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "option=endingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "ByTimestampStrategy"),
        ({"minPartitions": "0"}, "for configuration minPartitions: "),
        ({"maxRecordsPerPartition": "-5"}, "for configuration maxRecordsPerPartition: "),
        ({"includeHeaders": "yes"}, "for configuration includeHeaders: "),
        ({"layout": "flat"}, "for configuration layout: "),
        ({"metadata": "file"}, "for configuration metadata: "),
        ({"metadata": "table"}, "metadata=table and metadataTable"),
        ({"metadataTable": "folder"}, "metadata=table and metadataTable"),
        ({"kafka.auto.offset.reset": "earliest"}, "'auto.offset.reset' is not supported"),
        ({"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported as keys"),
        ({"kafka.value.deserializer": "x"}, "'value.deserializer' is not supported as values"),
        ({"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            r"minOffsetPerTrigger\(5\) is higher than the maxOffsetsPerTrigger\(4\)",
        ),
        ({"kafka.isolation.level": "snapshot"}, "kafka.isolation.level value=snapshot"),
        ({"isolationLevel": "snapshot"}, "for configuration isolationLevel: "),
        (
            {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "two isolation levels",
        ),
    ],
)
def test_wrong_values_are_refused_naming_the_option(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_options(BROKER | given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metadata": "topic"}, "option=metadata"),
        ({"includeTail": "true"}, "option=includeTail"),
        ({"path": " "}, "option=path"),
    ],
)
def test_contradicting_sources_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_options(BUCKET | given)


@pytest.mark.parametrize(
    ("base", "more", "tail", "metadata"),
    [
        (BUCKET, {}, False, "bucket"),
        (BROKER, {}, True, "topic"),
        (BROKER, {"includeTail": "false"}, False, "topic"),
        (BROKER, {"metadata": "bucket"}, True, "bucket"),
    ],
)
def test_tail_and_metadata_follow_the_brokers(
    base: dict[str, str], more: dict[str, str], tail: bool, metadata: str
) -> None:
    options = parse_options(base | more)
    assert (options.reads_tail, options.metadata_source) == (tail, metadata)


def test_timestamps_beat_offsets_and_the_global_one_beats_both() -> None:
    offsets = {"startingOffsets": '{"a":{"0":4}}', "endingOffsets": '{"a":{"0":9}}'}
    by_time = {
        "startingOffsetsByTimestamp": '{"a":{"0":40}}',
        "endingOffsetsByTimestamp": '{"a":{"0":90}}',
    }
    overall = {"startingTimestamp": "400", "endingTimestamp": "900"}
    first = parse_options(BUCKET | offsets)
    assert (first.starting_limit, first.ending_limit) == (
        SpecificOffsets({A0: 4}),
        SpecificOffsets({A0: 9}),
    )
    second = parse_options(BUCKET | offsets | by_time)
    assert (second.starting_limit, second.ending_limit) == (
        SpecificTimestamps({A0: 40}),
        SpecificTimestamps({A0: 90}),
    )
    third = parse_options(BUCKET | offsets | by_time | overall)
    assert (third.starting_limit, third.ending_limit) == (
        GlobalTimestamp(400),
        GlobalTimestamp(900),
    )


def test_stream_options_are_named_in_a_warning_by_a_batch_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = parse(BUCKET, maxOffsetsPerTrigger="10", maxTriggerDelay="15m")
    assert options.max_offsets_per_trigger == 10
    assert [record.message for record in caplog.records] == [
        "maxOffsetsPerTrigger option ignored in batch queries",
        "maxTriggerDelay option ignored in batch queries",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
        ({"endingTimestamp": "5"}, "ending timestamp not valid .* option=endingTimestamp"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "option=startingOffsets partition=a-0 offset=-3"),
    ],
)
def test_streams_refuse_what_has_no_meaning_for_them(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_stream_options(BUCKET | given)


def test_streams_start_at_the_end_or_wherever_they_are_reported_to() -> None:
    assert parse_stream_options(BUCKET).stream_starting_limit == LatestOffsets()
    given = {"startingOffsets": '{"a":{"0":-1}}'}
    assert parse_stream_options(BUCKET | given).stream_starting_limit == SpecificOffsets({A0: -1})


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("90", 90), ("2500us", 2), ("7ms", 7), ("3 s", 3000), ("2MIN", 120_000), ("1h", 3_600_000)],
)
def test_durations_have_sparks_form(text: str, expected_ms: int) -> None:
    assert parse_stream_options(BUCKET | {"maxTriggerDelay": text}).max_trigger_delay_ms == (
        expected_ms
    )


@pytest.mark.parametrize(
    ("path", "url"),
    [("s3://b/p", "s3://b/p"), ("file:///x", "file:///x"), ("/data/tier", "file:///data/tier")],
)
def test_storage_url_of_a_folder_is_a_file_url(path: str, url: str) -> None:
    assert storage_url(path) == url


MANAGER = {
    "remote.log.storage.manager.class.name": "my_storage.FolderStorage",
    "rsm.config.dir": "/segments",
    "kafka.bootstrap.servers": "b:1",
    "subscribe": "a",
}


def test_storage_manager_of_the_user_takes_the_place_of_the_path() -> None:
    options = parse_options(MANAGER | {"RSM.config.Secret": "hidden"})
    assert options.storage_manager == "my_storage.FolderStorage"
    assert options.storage_manager_settings == {"dir": "/segments", "secret": "hidden"}
    assert "hidden" not in repr(options)
    assert read_settings(options) is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"path": "s3://b"}, r"do not go with one of your own options=path "),
        ({"s3.region": "x", "layout": "aiven"}, "options=layout,s3.region "),
    ],
)
def test_storage_manager_of_the_user_refuses_what_is_of_the_built_in_one(
    given: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_options(MANAGER | given)


def test_storage_manager_of_the_user_has_no_built_in_layout() -> None:
    alone = {name: text for name, text in MANAGER.items() if not name.startswith("kafka.")}
    assert parse_options(alone).metadata_source == "bucket"
    assert parse_options(alone | {"metadata": "table", "metadataTable": "/t"}).path == ""
    with pytest.raises(ConfigError, match="needs the objects of a built-in layout"):
        tier_settings(parse_options(MANAGER))


def test_settings_of_a_storage_manager_without_its_class_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"without its class options=rsm\.config\.dir "):
        parse_options(BUCKET | {"rsm.config.dir": "/segments"})
