"""References between the schemas of a registry: their order, their bound, cycles; and the newest
schema of a subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.errors import SchemaRegistryError
from isotherm.spark.tables import schema_registry
from isotherm.spark.tables.schema_registry import (
    REFERENCES_MAX,
    RegisteredSchema,
    RegistrySettings,
    latest_schema,
    registered_schema,
)

Register = Callable[[Mapping[str, list[str]]], RegisteredSchema]


class Registry:
    """Stands in for confluent-kafka's client: the schemas that each one refers to, by name."""

    def __init__(self, references: Mapping[str, list[str]]) -> None:
        self._references = references

    def get_schema(self, _: int) -> Any:
        return self._schema("first")

    def get_version(self, subject: str, _: int) -> Any:
        return SimpleNamespace(schema=self._schema(subject))

    def get_latest_version(self, subject: str) -> Any:
        """`subject` is the schema's id, or empty for an answer without one."""
        schema_id = int(subject) if subject else None
        return SimpleNamespace(schema_id=schema_id, schema=self._schema(subject))

    def _schema(self, name: str) -> Any:
        names = self._references.get(name, [])
        references = [SimpleNamespace(name=each, subject=each, version=1) for each in names]
        return SimpleNamespace(
            schema_type="AVRO", schema_str=f"text of {name}", references=references
        )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Register:
    def read_first(references: Mapping[str, list[str]]) -> RegisteredSchema:
        monkeypatch.setattr(schema_registry, "_client", lambda _: Registry(references))
        return registered_schema(RegistrySettings("http://registry"), 1)

    return read_first


def test_each_reference_comes_once_and_after_its_own(read: Register) -> None:
    schema = read({"first": ["a", "b"], "a": ["c"], "b": ["c", "d"], "c": ["d"]})
    assert [name for name, _ in schema.references] == ["d", "c", "a", "b"]
    assert schema.references[0] == ("d", "text of d")


@pytest.mark.parametrize("cycle", [{"a": ["a"]}, {"a": ["b"], "b": ["c"], "c": ["a"]}])
def test_cycle_is_named(read: Register, cycle: dict[str, list[str]]) -> None:
    with pytest.raises(SchemaRegistryError, match="cycle name=a"):
        read({"first": ["a"], **cycle})


def test_chain_may_be_as_long_as_its_bound(read: Register) -> None:
    chain = {str(number): [str(number + 1)] for number in range(1, REFERENCES_MAX)}
    schema = read({"first": ["1"], **chain})
    assert [name for name, _ in schema.references] == [
        str(number) for number in range(REFERENCES_MAX, 0, -1)
    ]
    with pytest.raises(SchemaRegistryError, match=f"more than {REFERENCES_MAX} others"):
        read({"first": ["1"], **chain, str(REFERENCES_MAX): ["last"]})


def test_newest_schema_comes_with_its_id_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_client", lambda _: Registry({"7": ["a"]}))
    settings = RegistrySettings("http://registry")
    expected = RegisteredSchema("AVRO", "text of 7", (("a", "text of a"),))
    assert latest_schema(settings, "7") == (7, expected)
    with pytest.raises(SchemaRegistryError, match="no schema id subject="):
        latest_schema(settings, "")
