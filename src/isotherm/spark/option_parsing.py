"""From the options' texts to `SourceOptions`, checked together.

ConfigError names the option and what to do. Nothing is read or connected to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from isotherm.config.definition import LIST, config_keys
from isotherm.errors import ConfigError, UnknownConfigError
from isotherm.remote.storage.settings import key_pair_file_keys
from isotherm.spark.offsets import EARLIEST, LATEST, EarliestOffsets, LatestOffsets, SpecificOffsets
from isotherm.spark.options import (
    ISOLATION_PROPERTY,
    KAFKA_PREFIX,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    STORAGE_SETTINGS,
    SourceOptions,
    source_option_keys,
)

_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_KEY_PAIRS = "encryption.key.pairs"
_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_FORBIDDEN_KAFKA_PROPERTIES = {
    "auto.offset.reset": "set startingOffsets",
    "key.deserializer": "keys are bytes: decode them in the query",
    "value.deserializer": "values are bytes: decode them in the query",
    "enable.auto.commit": "the source commits no offsets",
    "interceptor.classes": "the source has no interceptors",
}


def parse_options(texts: Mapping[str, str]) -> SourceOptions:
    """Options of a batch query."""
    options = parse_common_options(texts)
    _check_batch(options)
    return options


def parse_stream_options(texts: Mapping[str, str]) -> SourceOptions:
    """Options of a streaming query."""
    options = parse_common_options(texts)
    _check_stream(options, texts)
    return options


def parse_common_options(texts: Mapping[str, str]) -> SourceOptions:
    """Options of a query of which it is not known yet which kind it is."""
    declared = {
        name.lower(): (field_name, option)
        for name, (field_name, option) in config_keys(SourceOptions).items()
    }
    key_files = _key_pair_files(texts)
    fields: dict[str, object] = {}
    kafka: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, text in texts.items():
        lowered = name.lower()
        if lowered in declared:
            field_name, option = declared[lowered]
            fields[field_name] = option.parse(text)
        elif lowered.startswith(KAFKA_PREFIX):
            kafka[lowered.removeprefix(KAFKA_PREFIX)] = text
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
    )
    _check_strategy(options, texts)
    _check_kafka_properties(options)
    _check_sources(options)
    return options


def _key_pair_files(texts: Mapping[str, str]) -> dict[str, str]:
    """Storage settings whose names hold the id of a key pair, by their lower-case form.

    Ids of key pairs keep their case only where they are values.
    """
    ids = next((text for name, text in texts.items() if name.lower() == _KEY_PAIRS), "")
    return {name.lower(): name for key_id in LIST.parse(ids) for name in key_pair_file_keys(key_id)}


def _unknown_option(name: str) -> UnknownConfigError:
    known = {known.lower(): known for known in (*source_option_keys(), *STORAGE_SETTINGS)}
    nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f" nearest={known[nearest[0]]}" if nearest else ""
    return UnknownConfigError(f"unknown option option={name}{hint}")


def _check_strategy(options: SourceOptions, texts: Mapping[str, str]) -> None:
    given = {name.lower() for name in texts}
    specified = [name for name in _STRATEGIES if name.lower() in given]
    if len(specified) != 1:
        raise ConfigError(
            f"exactly one option says which topics to read expected_one_of={','.join(_STRATEGIES)}"
            f" specified={','.join(specified) or 'none'}"
        )
    if specified == ["subscribe"] and not options.subscribe:
        raise ConfigError("no topic is named option=subscribe")
    if specified == ["subscribePattern"]:
        _check_pattern(options.subscribe_pattern or "")
    options.assigned  # noqa: B018  parses, and raises for a text that is not such


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise ConfigError("the pattern is empty option=subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"not a regular expression option=subscribePattern value={pattern!r}"
        ) from error


def _check_kafka_properties(options: SourceOptions) -> None:
    for name, reason in _FORBIDDEN_KAFKA_PROPERTIES.items():
        if name in options.kafka_properties:
            raise ConfigError(
                f"property of the client is not supported option=kafka.{name} hint={reason!r}"
            )
    isolation = options.kafka_properties.get(ISOLATION_PROPERTY, options.isolation)
    if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ConfigError(
            f"no such isolation level option=kafka.{ISOLATION_PROPERTY} value={isolation}"
            f" expected_one_of={READ_UNCOMMITTED},{READ_COMMITTED}"
        )
    if isolation != options.isolation:
        raise ConfigError(
            f"two isolation levels are asked for option=isolationLevel value={options.isolation}"
            f" option=kafka.{ISOLATION_PROPERTY} value={isolation} hint='set one of them'"
        )


def _check_sources(options: SourceOptions) -> None:
    if not options.path:
        raise ConfigError(
            "the tier's place is not given option=path"
            " hint='s3://bucket/prefix, file:///folder or a folder'"
        )
    if options.metadata == "topic" and not options.has_brokers:
        raise ConfigError(
            "the metadata topic cannot be read without brokers option=metadata value=topic"
            " hint='set kafka.bootstrap.servers, or metadata=bucket'"
        )
    if options.include_tail and not options.has_brokers:
        raise ConfigError(
            "the tail cannot be read without brokers option=includeTail value=true"
            " hint='set kafka.bootstrap.servers'"
        )


def _check_batch(options: SourceOptions) -> None:
    starting, ending = options.starting_limit, options.ending_limit
    if isinstance(starting, LatestOffsets):
        raise ConfigError("a batch query cannot start at the end option=startingOffsets")
    if isinstance(ending, EarliestOffsets):
        raise ConfigError("a batch query cannot end at the start option=endingOffsets")
    if isinstance(starting, SpecificOffsets):
        _refuse_offset(starting, LATEST, "startingOffsets")
    if isinstance(ending, SpecificOffsets):
        _refuse_offset(ending, EARLIEST, "endingOffsets")


def _check_stream(options: SourceOptions, texts: Mapping[str, str]) -> None:
    given = {name.lower(): name for name in texts}
    for refused in _BATCH_ONLY:
        if refused.lower() in given:
            raise ConfigError(
                f"a stream has no end option={refused} hint='stop the query, or read a batch'"
            )
    starting = options.stream_starting_limit
    if isinstance(starting, SpecificOffsets):
        below = [p for p, offset in starting.offsets.items() if offset < EARLIEST]
        if below:
            raise ConfigError(
                f"a stream cannot use this offset option=startingOffsets partition={below[0]}"
                f" offset={starting.offsets[below[0]]}"
            )
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError(
            "a batch cannot have fewer offsets than it waits for"
            f" option=minOffsetsPerTrigger value={least} option=maxOffsetsPerTrigger value={most}"
        )


def _refuse_offset(limit: SpecificOffsets, refused: int, option: str) -> None:
    for partition, offset in limit.offsets.items():
        if offset == refused or offset < EARLIEST:
            raise ConfigError(
                f"a batch query cannot use this offset option={option} partition={partition}"
                f" offset={offset}"
            )
