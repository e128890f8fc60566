"""What a decoder copies from its buffer."""

from __future__ import annotations

from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.entities import blank_entity


def test_records_that_may_not_be_null_are_a_view_too() -> None:
    """A piece of a metadata snapshot is as large as its reader asks for."""
    response_type = response_class(ApiKey.FETCH_SNAPSHOT, 1)
    leader = {"leader_id": 1, "leader_epoch": 1}
    partition = {"current_leader": leader, "unaligned_records": b"records"}
    encoded = bytearray()
    fields = {"topics": [{"name": "t", "partitions": [partition]}]}
    encoder(response_type)(blank_entity(response_type, fields), encoded)
    response, _ = decoder(response_type)(memoryview(encoded), 0)
    records = response.topics[0].partitions[0].unaligned_records
    assert records == b"records"
    assert isinstance(records, memoryview)
    assert records.obj is encoded
