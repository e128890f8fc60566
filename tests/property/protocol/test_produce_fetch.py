"""The hand-written Produce and Fetch codecs against kio's encoding of the same message."""

from __future__ import annotations

import datetime
import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from isotherm.protocol import fetch, produce
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import MALFORMED
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import version_codec
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def kio_bytes(entity) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def name_and_id(topic, name_field="topic"):
    return getattr(topic, name_field, None), getattr(topic, "topic_id", None)


def endpoints(entity):
    return [
        NodeEndpoint(e.node_id, e.host, e.port, e.rack)
        for e in getattr(entity, "node_endpoints", ())
    ]


def leader(entity):
    current = getattr(entity, "current_leader", None)
    if current is None or current == type(current)():
        return None
    return LeaderIdAndEpoch(current.leader_id, current.leader_epoch)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_produce_request_reads_what_kio_wrote(version, entities, data):
    entity = data.draw(entities(request_class(ApiKey.PRODUCE, version)))
    encoded = kio_bytes(entity)

    request, position = produce.request_reader(version)(memoryview(encoded), 0)

    assert position == len(encoded)
    assert request == produce.ProduceRequest(
        entity.transactional_id,
        entity.acks,
        entity.timeout // MS,
        [
            produce.ProduceTopic(
                *name_and_id(topic, "name"),
                [produce.ProducePartition.of(p.index, p.records) for p in topic.partition_data],
            )
            for topic in entity.topic_data
        ],
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_produce_response_is_what_kio_writes(version, entities, data):
    entity = data.draw(entities(response_class(ApiKey.PRODUCE, version)))
    response = produce.ProduceResponse(
        [
            produce.ProduceTopicResponse(
                *name_and_id(topic, "name"),
                [
                    produce.ProducePartitionResponse(
                        partition=p.index,
                        error_code=p.error_code,
                        base_offset=p.base_offset,
                        log_append_time_ms=-1
                        if p.log_append_time is None
                        else (p.log_append_time - EPOCH) // MS,
                        log_start_offset=getattr(p, "log_start_offset", -1),
                        record_errors=[
                            produce.RecordFault(e.batch_index, e.batch_index_error_message)
                            for e in getattr(p, "record_errors", ())
                        ],
                        error_message=getattr(p, "error_message", None),
                        current_leader=leader(p),
                    )
                    for p in topic.partition_responses
                ],
            )
            for topic in entity.responses
        ],
        throttle_time_ms=entity.throttle_time // MS,
        node_endpoints=endpoints(entity),
    )
    out = bytearray()
    produce.response_writer(version)(response, out)
    assert bytes(out) == kio_bytes(entity)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_fetch_request_reads_what_kio_wrote(version, entities, data):
    entity = data.draw(entities(request_class(ApiKey.FETCH, version)))
    encoded = kio_bytes(entity)

    request, position = fetch.request_reader(version)(memoryview(encoded), 0)

    assert position == len(encoded)
    assert request == fetch.FetchRequest(
        entity.replica_state.replica_id if version >= 15 else entity.replica_id,
        entity.max_wait // MS,
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level,
        getattr(entity, "session_id", 0),
        getattr(entity, "session_epoch", -1),
        [
            fetch.FetchTopic(
                *name_and_id(topic),
                [
                    fetch.FetchPartition(
                        p.partition,
                        p.fetch_offset,
                        p.partition_max_bytes,
                        getattr(p, "current_leader_epoch", -1),
                        getattr(p, "last_fetched_epoch", -1),
                        getattr(p, "log_start_offset", -1),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
        [
            fetch.ForgottenTopic(*name_and_id(topic), list(topic.partitions))
            for topic in getattr(entity, "forgotten_topics_data", ())
        ],
        getattr(entity, "rack_id", ""),
        entity.replica_state.replica_epoch if version >= 15 else -1,
    )


def diverging_epoch(partition):
    diverging = getattr(partition, "diverging_epoch", None)
    if diverging is None or diverging == type(diverging)():
        return None
    return fetch.EpochEndOffset(diverging.epoch, diverging.end_offset)


def without_fields_of_quorum_replicas(entity):
    """The entity as the broker sends it. Only the controllers' quorum uses snapshot ids, and null
    records are sent as empty ones."""
    return replace(
        entity,
        responses=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(
                        p,
                        records=p.records or b"",
                        **(
                            {"snapshot_id": type(p.snapshot_id)()}
                            if hasattr(p, "snapshot_id")
                            else {}
                        ),
                    )
                    for p in topic.partitions
                ),
            )
            for topic in entity.responses
        ),
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_fetch_response_is_what_kio_writes_and_passes_records_through(version, entities, data):
    entity = without_fields_of_quorum_replicas(
        data.draw(entities(response_class(ApiKey.FETCH, version)))
    )
    response = fetch.FetchResponse(
        [
            fetch.FetchTopicResponse(
                *name_and_id(topic),
                [
                    fetch.FetchPartitionResponse(
                        p.partition_index,
                        p.error_code,
                        p.high_watermark,
                        p.last_stable_offset,
                        getattr(p, "log_start_offset", -1),
                        None
                        if p.aborted_transactions is None
                        else [(a.producer_id, a.first_offset) for a in p.aborted_transactions],
                        [memoryview(p.records)] if p.records else [],
                        getattr(p, "preferred_read_replica", -1),
                        diverging_epoch(p),
                        leader(p),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in entity.responses
        ],
        getattr(entity, "error_code", 0),
        getattr(entity, "session_id", 0),
        entity.throttle_time // MS,
        endpoints(entity),
    )
    buffers = fetch.response_writer(version)(response, bytearray())
    assert b"".join(buffers) == kio_bytes(entity)
    given_records = [r for t in response.topics for p in t.partitions for r in p.records]
    assert all(any(buffer is records for buffer in buffers) for records in given_records)


@pytest.mark.parametrize(
    ("reader", "api_key", "versions"),
    [
        pytest.param(produce.request_reader, ApiKey.PRODUCE, PRODUCE_VERSIONS, id="produce"),
        pytest.param(fetch.request_reader, ApiKey.FETCH, FETCH_VERSIONS, id="fetch"),
    ],
)
@settings(max_examples=100)
@given(data=st.data())
def test_request_given_damaged_bytes_gives_value_or_protocol_error(
    reader, api_key, versions, entities, data
):
    version = data.draw(st.sampled_from(versions))
    encoded = bytearray(kio_bytes(data.draw(entities(request_class(api_key, version)))))
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    body = memoryview(encoded)[:cut]
    try:
        _, position = reader(version)(body, 0)
    except (ProtocolError, *MALFORMED):
        with pytest.raises(ProtocolError):
            version_codec(api_key, version).read_request(body)
        return
    assert position <= cut
