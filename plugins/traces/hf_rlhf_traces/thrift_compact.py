"""Structs in Thrift's compact protocol, read field by field and written back as they were.

A struct is its fields by number, each with its type; a list its type and its values. What stands
in them needs no schema, so that fields nobody knows of stay as they are.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import IO, Any

TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BINARY, LIST, SET, STRUCT = *range(1, 11), 12
Fields = dict[int, tuple[int, Any]]


def read_struct(file: IO[bytes]) -> Fields:
    """Read a struct. Raises ValueError for what is none."""
    fields: Fields = {}
    number = 0
    while head := _byte(file):
        step, kind = head >> 4, head & 15
        number = number + step if step else _from_zigzag(_varint(file))
        fields[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else _read(file, kind))
    return fields


def write_struct(file: IO[bytes], fields: Fields) -> None:
    """Write a struct, its fields in the order of their numbers."""
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - before
        file.write(bytes([step << 4 | kind] if step < 16 else [kind]))
        if step >= 16:
            _write_varint(file, _zigzag(number))
        if kind not in (TRUE, FALSE):
            _write(file, kind, value)
        before = number
    file.write(b"\0")


def _read(file: IO[bytes], kind: int) -> Any:
    if kind not in _READERS:
        raise ValueError(f"a value of type {kind}, which is not in Thrift's compact protocol")
    return _READERS[kind](file)


def _read_list(file: IO[bytes]) -> tuple[int, list[Any]]:
    head = _byte(file)
    size, kind = head >> 4, head & 15
    if size == 15:
        size = _varint(file)
    return kind, [_read(file, kind) for _ in range(size)]


def _write(file: IO[bytes], kind: int, value: Any) -> None:
    if kind in (SHORT, INT, LONG):
        _write_varint(file, _zigzag(value))
    elif kind in (TRUE, FALSE, BYTE):
        file.write(bytes([value]))
    elif kind == DOUBLE:
        file.write(struct.pack("<d", value))
    elif kind == BINARY:
        _write_varint(file, len(value))
        file.write(value)
    elif kind == STRUCT:
        write_struct(file, value)
    else:
        inside, values = value
        file.write(bytes([min(len(values), 15) << 4 | inside]))
        if len(values) >= 15:
            _write_varint(file, len(values))
        for one in values:
            _write(file, inside, one)


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise ValueError("a struct that breaks off")
    return found


def _byte(file: IO[bytes]) -> int:
    return _exactly(file, 1)[0]


def _varint(file: IO[bytes]) -> int:
    value = shift = 0
    while (byte := _byte(file)) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift


def _write_varint(file: IO[bytes], value: int) -> None:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    file.write(made)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _from_zigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def _number(file: IO[bytes]) -> int:
    return _from_zigzag(_varint(file))


_READERS: Mapping[int, Callable[[IO[bytes]], Any]] = {
    **dict.fromkeys((TRUE, FALSE, BYTE), _byte),
    **dict.fromkeys((SHORT, INT, LONG), _number),
    DOUBLE: lambda file: struct.unpack("<d", _exactly(file, 8))[0],
    BINARY: lambda file: _exactly(file, _varint(file)),
    **dict.fromkeys((LIST, SET), _read_list),
    STRUCT: read_struct,
}


def parsed(data: bytes) -> Fields:
    """Read the struct that `data` begins with."""
    return read_struct(BytesIO(data))
