"""Types shared by all layers: identifiers, offsets and positions.

Offsets, positions and timestamps are aliases of `int`, not NewTypes: arithmetic on a NewType
gives back `int`, so every sum would need wrapping again (docs/decisions/0002). The alias says
which of the three an argument is:

- `Offset`: of a record in a partition. Ranges are half-open unless a name ends in `_inclusive`.
- `Position`: of a byte in a file or object.
- `TimestampMs`: milliseconds since the Unix epoch.
"""

from __future__ import annotations

import base64
import binascii
import random
import uuid
from typing import NamedTuple, TypeAlias

Offset: TypeAlias = int
Position: TypeAlias = int
TimestampMs: TypeAlias = int
LeaderEpoch: TypeAlias = int
ProducerId: TypeAlias = int
ProducerEpoch: TypeAlias = int
BrokerId: TypeAlias = int

NO_TIMESTAMP: TimestampMs = -1
NO_LEADER_EPOCH: LeaderEpoch = -1
NO_PRODUCER_ID: ProducerId = -1
NO_PRODUCER_EPOCH: ProducerEpoch = -1
NO_COORDINATOR_EPOCH = -1
NO_SEQUENCE = -1
UNKNOWN_OFFSET: Offset = -1

REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
REMOTE_LOG_METADATA_AUDIT_TOPIC = "__remote_log_metadata_audit"
REMOTE_LOG_METADATA_TOPICS = (REMOTE_LOG_METADATA_TOPIC, REMOTE_LOG_METADATA_AUDIT_TOPIC)
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

REMOTE_LOG_DIR = "remote://"
"""Prefix of the directory that DescribeLogDirs shows for the remote tier."""

UUID_TEXT_LENGTH = 22

# `make_tuple(Kind, values)` makes a named tuple of all its values, in their order. Its own
# constructor is a Python call, which takes twice as long: for what each append makes.
make_tuple = tuple.__new__


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic: a topic that is created again has a new id."""

    topic_id: uuid.UUID
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{uuid_to_text(self.topic_id)}:{self.topic}-{self.partition}"


# Digits of the standard base64 alphabet become invalid.
_FROM_URL_SAFE = bytes.maketrans(b"-_+/", b"+/  ")


def random_uuid(rng: random.Random) -> uuid.UUID:
    """A random id whose text does not begin with `-`, so that tools accept it as an argument.
    Kafka: Uuid.randomUuid."""
    while True:
        made = uuid.UUID(int=rng.getrandbits(128), version=4)
        if not uuid_to_text(made).startswith("-"):
            return made


def uuid_to_text(value: uuid.UUID) -> str:
    """Kafka's text form: URL-safe base64 of the 16 bytes, no padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    """Inverse of `uuid_to_text`. Raises ValueError if the text is not such an id."""
    try:
        digits = text.encode("ascii").translate(_FROM_URL_SAFE)
        # Same as base64.b64decode(validate=True), in a third of the time: listings have many ids.
        raw = binascii.a2b_base64(digits + b"==", strict_mode=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError(f"not a Kafka uuid text={text!r}") from error
    if len(text) != UUID_TEXT_LENGTH or len(raw) != 16:
        raise ValueError(f"a Kafka uuid has {UUID_TEXT_LENGTH} characters text={text!r}")
    return uuid.UUID(bytes=raw)
