"""``--schema``: columns as in SQL, read without Spark, to report a mistake at once.  No I/O.

    user string, n bigint, price decimal(10,2), at timestamp
    tags array<string>, address struct<street: string, zip: int>, `a name` date not null

These are Spark's own names of types and ways to write them; ``not null`` and comments are
allowed and mean nothing here.  What JSON and CSV have no values for (maps, intervals) is not
known.
"""

from __future__ import annotations

import difflib
import re
from typing import NoReturn

import pyarrow as pa

from tidelog.pipeline.lake.files import LakeError

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_NESTED = ("decimal", "array", "struct")
# What people write who know another database.
_MEANT = {
    "varchar": "string",
    "char": "string",
    "text": "string",
    "str": "string",
    "int64": "bigint",
    "int32": "int",
    "float64": "double",
    "number": "double",
    "bool": "boolean",
    "datetime": "timestamp",
    "time": "timestamp",
    "bytes": "binary",
    "json": "string",
    "list": "array",
    "map": "struct",
    "object": "struct",
}
_TOKEN = re.compile(r"\s*(?:(?P<name>`(?:[^`]|``)+`|\w+)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign>.))")
_MOST_DIGITS = 38


def parse_schema(text: str) -> pa.Schema:
    """The columns; an error with the reason if it cannot be."""
    return pa.schema(_Reader(text).columns())


class _Reader:
    """One pass over the words of a schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match[0].strip() for match in _TOKEN.finditer(text) if match[0].strip()]
        self._next = 0

    def columns(self) -> list[pa.Field]:
        fields = self._fields("")
        if self._peek():
            self._fail(f"what is {self._peek()!r} after {self._before()}?")
        return fields

    def _fields(self, end: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            name = self._name()
            if any(field.name.lower() == name.lower() for field in fields):
                self._fail(f"there are two columns {name}")
            self._skip(":")
            fields.append(pa.field(name, self._type(name)))
            if self._skip("not") and not self._skip("null"):
                self._fail(f"after {name} ... not there must be null")
            if self._skip("comment"):
                self._take()
            if not self._skip(","):
                break
        if end and not self._skip(end):
            self._fail(f"struct<...> is not closed after {self._before()}")
        return fields

    def _name(self) -> str:
        word = self._take()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", word):
            self._fail(f"the name of a column is missing {self._where(word)}")
        return word

    def _type(self, column: str) -> pa.DataType:
        word = self._take()
        if not re.fullmatch(r"\w+", word):
            self._fail(f"column {column} has no type")
        kind = _ALIASES.get(word.lower(), word.lower())
        if kind in _TYPES:
            return _TYPES[kind]
        if kind == "decimal":
            return self._decimal()
        if kind not in _NESTED:
            close = difflib.get_close_matches(kind, [*_TYPES, *_ALIASES, *_NESTED], n=1)
            meant = _MEANT.get(kind) or (close[0] if close else None)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_TYPES)}"
            self._fail(f"there is no type {word} (of column {column}); {hint}")
        if not self._skip("<"):
            example = "array<string>" if kind == "array" else "struct<name: string, n: int>"
            self._fail(f"{kind} of what (column {column})? Write for example {example}")
        if kind == "struct":
            return pa.struct(self._fields(">"))
        inner = self._type(column)
        if not self._skip(">"):
            self._fail(f"array<...> of column {column} is not closed")
        return pa.list_(inner)

    def _decimal(self) -> pa.DataType:
        if not self._skip("("):
            return pa.decimal128(10, 0)  # as in Spark
        numbers = [self._take()]
        if self._skip(","):
            numbers.append(self._take())
        if not self._skip(")") or not all(row.isdigit() for row in numbers):
            self._fail("decimal is written as decimal(10,2)")
        digits, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if not 1 <= digits <= _MOST_DIGITS or scale > digits:
            self._fail(f"decimal({digits},{scale}): at most {_MOST_DIGITS} digits, some after .")
        return pa.decimal128(digits, scale)

    # -- words --

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        word = self._peek()
        self._next += 1
        return word

    def _skip(self, word: str) -> bool:
        found = self._peek().lower() == word
        self._next += found
        return found

    def _before(self) -> str:
        return repr(" ".join(self._tokens[max(0, self._next - 2) : self._next]))

    def _where(self, word: str) -> str:
        return f"where {word!r} is" if word else "at the end"

    def _fail(self, reason: str) -> NoReturn:
        raise LakeError(f'--schema {self._text}: {reason} (write it as "user string, n bigint")')
