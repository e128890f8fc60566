"""The Fetch codec of a follower against kio's encoding of the same message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.protocol import fetch, follower_fetch
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.errors import ProtocolError
from tests.property.protocol.test_produce_fetch import MS, diverging_epoch, kio_bytes, leader

VERSIONS = range(13, 19)


def as_a_follower_sends_it(entity, version):
    """The entity as a follower sends it: without the fields of quorum replicas, and with a replica
    id."""
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                type(p)(
                    partition=p.partition,
                    current_leader_epoch=p.current_leader_epoch,
                    fetch_offset=p.fetch_offset,
                    last_fetched_epoch=p.last_fetched_epoch,
                    log_start_offset=p.log_start_offset,
                    partition_max_bytes=p.partition_max_bytes,
                )
                for p in topic.partitions
            ),
        )
        for topic in entity.topics
    )
    if version >= 15:
        replica = {"replica_state": replace(entity.replica_state, replica_id=3)}
    else:
        replica = {"replica_id": 3}
    return replace(entity, topics=topics, cluster_id=None, **replica)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_request_is_what_kio_writes(version, entities, data):
    drawn = data.draw(entities(request_class(ApiKey.FETCH, version)))
    entity = as_a_follower_sends_it(drawn, version)
    request = fetch.FetchRequest(
        3,
        entity.max_wait // MS,
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level,
        entity.session_id,
        entity.session_epoch,
        [
            fetch.FetchTopic(
                None,
                topic.topic_id,
                [
                    fetch.FetchPartition(
                        p.partition,
                        p.fetch_offset,
                        p.partition_max_bytes,
                        p.current_leader_epoch,
                        p.last_fetched_epoch,
                        p.log_start_offset,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
        [
            fetch.ForgottenTopic(None, topic.topic_id, list(topic.partitions))
            for topic in entity.forgotten_topics_data
        ],
        entity.rack_id,
    )
    epoch = entity.replica_state.replica_epoch if version >= 15 else -1
    out = bytearray()
    follower_fetch.request_writer(version)(request, epoch, out)
    assert bytes(out) == kio_bytes(entity)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_response_reads_what_kio_wrote_and_copies_no_records(version, entities, data):
    entity = data.draw(entities(response_class(ApiKey.FETCH, version)))
    encoded = kio_bytes(entity)
    response, position = follower_fetch.response_reader(version)(memoryview(encoded), 0)
    assert position == len(encoded)
    assert response == fetch.FetchResponse(
        [
            fetch.FetchTopicResponse(
                None,
                topic.topic_id,
                [
                    fetch.FetchPartitionResponse(
                        p.partition_index,
                        p.error_code,
                        p.high_watermark,
                        p.last_stable_offset,
                        p.log_start_offset,
                        None,
                        (p.records,) if p.records else (),
                        p.preferred_read_replica,
                        diverging_epoch(p),
                        leader(p),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in entity.responses
        ],
        entity.error_code,
        entity.session_id,
        entity.throttle_time // MS,
    )
    for topic in response.topics:
        for partition in topic.partitions:
            assert all(records.obj is encoded for records in partition.records)


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_response_gives_value_or_protocol_error(entities, data):
    version = data.draw(st.sampled_from(VERSIONS))
    encoded = bytearray(kio_bytes(data.draw(entities(response_class(ApiKey.FETCH, version)))))
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        _, position = follower_fetch.response_reader(version)(memoryview(encoded)[:cut], 0)
    except ProtocolError:
        return
    assert position <= cut
