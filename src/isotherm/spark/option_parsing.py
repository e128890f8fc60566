"""Parses the texts of options into `SourceOptions`, and checks them together.

ConfigError names the option and a remedy. If the Kafka source refuses the same options, the message
is that of the Kafka source. This module does no I/O. Source: Spark KafkaSourceProvider.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping

from isotherm.config.definition import LIST, ConfigKey, config_keys
from isotherm.errors import ConfigError, UnknownConfigError
from isotherm.remote.storage.settings import key_pair_file_keys
from isotherm.spark.options import (
    ISOLATION_PROPERTY,
    KAFKA_PREFIX,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    STORAGE_MANAGER_KEY,
    STORAGE_MANAGER_PREFIX,
    STORAGE_SETTINGS,
    SourceOptions,
    source_option_keys,
)
from isotherm.spark.plan.offsets import (
    EARLIEST,
    LATEST,
    EarliestOffsets,
    LatestOffsets,
    SpecificOffsets,
    SpecificTimestamps,
    check_order,
)
from isotherm.spark.topic_pattern import topic_pattern

_logger = logging.getLogger(__name__)

_BATCH_ONLY = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
}
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
# The messages for invalid values that the Kafka source has.
_REFUSED_VALUES = {
    "startingTimestamp": "Expected a single long value, got {}",
    "endingTimestamp": "Expected a single long value, got {}",
    "minPartitions": "minPartitions must be positive",
    "maxRecordsPerPartition": "maxrecordsperpartition must be positive",
}
KEY_PAIRS = "encryption.key.pairs"
# In the Kafka source's order and spelling.
_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_SHOWN_IN_PLANS = ", because Spark would show it in plans."
_NAME_A_FILE = f"{_SHOWN_IN_PLANS} hint='name a file by kafka.ssl.keystore.location'"
_FORBIDDEN_KAFKA_PROPERTIES = {
    "auto.offset.reset": ". hint='set startingOffsets'",
    "key.deserializer": (
        " as keys are deserialized as byte arrays with ByteArrayDeserializer."
        " Use DataFrame operations to explicitly deserialize the keys."
    ),
    "value.deserializer": (
        " as values are deserialized as byte arrays with ByteArrayDeserializer."
        " Use DataFrame operations to explicitly deserialize the values."
    ),
    "enable.auto.commit": " hint='the source commits no offsets'",
    "interceptor.classes": " hint='the source has no interceptors'",
    # Spark hides an option only if its name or value contains a word such as "password". These do
    # not, so plans would show a private key.
    "ssl.keystore.key": _NAME_A_FILE,
    "ssl.key.pem": _NAME_A_FILE,
}
# Spark hides the other secret settings, because their names contain "secret", "token" or "access
# key".
_SHOWN_STORAGE_SETTING = "azure.account.key"


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """The options as texts, as `DataFrameReader.options` converts them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def parse_options(texts: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a batch query. A warning names those that only streams use."""
    options = parse_common_options(texts)
    _check_batch(options)
    given = {name.lower() for name in texts}
    for ignored in _STREAM_ONLY:
        if ignored.lower() in given:
            _logger.warning("%s option ignored in batch queries", ignored)
    return options


def parse_stream_options(texts: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a streaming query."""
    options = parse_common_options(texts)
    _check_stream(options, texts)
    return options


def parse_common_options(texts: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a query before it is known to be a batch or a stream."""
    declared = {
        name.lower(): (field_name, option)
        for name, (field_name, option) in config_keys(SourceOptions).items()
    }
    key_files = _key_pair_files(texts)
    fields: dict[str, object] = {}
    kafka: dict[str, str] = {}
    storage: dict[str, str] = {}
    of_manager: dict[str, str] = {}
    for name, text in texts.items():
        lowered = name.lower()
        if lowered in declared:
            field_name, option = declared[lowered]
            fields[field_name] = _parse_value(option, text)
        elif lowered.startswith(KAFKA_PREFIX):
            kafka[lowered.removeprefix(KAFKA_PREFIX)] = text
        elif lowered.startswith(STORAGE_MANAGER_PREFIX):
            of_manager[lowered.removeprefix(STORAGE_MANAGER_PREFIX)] = text
        elif lowered in STORAGE_SETTINGS:
            storage[lowered] = text
        elif lowered in key_files:
            storage[key_files[lowered]] = text
        else:
            raise _unknown_option(name)
    options = SourceOptions(
        **fields,  # type: ignore[arg-type]
        kafka_properties=kafka,
        storage_settings=storage,
        storage_manager_settings=of_manager,
    )
    _check_strategy(options, texts)
    _check_kafka_properties(options)
    _check_storage_settings(options)
    _check_trigger_limits(options)
    _check_sources(options)
    return options


def _parse_value(option: ConfigKey, text: str) -> object:
    try:
        return option.parse(text)
    except ConfigError as error:
        words = _REFUSED_VALUES.get(option.name)
        if words is None:
            raise
        raise ConfigError(f"{words.format(text)}: {error}") from error


def _key_pair_files(texts: Mapping[str, str]) -> dict[str, str]:
    """The names of storage settings that contain the id of a key pair, by their lower-case form.

    Spark passes option names in lower case, but not values. So the ids are taken from the value of
    the option that lists them.
    """
    ids = next((text for name, text in texts.items() if name.lower() == KEY_PAIRS), "")
    return {name.lower(): name for key_id in LIST.parse(ids) for name in key_pair_file_keys(key_id)}


def _unknown_option(name: str) -> UnknownConfigError:
    names = {names.lower(): names for names in (*source_option_keys(), *STORAGE_SETTINGS)}
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    hint = f" nearest={names[nearest[0]]}" if nearest else ""
    return UnknownConfigError(f"unknown option option={name}{hint}")


def _check_strategy(options: SourceOptions, texts: Mapping[str, str]) -> None:
    given = {name.lower(): text for name, text in texts.items()}
    specified = [name for name in _STRATEGIES if name in given]
    if len(specified) != 1:
        problem = "Only one of" if specified else "One of"
        must = "can" if specified else "must"
        raise ConfigError(
            f"{problem} the following options {must} be specified for Kafka source:"
            f" {', '.join(_STRATEGIES)}. See the docs for more details."
            f" specified={','.join(specified) or 'none'}"
        )
    text = given[specified[0]]
    match specified[0]:
        case "subscribe" if not options.subscribe:
            raise ConfigError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        case "subscribepattern":
            _check_pattern(text)
        case "assign" if not text.strip().startswith("{"):
            raise ConfigError(
                f"No topicpartitions to assign as specified value for option 'assign' is '{text}'"
            )
    options.assigned  # noqa: B018  parses, and raises for a text that is not such


def _check_pattern(pattern: str) -> None:
    if not pattern.strip():
        raise ConfigError(
            "Pattern to subscribe is empty as specified value for option 'subscribePattern' is"
            f" '{pattern}'"
        )
    topic_pattern(pattern.strip())


def _check_kafka_properties(options: SourceOptions) -> None:
    for name, why in _FORBIDDEN_KAFKA_PROPERTIES.items():
        if name in options.kafka_properties:
            raise ConfigError(f"Kafka option '{name}' is not supported{why}")
    isolation = options.kafka_properties.get(ISOLATION_PROPERTY, options.isolation)
    if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ConfigError(
            f"no such isolation level option=kafka.{ISOLATION_PROPERTY} value={isolation}"
            f" expected_one_of={READ_UNCOMMITTED},{READ_COMMITTED}"
        )
    if isolation != options.isolation:
        raise ConfigError(
            f"two isolation levels are given option=isolationLevel value={options.isolation}"
            f" option=kafka.{ISOLATION_PROPERTY} value={isolation} hint='set one of them'"
        )


def _check_storage_settings(options: SourceOptions) -> None:
    if _SHOWN_STORAGE_SETTING in options.storage_settings:
        raise ConfigError(
            f"option '{_SHOWN_STORAGE_SETTING}' is not supported{_SHOWN_IN_PLANS}"
            " hint='set azure.sas.token, or AZURE_STORAGE_ACCOUNT_KEY where driver and executors"
            " run'"
        )


def _check_storage_manager(options: SourceOptions, class_name: str) -> None:
    of_table = options.metadata_table is not None
    refused = {
        "path": options.path,
        "layout": options.layout,
        **({} if of_table else options.storage_settings),
    }
    if given := sorted(name for name, value in refused.items() if value):
        raise ConfigError(
            "options of the built-in storage manager do not go with one of your own"
            f" options={','.join(given)} option={STORAGE_MANAGER_KEY} value={class_name}"
            f" hint='its settings begin with {STORAGE_MANAGER_PREFIX}'"
        )


def _check_sources(options: SourceOptions) -> None:
    if options.storage_manager is not None:
        _check_storage_manager(options, options.storage_manager)
    elif options.storage_manager_settings:
        raise ConfigError(
            "settings of a storage manager of your own are given without its class"
            f" options={STORAGE_MANAGER_PREFIX}{min(options.storage_manager_settings)}"
            f" hint='set {STORAGE_MANAGER_KEY}, or leave {STORAGE_MANAGER_PREFIX} out'"
        )
    elif not options.path:
        raise ConfigError(
            "the path of the tier is missing option=path hint='s3://bucket/prefix, file:///folder"
            " or a folder'"
        )
    if options.metadata == "topic" and not options.has_brokers:
        raise ConfigError(
            "the metadata topic cannot be read without brokers option=metadata value=topic"
            " hint='set kafka.bootstrap.servers, or metadata=bucket'"
        )
    if (options.metadata == "table") != (options.metadata_table is not None):
        raise ConfigError(
            "a projection is read with both options metadata=table and metadataTable"
            f" metadata={options.metadata} metadataTable={options.metadata_table}"
        )
    if options.include_tail and not options.has_brokers:
        raise ConfigError(
            "the tail cannot be read without brokers option=includeTail value=true"
            " hint='set kafka.bootstrap.servers'"
        )


def _check_batch(options: SourceOptions) -> None:
    starting, ending = options.starting_limit, options.ending_limit
    if isinstance(starting, LatestOffsets):
        raise ConfigError(
            "starting offset can't be latest for batch queries on Kafka option=startingOffsets"
        )
    if isinstance(ending, EarliestOffsets):
        raise ConfigError(
            "ending offset can't be earliest for batch queries on Kafka option=endingOffsets"
        )
    if isinstance(starting, SpecificOffsets):
        _refuse_offset(starting, LATEST, "startingOffsets for {} can't be latest")
        _refuse_unknown_symbols(starting, "startingOffsets")
    if isinstance(ending, SpecificOffsets):
        _refuse_offset(ending, EARLIEST, "ending offset for {} can't be earliest")
        _refuse_unknown_symbols(ending, "endingOffsets")
    match starting, ending:
        case SpecificOffsets(starts), SpecificOffsets(ends):
            check_order(starts, ends, "specified start offset")
        case SpecificTimestamps(starts), SpecificTimestamps(ends):
            check_order(starts, ends, "specified start timestamp")


def _check_stream(options: SourceOptions, texts: Mapping[str, str]) -> None:
    given = {name.lower() for name in texts}
    for refused, why in _BATCH_ONLY.items():
        if refused.lower() in given:
            raise ConfigError(f"{why} option={refused} hint='stop the query, or read a batch'")
    starting = options.stream_starting_limit
    if isinstance(starting, SpecificOffsets):
        _refuse_unknown_symbols(starting, "startingOffsets")


def _check_trigger_limits(options: SourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"The value of minOffsetPerTrigger({least}) is higher than the"
            f" maxOffsetsPerTrigger({most})."
        )


def _refuse_offset(limit: SpecificOffsets, refused: int, words: str) -> None:
    for partition, offset in limit.offsets.items():
        if offset == refused:
            raise ConfigError(f"{words.format(partition)} for batch queries on Kafka")


def _refuse_unknown_symbols(limit: SpecificOffsets, option: str) -> None:
    """Raise ConfigError for an offset below -2, which has no meaning."""
    for partition, offset in limit.offsets.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"an offset is negative and neither -2, earliest, nor -1, latest option={option}"
                f" partition={partition} offset={offset}"
            )
