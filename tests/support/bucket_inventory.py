"""Every segment of a bucket, whole or not, by listing it and reading the manifests one by one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import (
    DamagedSegment,
    SegmentObjects,
    list_segment_objects,
    read_segment,
)
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.types import Offset


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every segment of the bucket is in one of the three lists.

    segments      whole: state COPY_SEGMENT_FINISHED, ordered by topic, partition, start offset
    uncommitted   without the commit mark: a copy in progress, or the rest of a failed copy or of a
                  deletion
    damaged       with a commit mark that cannot be read, contradicts the listing, or names another
                  segment
    """

    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    uncommitted: list[SegmentObjects] = field(default_factory=list)
    damaged: list[DamagedSegment] = field(default_factory=list)


def read_inventory(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool] = lambda topic: True,
) -> Inventory:
    """List the wanted topics and read the manifests of their segments.

    Damage is reported in the result; no segment is left out for it. The layout must keep manifests.
    """
    assert layout.commit_suffix is not None
    inventory = Inventory()
    committed: list[SegmentObjects] = []
    for objects in list_segment_objects(client, layout, wants_topic):
        is_committed = layout.commit_suffix in objects.objects
        (committed if is_committed else inventory.uncommitted).append(objects)
    for objects in committed:
        outcome = read_segment(client, layout, objects)
        if isinstance(outcome, DamagedSegment):
            inventory.damaged.append(outcome)
        elif outcome is not None:
            inventory.segments.append(outcome)
    inventory.segments.sort(key=_place_in_topic)
    return inventory


def _place_in_topic(segment: RemoteLogSegmentMetadata) -> tuple[str, uuid.UUID, int, Offset]:
    partition = segment.topic_id_partition
    return partition.topic, partition.topic_id, partition.partition, segment.start_offset
