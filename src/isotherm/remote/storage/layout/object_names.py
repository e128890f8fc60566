"""The parts of object keys that both layouts share. The parsers return None for foreign names."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from isotherm.types import UUID_TEXT_LENGTH, Offset, uuid_from_text, uuid_to_text

OFFSET_DIGITS = 20
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_STEM_LENGTH = OFFSET_DIGITS + 1 + UUID_TEXT_LENGTH
# The last character of an id has only two bits. Any other one would be a second spelling of an id.
_LAST_OF_UUID = frozenset("AQgw")


class SegmentFile(NamedTuple):
    start_offset: Offset
    segment_uuid: uuid.UUID
    suffix: str


def segment_file_stem(start_offset: Offset, segment_uuid: uuid.UUID) -> str:
    return f"{start_offset:0{OFFSET_DIGITS}d}-{uuid_to_text(segment_uuid)}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """Split `<20 digits>-<22 characters>.<suffix>` by length, because ids may contain a dash."""
    stem, suffix = name[:_STEM_LENGTH], name[_STEM_LENGTH:]
    offset = parse_decimal(stem[:OFFSET_DIGITS])
    split = split_trailing_uuid(stem)
    if offset is None or split is None or len(stem) != _STEM_LENGTH:
        return None
    if len(suffix) < 2 or suffix[0] != ".":
        return None
    return SegmentFile(offset, split[1], suffix[1:])


def split_trailing_uuid(name: str) -> tuple[str, uuid.UUID] | None:
    """`<name>-<22 characters>` -> (name, id)."""
    head, text = name[: -UUID_TEXT_LENGTH - 1], name[-UUID_TEXT_LENGTH:]
    if not head or name[-UUID_TEXT_LENGTH - 1] != "-" or text[-1] not in _LAST_OF_UUID:
        return None
    try:
        return head, uuid_from_text(text)
    except ValueError:
        return None


def parse_decimal(text: str) -> int | None:
    """A non-negative number of plain digits that fits a Java long."""
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS):
        return None
    value = int(text)
    return value if value <= _LONG_MAX else None


def parse_partition(text: str) -> int | None:
    """A partition number as Kafka writes it: no leading zeros, within a Java int."""
    value = parse_decimal(text)
    return value if value is not None and value <= _INT_MAX and str(value) == text else None


def split_prefix(key_prefix: str) -> tuple[str, str]:
    """A prefix as (folder that ends in a slash or is empty, start of the names inside it)."""
    directory, slash, name = key_prefix.rpartition("/")
    return directory + slash, name
