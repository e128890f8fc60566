"""What is left of erased records where no reader gets them: old objects, local copies of brokers,
and uploads that no broker has finished."""

from __future__ import annotations

from dataclasses import replace

from isotherm.remote.erasure.certificate import (
    ErasedSegment,
    ErasureCertificate,
    covering,
)
from isotherm.remote.rewriting.run_recovery import place_of_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.inventory import list_segment_objects, open_for_reading
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX
from isotherm.spark.jobs.erase_plan import ErasurePlan
from isotherm.spark.jobs.rewrite_run import RewriteSettings, unfinished_runs
from isotherm.spark.options import SourceOptions
from isotherm.spark.tier.open_log import open_brokers
from isotherm.types import TimestampMs, TopicIdPartition, uuid_from_text, uuid_to_text


def unread_segments(
    settings: RewriteSettings, certificate: ErasureCertificate, plan: ErasurePlan
) -> dict[TopicIdPartition, list[str]]:
    """The segments that have a log in the bucket, begin below the end of the run, and are visible
    to no reader. A broker that lost its leadership or its life may have left an upload. Old
    segments of the run are left out: their end is awaited.
    """
    ends = covering(certificate.partitions)
    read = set(plan.visible)
    for erased in certificate.partitions:
        read.update(uuid_from_text(segment.old) for segment in erased.segments)
    topics = {partition.topic for partition in ends}
    unread: dict[TopicIdPartition, list[str]] = {}
    client, layout = open_for_reading(settings.written), settings.written.create_layout()
    for listed in list_segment_objects(client, layout, topics.__contains__):
        partition = listed.segment_id.topic_id_partition
        is_below = listed.start_offset < ends.get(partition, 0)
        if is_below and LOG_SUFFIX in listed.objects and listed.segment_id.id not in read:
            unread.setdefault(partition, []).append(uuid_to_text(listed.segment_id.id))
    return unread


def see_old_objects(
    settings: RewriteSettings, certificate: ErasureCertificate, now_ms: TimestampMs
) -> ErasureCertificate:
    """Look for the objects of the old segments that were not seen to be gone, by HEAD requests. The
    old segments of a copy are the source's, and stay."""
    if not certificate.in_place:
        return certificate
    client, layout = open_for_reading(settings.written), settings.written.create_layout()

    def seen(partition: TopicIdPartition, segment: ErasedSegment) -> ErasedSegment:
        if segment.old_gone_ms is not None:
            return segment
        segment_id = RemoteLogSegmentId(partition, uuid_from_text(segment.old))
        keys = layout.object_keys(place_of_segment(segment_id, segment.start_offset))
        return segment if any(map(client.exists, keys)) else replace(segment, old_gone_ms=now_ms)

    partitions = tuple(
        replace(
            erased, segments=tuple(seen(erased.partition, segment) for segment in erased.segments)
        )
        for erased in certificate.partitions
    )
    return replace(certificate, partitions=partitions)


def old_objects_left(certificate: ErasureCertificate) -> int:
    """The old segments whose objects were not seen to be gone."""
    if not certificate.in_place:
        return 0
    return sum(
        segment.old_gone_ms is None
        for erased in certificate.partitions
        for segment in erased.segments
    )


def see_local_copies(
    options: SourceOptions, settings: RewriteSettings, certificate: ErasureCertificate
) -> ErasureCertificate:
    """Look whether every broker has dropped its local copies. The leader removes the journal of a
    published run only after that, so the replicas of a partition whose journal is gone have."""
    brokers = open_brokers(options)
    if not certificate.in_place or brokers is None:
        return certificate
    unfinished = {
        run.partition
        for run in unfinished_runs(settings, lambda _: True)
        if run.run == certificate.run
    }
    replicas = brokers.replicas({partition.partition.topic for partition in certificate.partitions})
    partitions = tuple(
        replace(partition, local_copies_gone=replicas.get(partition.partition, ()))
        if partition.segments and partition.partition not in unfinished
        else partition
        for partition in certificate.partitions
    )
    return replace(certificate, partitions=partitions)


def local_copies_left(certificate: ErasureCertificate) -> int:
    """The partitions of a run in place whose local copies were not seen to be gone."""
    if not certificate.in_place:
        return 0
    return sum(
        bool(partition.segments) and not partition.local_copies_gone
        for partition in certificate.partitions
    )
