"""The text format of Kafka's checkpoint files.

Line 1 is the version `0`, line 2 the number of entries, then one entry per line with fields
separated by spaces. Every line ends with a newline. A file that is empty, or has only the version,
has no entries. Source: Kafka CheckpointFile.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isotherm.errors import CorruptCheckpointError

CHECKPOINT_VERSION = 0


def read_checkpoint_entries(data: bytes | str, field_count: int) -> list[list[str]]:
    """The fields of every entry. Raises CorruptCheckpointError with the line."""
    lines = _text_of(data).splitlines()
    if not lines:
        return []
    if _integer(lines[0], line_number=1) != CHECKPOINT_VERSION:
        raise CorruptCheckpointError(f"checkpoint has an unknown version version={lines[0]!r}")
    if len(lines) == 1:
        return []
    count = _integer(lines[1], line_number=2)
    entries = [line.split() for line in lines[2:]]
    for line_number, fields in enumerate(entries, start=3):
        if len(fields) != field_count:
            raise CorruptCheckpointError(
                f"checkpoint line is malformed line={line_number} fields={len(fields)}"
                f" expected_fields={field_count}"
            )
    if len(entries) != count:
        raise CorruptCheckpointError(
            f"checkpoint entry count disagrees expected={count} found={len(entries)}"
        )
    return entries


def check_not_cut(data: bytes) -> None:
    """Raise CorruptCheckpointError if the file does not end with a newline.

    A file that is cut off within its last number would otherwise be read with a smaller number.
    """
    if not data.endswith(b"\n"):
        raise CorruptCheckpointError(f"checkpoint is cut off size={len(data)}")


def encode_checkpoint_entries(entries: Iterable[Sequence[object]]) -> bytes:
    lines = [" ".join(str(field) for field in fields) for fields in entries]
    text = "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines])
    return f"{text}\n".encode()


def checkpoint_integers(fields: Sequence[str]) -> list[int]:
    """The integer fields of an entry. Raises CorruptCheckpointError with the entry."""
    try:
        return [int(field) for field in fields]
    except ValueError as error:
        raise CorruptCheckpointError(
            f"checkpoint entry holds no integer entry={' '.join(fields)!r}"
        ) from error


def _text_of(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"checkpoint is not text position={error.start}") from error


def _integer(text: str, *, line_number: int) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"checkpoint line holds no integer line={line_number} text={text!r}"
        ) from error
