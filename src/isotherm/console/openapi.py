"""The description of the API as an OpenAPI 3.1 document."""

from __future__ import annotations

from typing import Any

from isotherm import __version__
from isotherm.storage_view.tier_map import SpanKind

COLUMNS_MAX = 4000
PARTITIONS_MAX = 64
FOUND_MAX = 500
DOWNLOAD_RECORDS_MAX = 10_000
NUMBER_MAX = 2**63 - 1  # of offsets and times
RECORD_ORDERS = ("newest", "oldest")
RECORD_SOURCES = ("leader", "bucket")

Schema = dict[str, Any]

_INTEGER: Schema = {"type": "integer"}
_TEXT: Schema = {"type": "string"}
_LOOK: Schema = {
    "read_at_ms": {
        **_INTEGER,
        "description": "When the cluster was read, milliseconds since 1970.",
    },
    "error": {
        "type": ["string", "null"],
        "description": "Why the cluster does not answer now; the rest is of the last time it did.",
    },
}


def openapi_document() -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Isotherm console",
            "version": __version__,
            "description": "The bytes of a cluster's topics, by tier. Reads only. Offsets are"
            " inclusive at the start and exclusive at the end unless a name says otherwise; bytes"
            " are of .log files.",
        },
        "paths": {
            "/api/console": _get(
                "What holds while the console runs: its version, and the options of commands for"
                " its cluster."
            ),
            "/api/overview": _get("The cluster, its brokers and its topics."),
            "/api/answers": _get(
                "For each topic: the causes of its local size, its leftovers, and its future cost."
                " The groups that are behind, each with its cause."
            ),
            "/api/jobs": _get(
                "The last reports of jobs. With --allow-changes, a token to start one by POST."
            ),
            "/api/jobs/reports/{name}": _get("The findings of a job.", _path("name")),
            "/api/topics/{topic}": _get(
                "Sums of a topic, its traffic if metrics are given, and its partitions.",
                _path("topic"),
            ),
            "/api/topics/{topic}/map": {
                **_get(
                    "The tier map: the tiers of all offsets.",
                    _path("topic"),
                    _query("columns", "The most cells of a lane.", 1, COLUMNS_MAX),
                    _query("partition", "The first partition."),
                    _query("partitions", "The number of partitions.", 1, PARTITIONS_MAX),
                    _query("first", "The first offset; by default that of the log."),
                    _query("end", "The offset after the last one; by default that of the log."),
                    _query(
                        "at",
                        "The time of the map, milliseconds since 1970. Events limit it; see"
                        " history.",
                    ),
                    content={"$ref": "#/components/schemas/Maps"},
                )
            },
            "/api/topics/{topic}/configuration": _get(
                "The settings of a topic, what differs from the default first. settings is null if"
                " the brokers do not show them; settings_error says why.",
                _path("topic"),
            ),
            "/api/topics/{topic}/groups": _get(
                "The groups that have offsets of a topic, with their lag in it.",
                _path("topic"),
            ),
            "/api/topics/{topic}/history": _get(
                "The name of the topic with the events of segments, and the times that they cover.",
                _path("topic"),
                _query("partition", "The first partition."),
                _query("partitions", "The number of partitions.", 1, PARTITIONS_MAX),
            ),
            "/api/topics/{topic}/records": _get(
                "One bounded step of a search over several partitions, from the newest record or"
                " the oldest on: the records that match, and the cost to fetch them. Continue with"
                " the field left of each partition as ranges, until all are null. Control records"
                " are left out.",
                _path("topic"),
                *_search_parameters(),
                _query("limit", "The most records to return of a partition.", 1, FOUND_MAX),
            ),
            "/api/topics/{topic}/tail": _get(
                "Server-sent events: records with what is new in the partitions, end with the"
                " reason why no more will come. A range's first offset is where it begins.",
                _path("topic"),
                *_search_parameters(),
            ),
            "/api/topics/{topic}/download": _get(
                "The records that a search finds as JSON lines, partition by partition. The last"
                " line says whether they are all.",
                _path("topic"),
                *_search_parameters(),
                _query("records", "The most records.", 1, DOWNLOAD_RECORDS_MAX),
            ),
            "/api/tables": _get(
                "The tables of topics in --warehouse or --catalog. tables is null without"
                " these options; tables_error says why they cannot be read now."
            ),
            "/api/tables/{table}": _get(
                "A table with its partitions, and the reasons of its newest dead letters, read from"
                " at most 8 data files; newest_dead_letters is null if there are none, or"
                " dead_letters_error says why they cannot be read.",
                _path("table"),
            ),
            "/api/brokers": _get(
                "The brokers with their log directories, what they lead, and the release of Apache"
                " Kafka that they are like."
            ),
            "/api/brokers/{broker}": _get(
                "A broker, its settings, and the errors of the last hour that metrics of its host"
                " count; errors is null without metrics.",
                _path("broker", _INTEGER),
            ),
            "/api/groups": _get("The lag of each group, and the tier that it reads from."),
            "/api/groups/{group}": _get(
                "The same for each partition and topic of a group, and its first 500 members with"
                " their partitions. members is null if the coordinator does not describe them;"
                " members_error says why. deliveries has for a share group what is in flight, and"
                " what became of its records; unknown counts are null, and error says why.",
                _path("group"),
            ),
            "/api/topics/{topic}/partitions/{partition}/segments/{id}": _get(
                "The metadata of one remote segment, and the keys of its objects.",
                _path("topic"),
                _path("partition", _INTEGER),
                _path("id"),
            ),
        },
        "components": {"schemas": {"Maps": _maps(), "Cell": _cell(), "Problem": _problem()}},
    }


def _search_parameters() -> tuple[Schema, ...]:
    return (
        _query(
            "ranges",
            "The partitions, separated by commas: PARTITION, or what is left of it as"
            " PARTITION:FIRST:END. By default all, at most 64.",
            schema=_TEXT,
        ),
        _query("order", "By default newest.", schema={"enum": list(RECORD_ORDERS)}),
        _query("first", "The first offset of each partition."),
        _query("end", "The offset after the last one of each partition."),
        _query("since", "The oldest time, milliseconds since 1970."),
        _query("until", "The newest time, milliseconds since 1970.", most=NUMBER_MAX - 1),
        _query("key", "Text that the key contains.", schema=_TEXT),
        _query("value", "Text that the value contains.", schema=_TEXT),
        _query("header", "The name of a header.", schema=_TEXT),
        _query("header_value", "Text that a header's value contains.", schema=_TEXT),
        _query("where", "A condition on JSON, like value.user.id = 42.", schema=_TEXT),
        _query(
            "from",
            "bucket: records of remote segments are read from the bucket, without the brokers.",
            schema={"enum": list(RECORD_SOURCES)},
        ),
    )


def _get(summary: str, *parameters: Schema, content: Schema | None = None) -> Schema:
    body = content or {"type": "object", "properties": _LOOK}
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "get": {
            "summary": summary,
            "parameters": list(parameters),
            "responses": {
                "200": {"description": summary, "content": {"application/json": {"schema": body}}},
                "400": {"description": "A parameter is wrong; error says why.", "content": problem},
                "404": {"description": "Not found: error says what.", "content": problem},
                "503": {"description": "The cluster has never answered.", "content": problem},
            },
        }
    }


def _path(name: str, schema: Schema = _TEXT) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(
    name: str,
    description: str,
    least: int = 0,
    most: int = NUMBER_MAX,
    schema: Schema | None = None,
) -> Schema:
    number = {**_INTEGER, "minimum": least, "maximum": most}
    return {"name": name, "in": "query", "description": description, "schema": schema or number}


def _maps() -> Schema:
    lane = {"type": "array", "items": {"$ref": "#/components/schemas/Cell"}}
    numbers = (
        "partition", "leader", "leader_epoch", "log_first", "log_end", "first", "end",
        "log_start_offset", "local_log_start_offset", "last_tiered_offset", "last_stable_offset",
        "high_watermark",
    )  # fmt: skip
    one = {
        **dict.fromkeys(numbers, _INTEGER),
        "counts": {"type": "object", "additionalProperties": _INTEGER},
        "leader_epochs": {
            "type": "array",
            "items": {"type": "array", "items": _INTEGER},
            "description": "Pairs of an epoch and its first offset, of remote segments; the"
            " newest.",
        },
        "lanes": {"type": "array", "items": lane},
    }
    return {
        "type": "object",
        "properties": {
            **_LOOK,
            "topic": _TEXT,
            "partitions": _INTEGER,
            "at_ms": {"type": ["integer", "null"]},
            "maps": {"type": "array", "items": {"type": "object", "properties": one}},
        },
    }


def _cell() -> Schema:
    kinds = [kind.name.lower() for kind in SpanKind]
    return {
        "type": "object",
        "properties": {
            "start": _INTEGER,
            "end": _INTEGER,
            "kinds": {"type": "array", "items": {"enum": kinds}},
            "segments": {**_INTEGER, "description": "Segments that begin in the cell."},
            "bytes": _INTEGER,
            "id": {**_TEXT, "description": "Of the segment, if it is one."},
        },
    }


def _problem() -> Schema:
    return {"type": "object", "properties": {"error": _TEXT}}
