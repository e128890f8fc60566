"""Gets schemas from a registry with Confluent's API, with confluent-kafka's client.

The executors ask the registry, each process once for each schema, because only the records have the
ids of their schemas.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from isotherm.errors import ConfigError, SchemaRegistryError
from isotherm.printable import without_passwords

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_CLIENTS_MAX = 16
_NOT_FOUND = 404
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
REFERENCES_MAX = 1000
"""The most schemas that one schema may refer to, directly or through others."""


class UnknownSchemaError(ValueError):
    """The registry has no such schema."""


@dataclass(frozen=True)
class RegistrySettings:
    """The address of a registry. `settings` are those of confluent-kafka's SchemaRegistryClient,
    such as basic.auth.user.info and ssl.ca.location. They may be secret."""

    url: str
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"RegistrySettings({without_passwords(self.url)!r})"


class RegisteredSchema(NamedTuple):
    """A schema. `kind` is AVRO, JSON or PROTOBUF. `references` has the names and texts of the
    schemas that it refers to. Each comes after its own references."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...]


def registry_settings(
    url: str | None, settings: Mapping[str, str] | None
) -> RegistrySettings | None:
    """The settings of a registry, or None without a URL.

    Raises ConfigError for settings without a URL.
    """
    if url is None:
        if settings:
            raise ConfigError(
                f"settings of a schema registry need its URL settings={','.join(sorted(settings))}"
                " hint='--registry URL'"
            )
        return None
    return RegistrySettings(url, tuple(sorted((settings or {}).items())))


def latest_schema(settings: RegistrySettings, subject: str) -> tuple[int, RegisteredSchema]:
    """The newest schema of a subject, and its id.

    Raises what `registered_schema` raises, and SchemaRegistryError for an answer without the id.
    """
    client = _client(settings)
    with _failures(settings, "the registry has no such subject"):
        latest = client.get_latest_version(subject)
        if latest.schema_id is None:
            raise ValueError(f"the answer has no schema id subject={subject}")
        references = _references(client, latest.schema.references or ())
    return latest.schema_id, _registered(latest.schema, references)


def registered_schema(settings: RegistrySettings, schema_id: int | uuid.UUID) -> RegisteredSchema:
    """The schema of this id, or of this GUID.

    Raises UnknownSchemaError if the registry does not have it, ConfigError for wrong settings, and
    SchemaRegistryError if the registry does not answer or refuses, so that it may have the schema.
    """
    client = _client(settings)
    with _failures(settings, "the registry has no such schema"):
        if isinstance(schema_id, int):
            schema = client.get_schema(schema_id)
        else:
            schema = client.get_schema_by_guid(str(schema_id))
        references = _references(client, schema.references or ())
    return _registered(schema, references)


@contextlib.contextmanager
def _failures(settings: RegistrySettings, missing: str) -> Iterator[None]:
    """Turn failures of the client into ours; `missing` says what a registry without it lacks."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError as RefusedError

    try:
        yield
    except RefusedError as error:
        if error.http_status_code == _NOT_FOUND:
            raise UnknownSchemaError(missing) from error
        raise _failed(settings, error) from error
    # The client also raises errors of its HTTP library, which are not part of its interface.
    except Exception as error:
        raise _failed(settings, error) from error


def _registered(schema: Any, references: Mapping[str, str]) -> RegisteredSchema:
    return RegisteredSchema(
        schema.schema_type or "AVRO", schema.schema_str or "", tuple(references.items())
    )


def check_registry(settings: RegistrySettings) -> None:
    """Raise ConfigError or SchemaRegistryError unless the registry answers."""
    with _new_client(settings) as client:
        try:
            client.get_subjects()
        except Exception as error:
            raise _failed(settings, error) from error


def _references(client: SchemaRegistryClient, listed: Iterable[Any]) -> dict[str, str]:
    """The names and texts of all schemas that are referred to.

    Each comes after its own references.
    """
    texts: dict[str, str] = {}
    # Those whose references are being followed, too, so that the bound holds for their depth.
    begun: dict[str, str] = {}
    # Without recursion, whose limit is about REFERENCES_MAX.
    following: list[tuple[str | None, Iterator[Any]]] = [(None, iter(listed))]
    while following:
        name, references = following[-1]
        reference = next(references, None)
        if reference is None:
            following.pop()
            if name is not None:
                texts[name] = begun[name]
        elif reference.name in texts:
            continue
        elif reference.name in begun:
            raise ValueError(f"references of schemas form a cycle name={reference.name}")
        elif len(begun) >= REFERENCES_MAX:
            raise ValueError(f"a schema refers to more than {REFERENCES_MAX} others")
        else:
            schema = client.get_version(reference.subject, reference.version).schema
            begun[reference.name] = schema.schema_str or ""
            following.append((reference.name, iter(schema.references or ())))
    return texts


def _failed(settings: RegistrySettings, error: Exception) -> SchemaRegistryError:
    return SchemaRegistryError(
        f"the schema registry fails registry={settings.url} reason={str(error)!r}"
    )


@functools.lru_cache(_CLIENTS_MAX)
def _client(settings: RegistrySettings) -> SchemaRegistryClient:
    return _new_client(settings)


def _new_client(settings: RegistrySettings) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    try:
        given = {
            name: float(text) if name in _NUMBERS else text for name, text in settings.settings
        }
        return SchemaRegistryClient({"url": settings.url, **given})
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(
            f"the schema registry cannot be used registry={settings.url} reason={str(error)!r}"
        ) from error
