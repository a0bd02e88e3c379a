"""The text of a query, before there is a Spark to parse it, and of Spark's error messages.

``sqlglot`` tokenizes and parses the query in Spark's dialect.  It does not know all of Spark's
grammar: what it cannot parse is left to Spark, so nothing here rejects a query that Spark would
run.  It is imported when a query is there: it takes a third of a second.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from tidelog.client.cluster import no_topic
from tidelog.java import NotInstalled, spark_extra

if TYPE_CHECKING:
    from sqlglot import Token
    from sqlglot.expressions import Expr

# Name in a query -> the column of the source, and the expression over it.
METADATA = {
    "_key": ("key", "cast(key as string)"),
    "_partition": ("partition", "partition"),
    "_offset": ("offset", "offset"),
    "_timestamp": ("timestamp", "timestamp"),
    "_headers": ("headers", "headers"),
    "_value": ("value", "cast(value as string)"),
}

_READS = ("select", "with", "from", "values", "table", "describe", "desc", "explain", "show", "(")
_BEFORE_TABLE = frozenset({"from", "join", "table", "describe", "desc"})
_BEFORE_QUERY = frozenset({"(", "all", "distinct", "union", "intersect", "except", "minus"})
# With these, a query may use columns that it does not name.
_IMPLICIT = frozenset({"*", "|>", "natural", "table", "stream", "identifier", "pivot", "unpivot"})
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_TOPIC = re.compile("[A-Za-z0-9._-]+")


class QueryError(Exception):
    """What is wrong with a query, in a sentence or two."""


def tokens(text: str) -> list[Token]:
    """The tokens of SQL, without comments; ``SqlglotError`` if a quote is not closed."""
    from sqlglot.dialects.spark import Spark

    # After a word that begins a command (EXPLAIN, SHOW, CALL), sqlglot makes one string of all
    # the rest: so that is not the first word.
    before = "( "
    found = Spark().tokenize(before + text)[1:]
    for token in found:
        token.start -= len(before)
        token.end -= len(before)
    return found


def _words(text: str, found: Iterable[Token]) -> list[str]:
    """The tokens as they are in the text, with their quotes if they have any; in lower case."""
    return [text[token.start : token.end + 1].lower() for token in found]


def _parsed(text: str) -> Expr | None:
    """The syntax tree; None for what sqlglot cannot parse, and for more than one statement."""
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import SqlglotError

    logger = logging.getLogger("sqlglot")  # it warns of commands that it passes over
    disabled, logger.disabled = logger.disabled, True
    try:
        (tree,) = Spark().parse(text)
    except (SqlglotError, ValueError, RecursionError):
        return None
    finally:
        logger.disabled = disabled
    return tree


def check(text: str, topics: Collection[str]) -> None:
    """Raise what is wrong with a query, as far as that is certain without Spark."""
    if importlib.util.find_spec("sqlglot") is None:
        raise NotInstalled(f"this needs sqlglot and PySpark: {spark_extra()}")
    from sqlglot.errors import SqlglotError

    try:
        found = tokens(text)
    except SqlglotError:
        return
    if not found:
        raise QueryError("the query is empty")
    first = found[0].text
    if first.lower() not in _READS:
        raise QueryError(
            f"{first.upper()}: topics can only be read here; begin with {', '.join(_READS[:5])}"
        )
    missing = missing_topic(text, topics)
    if missing is not None:
        raise no_topic(missing, topics)


# -- topics ---------------------------------------------------------------------


def _unquoted_tables(text: str) -> Iterator[tuple[int, str]]:
    """Names where a table may stand, without quotes, and where they begin.

    Names of topics may have dots and dashes, which SQL would take for operators.
    """
    from sqlglot.errors import SqlglotError

    found = []
    with contextlib.suppress(SqlglotError):
        found = tokens(text)
    for word, token in zip(_words(text, found), found[1:], strict=False):
        if word in _BEFORE_TABLE and (match := _TOPIC.match(text, token.start)):
            yield token.start, match[0]


def _quote(text: str, wanted: Callable[[str], bool]) -> str:
    """Backquotes around names of tables that are no plain identifiers."""
    for start, name in reversed(list(_unquoted_tables(text))):
        end = start + len(name)
        # Not a path of Spark's: parquet.`/data`
        if not _PLAIN.fullmatch(name) and wanted(name) and text[end : end + 1] != "`":
            text = f"{text[:start]}`{name}`{text[end:]}"
    return text


def quote_topics(text: str, names: Collection[str]) -> str:
    """Backquotes around topics whose names SQL would not take as they are."""
    return _quote(text, lambda name: name in names)


def dashed_names(text: str) -> list[str]:
    """Names with dashes that stand where a table stands, without quotes."""
    return [name for _, name in _unquoted_tables(text) if "-" in name]


def missing_topic(text: str, topics: Iterable[str]) -> str | None:
    """A table of the query that is certainly no topic; Spark finds the less certain ones.

    Certain is a single name that is no function and no name that the query itself defines.
    """
    from sqlglot import exp

    known = {name.lower() for name in topics}
    tree = _parsed(_quote(text, lambda _: True))
    if isinstance(tree, exp.Alias):  # TABLE name, which sqlglot takes for an alias
        return _after_table(text, known)
    if not isinstance(tree, exp.Query | exp.Describe) or tree.args.get("kind"):
        return None
    known |= {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if table.find_ancestor(exp.Hint):  # an alias
            continue
        simple = isinstance(table.this, exp.Identifier) and not table.db
        if simple and not _is_keyword(table) and table.name.lower() not in known:
            return table.name
    return None


def _after_table(text: str, known: Collection[str]) -> str | None:
    names = [token.text for token in tokens(_quote(text, lambda _: True))]
    if len(names) != 2 or names[0].lower() != "table" or names[1].lower() in known:
        return None
    return names[1]


def _is_keyword(table: Expr) -> bool:
    """``from (table t)`` and ``from stream t``, which sqlglot takes for a table and its alias."""
    return not table.this.args.get("quoted") and table.name.lower() in ("table", "stream")


# -- columns --------------------------------------------------------------------


def needed(text: str, fields: Iterable[str]) -> tuple[list[str], list[str]]:
    """The metadata and the fields that a query can refer to: those that it names.

    If a column can be used without being named (``*`` and its like), all are needed.
    """
    from sqlglot.errors import SqlglotError

    try:
        found = tokens(text)
    except SqlglotError:
        return list(METADATA), list(fields)
    tree = _parsed(text)
    if _implicit_words(_words(text, found)) if tree is None else _implicit(tree):
        return list(METADATA), list(fields)
    words = {word for token in found for word in (token.text, *token.text.split())}
    words = {word.lower() for word in words}
    return (
        [name for name in METADATA if name in words],
        [name for name in fields if name.lower() in words],
    )


def _implicit_words(words: list[str]) -> bool:
    """Whether a query that sqlglot cannot parse may use columns that it does not name."""
    if words[:1] not in (["select"], ["with"]):
        return True
    for index, word in enumerate(words):
        counted = word == "*" and words[index - 2 : index + 2] == ["count", "(", "*", ")"]
        whole = word == "from" and words[index - 1] in _BEFORE_QUERY  # no SELECT: every column
        if (word in _IMPLICIT and not counted) or whole:
            return True
    return False


def _implicit(tree: Expr) -> bool:
    """Whether a query may use columns that it does not name; True if that is unknown."""
    from sqlglot import exp

    if not isinstance(tree, exp.Query):
        return True
    return (
        any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star))
        or any(join.method.upper() == "NATURAL" for join in tree.find_all(exp.Join))
        or any(_is_keyword(table) for table in tree.find_all(exp.Table))
        # identifier('name'), and PIVOT, which groups by every column that it does not name
        or any(call.name.lower() == "identifier" for call in tree.find_all(exp.Anonymous))
        or tree.find(exp.Pivot) is not None
    )


# -- Spark's messages -----------------------------------------------------------


def unquoted(table: str) -> str:
    """The topic that Spark calls `` `a` `` or `` `a`.`b` ``."""
    return ".".join(token.text for token in tokens(table) if token.text != ".")


def reason(error: Exception) -> str:
    """Spark's message, without plans, stacks and codes."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:  # of a Python worker: its last line
        errors = re.findall(r"^(?:\w+\.)*[A-Z]\w*: (.+)$", text, re.MULTILINE)
        text = errors[-1] if errors else text
    text = text.removeprefix("An error occurred while calling ").split("\n\tat ")[0]
    text = re.split(r";\n(?='|[A-Z+])", text)[0]  # the plan of the query
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
    text = re.sub(r" ?SQLSTATE: \w+", "", text)
    text = re.sub(r"; line (\d+) pos (\d+)$", r" (line \1, pos \2)", text)
    text = re.sub(r" ?Set failOnDataLoss to .*$", "", text)
    return text.strip()
