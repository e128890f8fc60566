"""Read what Kafka's DumpLogSegments prints.

Values stay the text that Kafka printed (`OptionalLong.empty`, `true`, ...): a test says how it
reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Fields: TypeAlias = Mapping[str, str]

_FIELD = re.compile(r"(\w+): (\[[^]]*\]|\S*)")
# The decoded key and payload of a record may hold anything, colons and spaces too.
_PAYLOAD = re.compile(r" (key|payload): ")

# The tool says of every segment with a base offset above zero, Kafka's own too, that offset -1 is
# followed by it; of a real gap it says "  5 is followed by 8", which stays a remark.
_SAYS_NOTHING = re.compile(
    r"Log starting offset: |.* is empty\.$|Non-consecutive offsets in |  -1 is followed by "
)


@dataclass(slots=True)
class DumpedFile:
    """One `Dumping <name>` section.

    `batches` and `records` (with `--deep-iteration` or a decoder) come from a segment, `entries`
    from an index or a producer snapshot, `remarks` is every line that is none of these: Kafka's
    complaints, if it has any.
    """

    name: str
    batches: list[Fields] = field(default_factory=list)
    records: list[Fields] = field(default_factory=list)
    entries: list[Fields] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def parse_dump(text: str) -> dict[str, DumpedFile]:
    """The sections of a dump by file name."""
    files: dict[str, DumpedFile] = {}
    current: DumpedFile | None = None
    for line in text.splitlines():
        if line.startswith("Dumping "):
            name = line.removeprefix("Dumping ")
            current = files.setdefault(name, DumpedFile(name))
        elif current is not None and line:
            _add_line(current, line)
    return files


def _add_line(file: DumpedFile, line: str) -> None:
    if line.startswith("baseOffset: "):
        file.batches.append(_fields(line))
    elif line.startswith("| offset: "):
        file.records.append(_record_fields(line))
    elif line.startswith(("offset: ", "timestamp: ", "version: ", "producerId: ")):
        file.entries.append(_fields(line))
    elif not _SAYS_NOTHING.match(line):
        file.remarks.append(line)


def _fields(line: str) -> dict[str, str]:
    return dict(_FIELD.findall(line))


def _record_fields(line: str) -> dict[str, str]:
    plain, *rest = _PAYLOAD.split(line)
    return {**_fields(plain), **dict(zip(rest[::2], rest[1::2], strict=True))}
