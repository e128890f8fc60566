"""Compiles the text of a Protobuf schema to descriptors, with protoc.

protoc is the reference implementation, and its errors say what is wrong. It runs as a separate
process, so that a hostile text cannot harm this one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from isotherm.spark.tables.schema_registry import RegisteredSchema, UnknownSchemaError

COMPILE_S_MAX = 60
_CONFLUENT_FILES = (meta_pb2.DESCRIPTOR, decimal_pb2.DESCRIPTOR)
"""What schemas may import without a registered reference: Confluent's serializers register none to
files of their own, which Kafka Connect's schemas of decimals use."""
_WARNING = re.compile(r"WARNING: |W\d{4} ")


def message_of(schema: RegisteredSchema, path: tuple[int, ...]) -> Descriptor:
    """The message to which the indexes before a value lead.

    Java's serializer counts the messages of the text. confluent-kafka-python counts those of the
    descriptor, which has one more for each map. Where indexes lead to a message by either count,
    Java's is taken: a frame does not say who wrote it.

    Raises UnknownSchemaError for an invalid schema, and for indexes that lead to no message.
    """
    references = dict(schema.references)
    main = "schema.proto"
    # A reference may have this name.
    while main in references:
        main = f"_{main}"
    files = _compiled({**references, main: schema.text}, main)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    file = files.file[-1]
    names = _names(file, path, counts_maps=False) or _names(file, path, counts_maps=True)
    if names is None:
        raise UnknownSchemaError(f"the schema has no such message indexes={list(path)}")
    return pool.FindMessageTypeByName(".".join([file.package, *names] if file.package else names))


def _names(
    file: FileDescriptorProto, path: tuple[int, ...], *, counts_maps: bool
) -> list[str] | None:
    """The names on the way to a message. None if there is none, or if it is the entry of a map."""
    messages, names = list(file.message_type), []
    for index in path:
        if not 0 <= index < len(messages) or messages[index].options.map_entry:
            return None
        names.append(messages[index].name)
        messages = [
            nested
            for nested in messages[index].nested_type
            if counts_maps or not nested.options.map_entry
        ]
    return names


def _compiled(texts: Mapping[str, str], main: str) -> FileDescriptorSet:
    """Compile schemas. In the result each file comes after those that it imports."""
    with tempfile.TemporaryDirectory(prefix="isotherm-protobuf-") as folder:
        for name, text in texts.items():
            # The names are the registry's: none may lead out of the folder.
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise UnknownSchemaError(f"a schema cannot refer to this name name={name!r}")
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        own = FileDescriptorSet()
        for file in _CONFLUENT_FILES:
            if file.name not in texts:
                own.file.add().ParseFromString(file.serialized_pb)
        given = Path(folder, "isotherm.given")
        given.write_bytes(own.SerializeToString())
        made = Path(folder, "isotherm.descriptors")
        # grpc_tools itself adds the folder with google/protobuf.
        folders = [folder, *_common_folders()]
        options = [f"--proto_path={folder}" for folder in folders]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options]
        command += [f"--descriptor_set_in={given}"]
        command += ["--include_imports", f"--descriptor_set_out={made}", main]
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, capture_output=True, text=True, timeout=COMPILE_S_MAX, check=False
        )
        if done.returncode:
            lines = done.stderr.replace(f"{folder}/", "").splitlines()
            reason = " ".join(line for line in lines if not _WARNING.match(line))
            raise UnknownSchemaError(f"the schema is not one of Protobuf: {reason}")
        return FileDescriptorSet.FromString(made.read_bytes())


def _common_folders() -> list[str]:
    """The folders with google/type and others, which schemas may import without a registered
    reference.
    """
    spec = find_spec("google.type")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return [str(Path(place).parents[1]) for place in places]
