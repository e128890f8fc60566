"""What does coding Produce and Fetch by hand save over the compiled codec, and over kio?

Run: python bench/bench_protocol_codec.py  (prints one JSON object; microseconds per message)
"""

from __future__ import annotations

import datetime
import io
import json
import timeit
import uuid
from collections.abc import Callable

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetch_request_schema
from kio.schema.fetch.v16 import response as fetch_response_schema
from kio.schema.produce.v10 import request as produce_schema
from kio.serial import entity_reader, entity_writer

from isotherm.protocol import fetch, produce
from isotherm.protocol.codec import decoder, encoder

PARTITIONS = 100
RECORDS = bytes(1_000_000)
TOPIC_ID = uuid.UUID(int=1)
NO_TIME = datetime.timedelta(0)


def kio_bytes(entity: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def microseconds(function: Callable[[], object], number: int) -> float:
    return round(min(timeit.repeat(function, number=number, repeat=5)) / number * 1e6, 2)


def produce_requests() -> dict[str, float]:
    entity = produce_schema.ProduceRequest(
        acks=-1,
        timeout=NO_TIME,
        topic_data=(
            produce_schema.TopicProduceData(
                name="t",
                partition_data=(produce_schema.PartitionProduceData(index=0, records=RECORDS),),
            ),
        ),
    )
    encoded = memoryview(kio_bytes(entity))
    compiled, kio = decoder(type(entity)), entity_reader(type(entity))
    read_produce = produce.request_reader(10)
    return {
        "hand": microseconds(lambda: read_produce(encoded, 0), 2000),
        "compiled": microseconds(lambda: compiled(encoded, 0), 2000),
        "kio": microseconds(lambda: kio(encoded, 0), 200),
    }


def fetch_requests() -> dict[str, float]:
    partitions = tuple(
        fetch_request_schema.FetchPartition(
            partition=i, fetch_offset=10**6, partition_max_bytes=2**20
        )
        for i in range(PARTITIONS)
    )
    entity = fetch_request_schema.FetchRequest(
        max_wait=NO_TIME,
        min_bytes=1,
        topics=(fetch_request_schema.FetchTopic(topic_id=TOPIC_ID, partitions=partitions),),
        forgotten_topics_data=(),
    )
    encoded = memoryview(kio_bytes(entity))
    compiled, kio = decoder(type(entity)), entity_reader(type(entity))
    read_fetch = fetch.request_reader(16)
    return {
        "hand": microseconds(lambda: read_fetch(encoded, 0), 500),
        "compiled": microseconds(lambda: compiled(encoded, 0), 500),
        "kio": microseconds(lambda: kio(encoded, 0), 500),
    }


def fetch_responses() -> dict[str, float]:
    records = RECORDS[: len(RECORDS) // PARTITIONS]
    entity = fetch_response_schema.FetchResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        responses=(
            fetch_response_schema.FetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=tuple(
                    fetch_response_schema.PartitionData(
                        partition_index=i,
                        error_code=ErrorCode.none,
                        high_watermark=10**6,
                        aborted_transactions=None,
                        records=records,
                    )
                    for i in range(PARTITIONS)
                ),
            ),
        ),
    )
    view = memoryview(records)
    response = fetch.FetchResponse(
        [
            fetch.FetchTopicResponse(
                None,
                TOPIC_ID,
                [
                    fetch.FetchPartitionResponse(i, 0, 10**6, records=[view])
                    for i in range(PARTITIONS)
                ],
            )
        ]
    )
    compiled = encoder(type(entity))
    write_fetch = fetch.response_writer(16)
    return {
        "hand": microseconds(lambda: write_fetch(response, bytearray()), 500),
        "compiled": microseconds(lambda: compiled(entity, bytearray()), 100),
        "kio": microseconds(lambda: kio_bytes(entity), 50),
    }


def main() -> None:
    print(
        json.dumps(
            {
                "unit": "microseconds",
                "produce_request_of_1_mb": produce_requests(),
                f"fetch_request_of_{PARTITIONS}_partitions": fetch_requests(),
                f"fetch_response_of_{PARTITIONS}_partitions_1_mb": fetch_responses(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
