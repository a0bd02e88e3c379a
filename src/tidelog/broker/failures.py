"""The answer to a request that failed, derived from the schema of its response.

A response with a code of its own carries it there, and is otherwise empty.  One without repeats
what the request names (topics, partitions, groups, resources), each with the code, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.errors import ApiError, ErrorCode, describe
from tidelog.keeper.keeper import KeeperError
from tidelog.wire.schema import LATEST, Message, Struct, Type, types_of

log = logging.getLogger(__name__)

A = TypeVar("A")
S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)

# What a row of a request is known by, and the row of the answer too.
_KEYS = frozenset(
    (
        "name",
        "topic",
        "topic_id",
        "topic_name",
        "partition",
        "partition_index",
        "index",
        "group_id",
        "resource_type",
        "resource_name",
    )
)
_TYPES: dict[type[Struct], dict[str, Type]] = {}


def _types(cls: type[Struct]) -> dict[str, Type]:
    known = _TYPES.get(cls)
    if known is None:
        known = _TYPES[cls] = types_of(cls)
    return known


def code_of(error: Exception, where: str) -> tuple[ErrorCode, str]:
    """The code and the text for a client; what is not expected is logged, as a bug of ours."""
    if isinstance(error, ApiError):
        return error.code, error.message
    if isinstance(error, (KeeperError, OSError)):
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    log.error("%s failed", where, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR, describe(ErrorCode.UNKNOWN_SERVER_ERROR)


def failed_answer(
    response: type[M], message: Message, version: int, code: ErrorCode, text: str | None
) -> M:
    """The answer to a request of which nothing could be done."""
    return _failed(response, message, version, code, text)


def answer_row(row: type[S], asked: A, work: Callable[[A], S]) -> S:
    """The row of an answer for a row of the request; an error is this row's only."""
    try:
        return work(asked)
    except Exception as error:
        return failed_row(row, asked, error)


def failed_row(row: type[S], asked: object, error: Exception) -> S:
    """The row of an answer for what a request asks in ``asked``: a struct, a name or a number."""
    return _failed(row, asked, LATEST, *code_of(error, row.__name__))


def _failed(cls: type[S], asked: object, version: int, code: ErrorCode, text: str | None) -> S:
    own_code = _is_sent(cls, "error_code", version)
    values: dict[str, Any] = {}
    for name, kind in _types(cls).items():
        if name == "error_code":
            values[name] = code
        elif name == "error_message":
            values[name] = text
        elif not own_code and kind.item and kind.item.struct and _codes_in(kind.item.struct):
            if _is_sent(cls, name, version):
                item = kind.item.struct
                values[name] = [_failed(item, row, version, code, text) for row in _rows(asked)]
        elif not _has_default(cls, name, version):
            values[name] = _nothing(kind)
    values.update(_keys(cls, asked))
    return cls(**values)


def _keys(cls: type[Struct], asked: object) -> dict[str, Any]:
    """What names a row in the answer as it does in the request."""
    if isinstance(asked, Message):
        return {}
    key = asked
    if isinstance(asked, Struct):
        keys = {name: getattr(asked, name) for name in asked._fields if name in _KEYS}
        same = {name: value for name, value in keys.items() if name in cls._fields}
        if same or not keys:
            return same
        key = next(iter(keys.values()))
    # In the request it is only a name or a number, or has another word: the first of this type.
    for name, kind in _types(cls).items():
        primitive = kind.primitive
        if primitive and type(primitive.zero) is type(key) and not name.startswith("error_"):
            return {name: key}
    return {}


def _rows(asked: object) -> list[Any]:
    """The part of a request that names what it is about."""
    if isinstance(asked, Struct):
        for name in asked._fields:
            value = getattr(asked, name, None)
            if isinstance(value, list) and value:
                return value
    return []


def _codes_in(cls: type[Struct]) -> bool:
    """Does a row, or what is in it, have a code?"""
    return "error_code" in cls._fields or any(
        kind.item is not None and kind.item.struct is not None and _codes_in(kind.item.struct)
        for kind in _types(cls).values()
    )


def _is_sent(cls: type[Struct], name: str, version: int) -> bool:
    field = cls._fields.get(name)
    return field is not None and (version == LATEST or field.in_version(version))


def _has_default(cls: type[Struct], name: str, version: int) -> bool:
    field = cls._fields[name]
    if field.default is ...:
        return False
    return field.default is not None or version >= field.nullable_since


def _nothing(kind: Type) -> Any:
    """What stands for a value that is not known, and has no default."""
    if kind.item is not None:
        return []
    return None if kind.nullable or kind.primitive is None else kind.primitive.zero
