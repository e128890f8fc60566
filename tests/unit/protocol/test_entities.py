"""Entities of any version, made from fields of the newest one. Kafka's message classes work like
this too: one set of names for all versions."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.metadata.v0.request import MetadataRequest as OldRequest
from kio.schema.metadata.v12.request import MetadataRequest as NewRequest

from isotherm.protocol.entities import entity_of

FIELDS = {
    "topics": [{"topic_id": None, "name": "orders"}],
    "allow_auto_topic_creation": True,
    "include_topic_authorized_operations": False,
    # Only versions 8 to 10 have this field.
    "include_cluster_authorized_operations": False,
}


def test_fields_of_other_versions_are_left_out() -> None:
    (topic,) = entity_of(OldRequest, FIELDS).topics
    assert (topic.name, hasattr(topic, "topic_id")) == ("orders", False)
    newest = entity_of(NewRequest, FIELDS)
    assert newest.topics[0].topic_id is None
    assert newest.allow_auto_topic_creation is True
    assert not hasattr(newest, "include_cluster_authorized_operations")


@pytest.mark.parametrize("entity_type", [OldRequest, NewRequest])
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"allow_auto_topic_creations": True},
            "field=allow_auto_topic_creations .*MetadataRequest$",
        ),
        ({"topics": [{"topic_id": None, "title": "x"}]}, "field=title .*MetadataRequestTopic$"),
    ],
)
def test_field_that_no_version_has_is_a_mistake(
    entity_type: type[Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(TypeError, match=named):
        entity_of(entity_type, FIELDS | changes)
