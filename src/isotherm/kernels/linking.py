"""Machine code that runs at any address, from an object file of LLVM. Pure.

    object file (ELF, x86-64)  ->  Image: code and constants, linked with each other

A kernel is one function that refers to its own constants and to memcpy. References within the image
are relative to the place of the instruction, so they are set once, when the kernel is compiled. Who
loads the image needs no linker: it writes the addresses of the C library's functions into it
(native.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SECTIONS_AT = 0x28  # in the file's header
_SECTION_COUNT_AT = 0x3C
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_ALLOCATED = 2
_UNDEFINED = 0
_ABSOLUTE, _RELATIVE, _CALL = 1, 2, 4  # R_X86_64_64, _PC32, _PLT32
_CONSTANT_POINTERS = ".data.rel.ro"
# jmp *[rip+2], two bytes that are never reached, and the address to jump to.
_STUB = bytes.fromhex("ff2502000000 0f0b") + bytes(8)
_ADDRESS_IN_STUB = 8
_ALIGNMENT_MAX = 4096
C_FUNCTIONS = ("memcpy", "memmove", "memset", "memcmp")
"""What the compiler may call."""
_HEADER = struct.Struct("<II")
_EXTERNAL = struct.Struct("<I12s")


class LinkError(Exception):
    """The object file has what no kernel is expected to have."""


class Image(NamedTuple):
    """`externals` are the places at which the addresses of functions of the C library belong.
    `entry` is the place of the kernel's first instruction."""

    code: bytes
    entry: int
    externals: Mapping[int, str]

    def to_bytes(self) -> bytes:
        externals = (_EXTERNAL.pack(at, name.encode()) for at, name in self.externals.items())
        head = _HEADER.pack(self.entry, len(self.externals))
        return head + b"".join(externals) + self.code

    @classmethod
    def from_bytes(cls, content: bytes) -> Image:
        entry, count = _HEADER.unpack_from(content)
        code_start = _HEADER.size + count * _EXTERNAL.size
        externals = {
            at: name.rstrip(b"\0").decode()
            for at, name in _EXTERNAL.iter_unpack(content[_HEADER.size : code_start])
        }
        return cls(content[code_start:], entry, externals)


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    start: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


def linked(object_file: bytes, function: str) -> Image:
    """The image of an object file whose entry is `function`. Raises LinkError."""
    return _Linking(object_file).image(function)


class _Linking:
    def __init__(self, object_file: bytes) -> None:
        self._file = object_file
        (start,) = struct.unpack_from("<Q", object_file, _SECTIONS_AT)
        count, names = struct.unpack_from("<HH", object_file, _SECTION_COUNT_AT)
        self._sections = [
            _Section(*_SECTION.unpack_from(object_file, start + index * _SECTION.size))
            for index in range(count)
        ]
        self._section_names = self._content(self._sections[names])
        (table,) = (section for section in self._sections if section.kind == _SYMTAB)
        self._symbols = [_Symbol(*fields) for fields in _SYMBOL.iter_unpack(self._content(table))]
        self._symbol_names = self._content(self._sections[table.link])
        self._code = bytearray()
        # The places of sections, by index, and of the jumps to functions of the C library.
        self._places: dict[int, int] = {}
        self._stubs: dict[str, int] = {}

    def image(self, function: str) -> Image:
        self._lay_out()
        for section in self._sections:
            if section.kind == _RELA and section.info in self._places:
                self._set_references(section)
        entries = [
            symbol
            for symbol in self._symbols
            if symbol.section in self._places and self._name(symbol) == function
        ]
        if len(entries) != 1:
            raise LinkError(f"the function is there {len(entries)} times function={function}")
        externals = {place + _ADDRESS_IN_STUB: name for name, place in self._stubs.items()}
        return Image(bytes(self._code), self._place_of(entries[0]), externals)

    def _lay_out(self) -> None:
        """Place the sections that a process has in its memory."""
        for index, section in enumerate(self._sections):
            if not section.flags & _ALLOCATED or section.kind not in (_PROGBITS, _NOBITS):
                continue
            if section.alignment > _ALIGNMENT_MAX:
                raise LinkError(f"a section is aligned to more than a page to={section.alignment}")
            self._places[index] = self._extend_code(
                self._content(section) if section.kind == _PROGBITS else bytes(section.size),
                max(section.alignment, 1),
            )

    def _extend_code(self, part: bytes, alignment: int) -> int:
        self._code.extend(bytes(-len(self._code) % alignment))
        place = len(self._code)
        self._code.extend(part)
        return place

    def _set_references(self, relocations: _Section) -> None:
        into = self._sections[relocations.info]
        for offset, info, addend in _RELOCATION.iter_unpack(self._content(relocations)):
            kind, symbol = info & 0xFFFFFFFF, self._symbols[info >> 32]
            place = self._places[relocations.info] + offset
            if kind in (_RELATIVE, _CALL):
                distance = self._place_of(symbol) + addend - place
                struct.pack_into("<i", self._code, place, distance)
            # What an exception would say. A caller of the image learns only that there was one.
            elif kind != _ABSOLUTE or self._section_name(into) != _CONSTANT_POINTERS:
                raise LinkError(f"a reference of an unexpected kind kind={kind}")

    def _place_of(self, symbol: _Symbol) -> int:
        if symbol.section in self._places:
            return self._places[symbol.section] + symbol.value
        name = self._name(symbol)
        if symbol.section != _UNDEFINED or name not in C_FUNCTIONS:
            raise LinkError(f"a symbol has no place name={name}")
        if name not in self._stubs:
            self._stubs[name] = self._extend_code(_STUB, len(_STUB))
        return self._stubs[name]

    def _content(self, section: _Section) -> bytes:
        return self._file[section.start : section.start + section.size]

    def _name(self, symbol: _Symbol) -> str:
        return _string(self._symbol_names, symbol.name)

    def _section_name(self, section: _Section) -> str:
        return _string(self._section_names, section.name)


def _string(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode()
