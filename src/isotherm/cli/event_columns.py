"""Turns records of the metadata topic into rows to print: first one by one, then by columns.

The first records are decoded one by one, because that takes less time than loading the kernels, and
a short topic needs no kernels at all. After that kernels decode whole runs, and Python makes rows
only of the topic's records. These are chosen by topic id; the first record with an id has the
topic's name. Rare forms, tombstones, deletions of partitions and undecodable records are always
decoded one by one.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from isotherm.cli.decoded_values import describe_event, text_of
from isotherm.errors import CorruptMetadataError
from isotherm.kernels.event_table import ADD, ODD, PARTITION_DELETE, PUT, UPDATE
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, decode_run
from isotherm.remote.metadata.folding.fold import COLUMNAR_RECORDS_MIN
from isotherm.remote.metadata.wire.events import partition_of
from isotherm.remote.metadata.wire.keys import parse_key
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.types import NO_LEADER_EPOCH, NO_TIMESTAMP, uuid_to_text

if TYPE_CHECKING:
    import uuid

    import numpy.typing as npt

Row: TypeAlias = dict[str, Any]

_STATES = tuple(state.name for state in RemoteLogSegmentState)
_EPOCH = np.dtype([("epoch", ">i4"), ("start_offset", ">i8")])
_ID_TEXT_SIZE = 22
# The 16 bytes of an id and two more make 24 characters of base64 without padding, in one call for
# all ids. The last two characters are dropped.
_PADDED_ID = np.dtype([("high", ">i8"), ("low", ">i8"), ("padding", ">i2")])


class EventRows:
    """Makes the rows of one metadata partition, in order. With `topic` only rows of that topic are
    made.

    `damage` gets a line for each record that cannot be decoded, whatever its topic.
    """

    def __init__(
        self,
        partition: int,
        topic: str | None,
        damage: list[str],
        *,
        columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    ) -> None:
        self._partition = partition
        self._topic = topic
        self._damage = damage
        self._records_before_columns = columnar_records_min
        # Names of topics by (high, low) halves of their ids.
        self._names: dict[tuple[int, ...], str | None] = {}

    def of_run(self, columns: MetadataColumns) -> Iterator[Row]:
        if self._records_before_columns > 0:
            count = len(columns.offset)
            self._records_before_columns -= count
            rows = (self._decode_one(_record(self._partition, columns, i)) for i in range(count))
            yield from (row for row in rows if self._topic in (None, row.get("topic")))
            return
        run = decode_run(columns, straighten=False)
        events = run.events
        names = self._names_of(run)
        is_odd = events["kind"] == ODD
        is_chosen = np.ones(len(events), np.bool_)
        if self._topic is not None:
            is_chosen = np.array([name == self._topic for name in names], np.bool_) | is_odd
        is_segment = (events["kind"] == ADD) | (events["kind"] == PUT)
        # The records whose fields are all in the columns. They need no decoding in Python.
        is_plain = (is_segment & (events["epochs_count"] == 1)) | (
            (events["kind"] == UPDATE) & (events["leader"] == NO_LEADER_EPOCH)
        )
        numbers = np.flatnonzero(is_chosen)
        plain = self._plain_rows(columns, run, numbers[is_plain[numbers]], names)
        for number in numbers.tolist():
            if is_plain[number]:
                yield next(plain)
                continue
            row = self._decode_one(_record(self._partition, columns, number))
            if self._topic in (None, row.get("topic")):
                yield row

    def _decode_one(self, record: MetadataTopicRecord) -> Row:
        row: Row = {"metadata_partition": record.partition, "offset": record.offset}
        if record.key is not None:
            row["key"] = text_of(record.key)
        try:
            if record.value is None:
                key = parse_key(record.key or b"")
                topic = self._names.get(_halves(key.topic_id))  # a tombstone has no name
                topic_id = uuid_to_text(key.topic_id)
                place = {"topic": topic, "topic_id": topic_id, "partition": key.partition}
                return {**row, "type": "tombstone", **place}
            event = decode_event(record.value)
            partition = partition_of(event)
        except CorruptMetadataError as error:
            self._damage.append(f"{error} partition={record.partition} offset={record.offset}")
            value = "" if record.value is None else record.value.hex()
            return {**row, "type": "damaged", "value": value}
        self._names.setdefault(_halves(partition.topic_id), partition.topic)
        return {**row, **describe_event(event)}

    def _names_of(self, run: DecodedRun) -> list[str | None]:
        events = run.events
        ids = list(zip(events["topic_high"].tolist(), events["topic_low"].tolist(), strict=True))
        kinds = events["kind"].tolist()
        kinds_with_name = {ADD, PUT, UPDATE, PARTITION_DELETE}
        for number, topic_id in enumerate(ids):
            if topic_id not in self._names and kinds[number] in kinds_with_name:
                self._names[topic_id] = partition_of(decode_event(run.value(number))).topic
        return [
            self._names.get(topic_id) if kind != ODD else None
            for topic_id, kind in zip(ids, kinds, strict=True)
        ]

    def _plain_rows(
        self,
        columns: MetadataColumns,
        run: DecodedRun,
        numbers: npt.NDArray[np.intp],
        names: list[str | None],
    ) -> Iterator[Row]:
        """The rows of these records, equal to those of `describe_event`."""
        events = run.events[numbers]
        is_segment = events["kind"] != UPDATE
        topic_ids = _id_texts(events["topic_high"], events["topic_low"])
        segment_ids = _id_texts(events["id_high"], events["id_low"])
        starts = events["epochs_start"][is_segment]
        epochs = iter(_epochs(run.value_data, starts))
        keys = columns.key
        has_keys = keys.null_count < len(keys)
        fields = (
            "partition", "state", "start", "end", "size", "max_timestamp", "broker",
            "event_timestamp", "custom_start", "custom_size", "txn_index_empty", "leader",
        )  # fmt: skip
        offsets = columns.offset[numbers].tolist()
        values = zip(
            numbers.tolist(),
            offsets,
            topic_ids,
            segment_ids,
            is_segment.tolist(),
            *(events[field].tolist() for field in fields),
            strict=True,
        )
        for (
            number, offset, topic_id, segment_id, is_whole_state, partition, state, start, end,
            size, max_timestamp, broker, event_timestamp, custom_start, custom_size, is_empty,
            leader,
        ) in values:  # fmt: skip
            row: Row = {"metadata_partition": self._partition, "offset": offset}
            if has_keys and (key := keys[number].as_py()) is not None:
                row["key"] = text_of(key)
            row["type"] = "segment" if is_whole_state else "segment-update"
            row |= {"topic": names[number], "topic_id": topic_id, "partition": partition}
            row |= {"segment_id": segment_id, "state": _STATES[state]}
            if is_whole_state:
                row |= {"start_offset": start, "end_offset": end, "size": size}
                row |= {"max_timestamp": max_timestamp, "leader_epochs": next(epochs)}
            row |= {"broker_id": broker, "event_timestamp": event_timestamp}
            custom = run.value_data[custom_start : custom_start + max(custom_size, 0)]
            row["custom_metadata"] = custom.tobytes().hex() if custom_size >= 0 else None
            if is_whole_state:
                row["txn_index_empty"] = bool(is_empty)
                if leader != NO_LEADER_EPOCH:
                    row["broker_leader_epoch"] = leader
            yield row


def _record(partition: int, columns: MetadataColumns, number: int) -> MetadataTopicRecord:
    return MetadataTopicRecord(
        partition,
        int(columns.offset[number]),
        NO_TIMESTAMP,
        columns.key[number].as_py(),
        columns.value[number].as_py(),
    )


def _halves(topic_id: uuid.UUID) -> tuple[int, ...]:
    return struct.unpack(">qq", topic_id.bytes)


def _id_texts(high: npt.NDArray[np.int64], low: npt.NDArray[np.int64]) -> list[str]:
    """The texts of ids, equal to those of `uuid_to_text`."""
    ids = np.zeros(len(high), _PADDED_ID)
    ids["high"], ids["low"] = high, low
    text = base64.urlsafe_b64encode(ids.tobytes()).decode("ascii")
    return [text[at : at + _ID_TEXT_SIZE] for at in range(0, len(text), 24)]


def _epochs(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> list[dict[str, int]]:
    """The single leader epoch of each segment, with its start offset."""
    if len(starts) == 0:
        return []
    places = starts[:, np.newaxis] + np.arange(_EPOCH.itemsize)
    epochs = np.ascontiguousarray(data[places]).view(_EPOCH)[:, 0]
    pairs = zip(epochs["epoch"].tolist(), epochs["start_offset"].tolist(), strict=True)
    return [{str(epoch): start} for epoch, start in pairs]
