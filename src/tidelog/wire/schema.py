"""How a Kafka message is declared: a class whose annotations are the wire types.

    class FetchPartition(Struct):
        partition: Int32
        current_leader_epoch: Int32 = field(default=-1, since=9)

To a reader and to the type checker that is an ordinary data class.  The compiler
reads the same annotations and writes one flat encode and one flat decode function
for each version, the first time that version is used.

A field is on the wire in versions ``since``..``until``.  With ``tag`` it is a
tagged field (only in flexible versions).  ``X | None`` is nullable, from version
``nullable_since`` on.  A field that is absent in a version keeps its default.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, dataclass_transform

LATEST = 32767


@dataclass(frozen=True, slots=True)
class Primitive:
    """A leaf type: its name, its struct code if the width is fixed, its zero value."""

    name: str
    code: str
    zero: object


BOOL = Primitive("bool", "?", False)
INT8 = Primitive("int8", "b", 0)
INT16 = Primitive("int16", "h", 0)
INT32 = Primitive("int32", "i", 0)
INT64 = Primitive("int64", "q", 0)
UUID = Primitive("uuid", "16s", bytes(16))
STRING = Primitive("string", "", "")
BYTES = Primitive("bytes", "", b"")
RECORDS = Primitive("records", "", b"")

Bool = Annotated[bool, BOOL]
Int8 = Annotated[int, INT8]
Int16 = Annotated[int, INT16]
Int32 = Annotated[int, INT32]
Int64 = Annotated[int, INT64]
Uuid = Annotated[bytes, UUID]  # sixteen raw bytes; text form: see tidelog.wire.uuid
String = Annotated[str, STRING]
Bytes = Annotated[bytes, BYTES]
# Records stay bytes: decoding hands out a view of the request, never a copy.
Records = Annotated[bytes | bytearray | memoryview, RECORDS]

ZERO_UUID = bytes(16)


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field is on the wire; filled in from the class body."""

    default: Any
    since: int = 0
    until: int = LATEST
    tag: int | None = None
    nullable_since: int = 0

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until


def field(
    *,
    default: Any = ...,
    since: int = 0,
    until: int = LATEST,
    tag: int | None = None,
    nullable_since: int = 0,
) -> Any:
    """Say more about a field than its type: default, versions, tag."""
    return Field(default, since, until, tag, nullable_since)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Struct:
    """A group of fields.  Defaults live on the class, values on the instance."""

    _fields: ClassVar[dict[str, Field]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._fields = {}
        for name in inspect.get_annotations(cls):
            if name.startswith("_"):
                continue
            declared = cls.__dict__.get(name, ...)
            if not isinstance(declared, Field):
                declared = Field(declared)
            cls._fields[name] = declared
            if declared.default is not ...:
                setattr(cls, name, declared.default)

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_plain(getattr(self, n)) == _plain(getattr(other, n)) for n in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={getattr(self, n, '?')!r}" for n in self._fields)
        return f"{type(self).__name__}({values})"


def _plain(value: Any) -> Any:
    """A value in the form that compares: an array may be a list or the shared ``()``."""
    if isinstance(value, list):
        return tuple(value)
    return bytes(value) if isinstance(value, memoryview) else value


class Message(Struct):
    """A request or a response: a struct with an API key and a version range."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    flexible: ClassVar[int]

    def __init_subclass__(
        cls,
        key: int = -1,
        versions: tuple[int, int] = (0, 0),
        flexible: int = LATEST,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.api_key, cls.versions, cls.flexible = key, versions, flexible


@dataclass(frozen=True, slots=True)
class Type:
    """An annotation, taken apart: a leaf, a struct or an array of either."""

    nullable: bool
    primitive: Primitive | None = None
    struct: type[Struct] | None = None
    item: Type | None = None


def types_of(cls: type[Struct]) -> dict[str, Type]:
    """Resolve the annotations of a struct (lazily: they may name later classes)."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: _take_apart(hints[name]) for name in cls._fields}


def _take_apart(hint: Any) -> Type:
    nullable = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        nullable = True
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    if typing.get_origin(hint) is Annotated:
        return Type(nullable, primitive=hint.__metadata__[0])
    if typing.get_origin(hint) is list:
        return Type(nullable, item=_take_apart(typing.get_args(hint)[0]))
    return Type(nullable, struct=hint)
