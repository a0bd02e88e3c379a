"""The text of a query, and of what Spark says about it.  Pure, and quick to import.

What is found out here is found out before Spark is there to ask.  It must therefore never be
wrong, but it may leave something to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from tidelog.client.cluster import no_topic

# Name in a query -> the source's column, and what becomes of it.
METADATA = {
    "_key": ("key", "cast(key as string)"),
    "_partition": ("partition", "partition"),
    "_offset": ("offset", "offset"),
    "_timestamp": ("timestamp", "timestamp"),
    "_headers": ("headers", "headers"),
    "_value": ("value", "cast(value as string)"),
}

_READS = ("select", "with", "from", "values", "table", "describe", "desc", "explain", "show", "(")
_STRING = r"'(?:[^'\\]|\\.)*' | \"(?:[^\"\\]|\\.)*\""
_COMMENT = r"--[^\n]* | /\*.*?\*/"
_SKIPPED = rf"{_STRING} | `[^`]*` | {_COMMENT}"
_TABLE = re.compile(
    rf"({_SKIPPED}) | (\b(?:from|join|table|describe|desc)\s+)([A-Za-z0-9._-]+)",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_IMPLICIT = re.compile(
    r"\* | \|> | `` | \b(?:natural|table)\b | \(\s*from\b"
    r"| \b(?:all|distinct|union|intersect|except|minus)\s+from\b | ^(?!select|with)",
    re.VERBOSE,
)


class QueryError(Exception):
    """What is wrong with a query, in a sentence or two."""


def check(text: str, topics: Collection[str]) -> None:
    """Raise what is wrong with a query, as far as that can be said without Spark."""
    _check_that_it_reads(text)
    missing = missing_topic(text, topics)
    if missing is not None:
        raise no_topic(missing, topics)


def _check_that_it_reads(text: str) -> None:
    bare = re.sub(r"^(?:\s|--[^\n]*\n|/\*.*?\*/)+", "", text, flags=re.DOTALL).lower()
    if not bare:
        raise QueryError("the query is empty")
    if not bare.startswith(_READS):
        word = bare.split()[0].upper()
        raise QueryError(
            f"{word}: topics can only be read here; begin with {', '.join(_READS[:5])}"
        )


# -- topics ---------------------------------------------------------------------


def quote_topics(text: str, names: Collection[str]) -> str:
    """Backquotes around topics whose names SQL would not take as they are."""

    def quoted(match: re.Match[str]) -> str:
        skipped, before, name = match.groups()
        if skipped or name not in names or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            return match[0]
        return f"{before}`{name}`"

    return _TABLE.sub(quoted, text)


def dashed_names(text: str) -> list[str]:
    """Names with dashes that stand where a table stands, without quotes."""
    found = [match[3] for match in _TABLE.finditer(text) if match[3]]
    return [name for name in found if "-" in name]


class _Token(NamedTuple):
    """A word with the dots and dashes in it, a name in backquotes, or a sign."""

    text: str
    kind: str  # word, name, string or sign
    word: str  # in lower case; empty if it is no word


_TOKEN = re.compile(
    rf"(?P<skip>{_COMMENT} | \s+) | (?P<string>{_STRING}) | `(?P<name>(?:[^`]|``)*)`"
    r"| (?P<word>[A-Za-z0-9_][A-Za-z0-9._-]*) | (?P<sign>.)",
    re.VERBOSE | re.DOTALL,
)
# What may come after FROM and JOIN and is no table, and what a parenthesis may follow that is
# no call of a function: in a call, FROM is not followed by a table (trim, extract and others).
_NO_TABLE = frozenset({"select", "values", "lateral", "table", "stream", "with", "from"})
_BEFORE_QUERY = frozenset(
    {"all", "and", "any", "as", "by", "else", "except", "exists", "from", "having", "in"}
    | {"intersect", "join", "lateral", "minus", "not", "on", "or", "select", "some", "then"}
    | {"union", "when", "where", "with"}
)


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        found = match[kind].replace("``", "`") if kind == "name" else match[kind]
        if kind != "skip":
            yield _Token(found, kind, found.lower() if kind == "word" else "")


def missing_topic(text: str, topics: Iterable[str]) -> str | None:
    """A table of the query that surely is no topic; Spark finds those that are not so sure.

    Sure is a name after FROM or JOIN that is no function, no path of Spark's (``parquet.`x` ``)
    and no name that the query itself gives to something.
    """
    known = {name.lower() for name in topics}
    end = _Token("", "sign", "")
    tokens = [end, *_tokens(text), end, end]
    if tokens[1].word in ("describe", "desc", "table") and tokens[3] is end:
        return None if tokens[2].text.lower() in known else tokens[2].text
    if tokens[1].word not in ("select", "with", "from", ""):
        return None
    calls: list[bool] = []  # for each open parenthesis: is it one of a function?
    tables, others = [], set()
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.kind == "sign" and token.text == "(":
            calls.append(before.kind == "name" or before.word not in {"", *_BEFORE_QUERY})
        elif token.kind == "sign" and token.text == ")" and calls:
            calls.pop()
        elif token.kind in ("word", "name"):
            if before.word in ("from", "join") and not (calls and calls[-1]):
                tables.append((token, after))
            else:
                others.add(token.text.lower())
    if "distinct" in others and re.search(r"\bdistinct\s+from\b", text, re.IGNORECASE):
        return None  # it may be a comparison
    given = others if "with" in others else set()
    for token, after in tables:
        simple = after.kind in ("word", "sign", "string") and after.text not in ("(", ".")
        if simple and token.word not in _NO_TABLE and token.text.lower() not in known | given:
            return token.text
    return None


# -- columns --------------------------------------------------------------------


def needed(text: str, fields: Iterable[str]) -> tuple[list[str], list[str]]:
    """The metadata and the fields that a query can mean: what it does not name, it does not need.

    If a column can be meant without being named (``*`` and its like), all are needed.
    """
    lower = _COUNT.sub("", text).lower().strip()
    if _IMPLICIT.search(lower):
        return list(METADATA), list(fields)
    return (
        [name for name in METADATA if name in lower],
        [name for name in fields if name.lower() in lower],
    )


# -- what Spark says ------------------------------------------------------------


def unquoted(table: str) -> str:
    """The topic that Spark calls `` `a` `` or `` `a`.`b` ``."""
    parts = re.findall(r"`((?:[^`]|``)*)`", table)
    return ".".join(part.replace("``", "`") for part in parts)


def reason(error: Exception) -> str:
    """What Spark says, without plans, stacks and codes."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:  # of a Python worker: its last words
        said = re.findall(r"^(?:\w+\.)*[A-Z]\w*: (.+)$", text, re.MULTILINE)
        text = said[-1] if said else text
    text = text.removeprefix("An error occurred while calling ").split("\n\tat ")[0]
    text = re.split(r";\n(?='|[A-Z+])", text)[0]  # the plan of the query
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
    text = re.sub(r" ?SQLSTATE: \w+", "", text)
    text = re.sub(r"; line (\d+) pos (\d+)$", r" (line \1, pos \2)", text)
    text = re.sub(r" ?Set failOnDataLoss to .*$", "", text)
    return text.strip()
