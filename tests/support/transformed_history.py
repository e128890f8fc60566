"""A history with compressed and encrypted segments, and wrong statements of manifests about
them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from Crypto.PublicKey import RSA

from isotherm.remote.storage.manifest.chunk_index import decode_chunk_sizes, encode_chunk_sizes
from tests.support.damaged_history import MANIFEST, Changes, manifest_changed
from tests.support.model_history import ModelHistory, Shape

KEY_ID = "Archive2026"
_CHUNK_SIZE = 500


def transformed_history(
    directory: Path, seed: int, *, compressed: bool = True, encrypted: bool = True
) -> ModelHistory:
    directory.mkdir(parents=True, exist_ok=True)
    storage = {"chunk.size": str(_CHUNK_SIZE), "compression.enabled": str(compressed).lower()}
    reading: dict[str, str] = {}
    if encrypted:
        private = RSA.generate(2048)
        (directory / "public.pem").write_bytes(private.public_key().export_key())
        (directory / "private.pem").write_bytes(private.export_key(pkcs=8))
        reading = {
            "encryption.key.pairs": KEY_ID,
            f"encryption.key.pairs.{KEY_ID}.private.key.file": str(directory / "private.pem"),
        }
        storage |= reading | {
            "encryption.enabled": "true",
            "encryption.key.pair.id": KEY_ID,
            f"encryption.key.pairs.{KEY_ID}.public.key.file": str(directory / "public.pem"),
        }
    return ModelHistory(directory, seed, Shape(storage=storage, reading=reading))


def _member(name: str, change: Callable[[Any], object]) -> Callable[[dict[str, Any]], None]:
    def edit(members: dict[str, Any]) -> None:
        members[name] = change(members.get(name))

    return edit


def _index(name: str, change: Callable[[Any], object]) -> Callable[[dict[str, Any]], None]:
    def edit(members: dict[str, Any]) -> None:
        if name in members["chunkIndex"]:
            members["chunkIndex"][name] = change(members["chunkIndex"][name])

    return edit


def _sizes(change: Callable[[list[int]], list[int]]) -> Callable[[dict[str, Any]], None]:
    """Other sizes of the stored chunks, in both kinds of index."""

    def edit(members: dict[str, Any]) -> None:
        index = members["chunkIndex"]
        if index["type"] == "variable":
            sizes = change(list(decode_chunk_sizes(index["transformedChunks"])))
            index["transformedChunks"] = encode_chunk_sizes(sizes)
        else:
            names = ("transformedChunkSize", "finalTransformedChunkSize")
            index.update(zip(names, change([index[name] for name in names]), strict=False))

    return edit


def _encryption(name: str, change: Callable[[str], str]) -> Callable[[dict[str, Any]], None]:
    def edit(members: dict[str, Any]) -> None:
        if members.get("encryption"):
            members["encryption"][name] = change(members["encryption"][name])

    return edit


def _other_kind(members: dict[str, Any]) -> None:
    index = members["chunkIndex"]
    if index["type"] == "variable":
        sizes = decode_chunk_sizes(index.pop("transformedChunks"))
        index |= {
            "type": "fixed",
            "transformedChunkSize": sizes[0],
            "finalTransformedChunkSize": sizes[-1],
        }
    else:
        count = -(-index["originalFileSize"] // index["originalChunkSize"])
        size, last = index.pop("transformedChunkSize"), index.pop("finalTransformedChunkSize")
        index |= {
            "type": "variable",
            "transformedChunks": encode_chunk_sizes([size] * count + [last]),
        }


def _text_flipped(text: str) -> str:
    head, _, wrapped = text.rpartition(":")
    data = bytearray(base64.b64decode(wrapped))
    data[len(data) // 2] ^= 1
    flipped = base64.b64encode(data).decode()
    return f"{head}:{flipped}" if head else flipped


_MANIFEST_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "compression-denied": _member("compression", lambda value: not value),
    "encryption-denied": _member("encryption", lambda _: None),
    "data-key-flipped": _encryption("dataKey", _text_flipped),
    "data-key-of-another-pair": _encryption(
        "dataKey", lambda value: "other:" + value.split(":")[1]
    ),
    "data-key-empty": _encryption("dataKey", lambda value: KEY_ID + ":"),
    "aad-flipped": _encryption("aad", _text_flipped),
    "aad-empty": _encryption("aad", lambda _: ""),
    "chunk-size-doubled": _index("originalChunkSize", lambda value: 2 * value),
    "chunk-size-of-1": _index("originalChunkSize", lambda _: 1),
    "chunk-size-huge": _index("originalChunkSize", lambda _: 2**31 - 1),
    "file-size-larger": _index("originalFileSize", lambda value: value + 1),
    "file-size-smaller": _index("originalFileSize", lambda value: value - 1),
    "file-size-larger-by-a-chunk": _index("originalFileSize", lambda value: value + _CHUNK_SIZE),
    "file-size-smaller-by-a-chunk": _index("originalFileSize", lambda value: value - _CHUNK_SIZE),
    "file-size-huge": _index("originalFileSize", lambda _: 2**31 - 1),
    "stored-size-larger": _sizes(lambda sizes: [sizes[0] + 1, *sizes[1:]]),
    "stored-size-smaller": _sizes(lambda sizes: [sizes[0] - 1, *sizes[1:]]),
    "stored-size-zero": _sizes(lambda sizes: [0, *sizes[1:]]),
    "stored-size-huge": _sizes(lambda sizes: [2**31 - 1, *sizes[1:]]),
    "last-stored-size-larger": _sizes(lambda sizes: [*sizes[:-1], sizes[-1] + 1]),
    "last-stored-size-huge": _sizes(lambda sizes: [*sizes[:-1], 2**31 - 1]),
    "stored-sizes-turned": _sizes(lambda sizes: sizes[::-1]),
    "a-stored-size-less": _sizes(lambda sizes: sizes[:-1]),
    "a-stored-size-more": _sizes(lambda sizes: [*sizes, sizes[-1]]),
    "other-kind-of-chunk-index": _other_kind,
}


def _manifest_with(
    change: Callable[[dict[str, Any]], None],
) -> Callable[[ModelHistory, int], Changes]:
    return lambda history, number: manifest_changed(history, number, change)


def _of_another(*members: str) -> Callable[[ModelHistory, int], Changes]:
    """Replace members of a manifest by those of the previous segment's manifest."""

    def plant(history: ModelHistory, number: int) -> Changes:
        before = history.objects(history.segments[number - 1])[MANIFEST]
        manifest = json.loads(before.read_bytes())

        def change(own: dict[str, Any]) -> None:
            own.update({name: manifest[name] for name in members if name in manifest})

        return manifest_changed(history, number, change)

    return plant


PLANTED_TRANSFORMS: dict[str, Callable[[ModelHistory, int], Changes]] = {
    **{name: _manifest_with(change) for name, change in _MANIFEST_CHANGES.items()},
    "chunk-index-of-another": _of_another("chunkIndex"),
    "encryption-of-another": _of_another("encryption"),
    "places-of-indexes-of-another": _of_another("segmentIndexes"),
}
"""Name -> the changes to the manifest of the segment with a given index."""
