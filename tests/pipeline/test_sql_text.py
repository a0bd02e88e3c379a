"""What is read out of queries, out of Spark's errors and out of JSON; without Spark."""

from __future__ import annotations

import pytest

from tidelog.client.cluster import no_topic
from tidelog.pipeline.json_types import fields_of, read_value, schema_text
from tidelog.pipeline.sql_text import (
    METADATA,
    dashed_names,
    missing_topic,
    needed,
    quote_topics,
    reason,
)

# -- the text of a query --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("select * from a-b", "select * from `a-b`"),
        ("select * from a.b.c x JOIN  2c", "select * from `a.b.c` x JOIN  `2c`"),
        ("select * from plain", "select * from plain"),
        ("select * from `a-b`", "select * from `a-b`"),
        ("select 'from a-b' from a-b", "select 'from a-b' from `a-b`"),
        ("select 1 -- from a-b\nfrom a-b", "select 1 -- from a-b\nfrom `a-b`"),
        ("select 1 /* from a-b */", "select 1 /* from a-b */"),
        ('select "from a-b"', 'select "from a-b"'),
        ("select * from other-one", "select * from other-one"),
        ("describe a-b", "describe `a-b`"),
        ("select 'from' a-b, `from` a-b", "select 'from' a-b, `from` a-b"),
        ("select 'it\\'s from a-b' from a-b", "select 'it\\'s from a-b' from `a-b`"),
        ("select 'from a-b from a-b", "select 'from a-b from a-b"),
        ("explain select 'from a-b', é from a-b", "explain select 'from a-b', é from `a-b`"),
        (
            "/* x */ EXPLAIN with x as (select * from a.b.c) select * from x join a-b",
            "/* x */ EXPLAIN with x as (select * from `a.b.c`) select * from x join `a-b`",
        ),
        (
            "explain formatted -- from a-b\nselect * from a-b",
            "explain formatted -- from a-b\nselect * from `a-b`",
        ),
        ("show columns from a-b", "show columns from `a-b`"),
    ],
)
def test_topics_are_quoted(text: str, quoted: str) -> None:
    assert quote_topics(text, ["a-b", "a.b.c", "2c", "plain"]) == quoted


@pytest.mark.parametrize("before", ["select * from", "explain select * from", "show columns from"])
def test_names_with_dashes_are_found(before: str) -> None:
    assert dashed_names(f"{before} no-topic") == ["no-topic"]


@pytest.mark.parametrize(
    ("text", "metadata", "fields"),
    [
        ("select count(*) from t", [], []),
        ("select COUNT( * ), sum(N) from t where _Partition = 1", ["_partition"], ["n"]),
        ("with x as (select word from t) select * from x", list(METADATA), ["word", "n"]),
        ("from t |> where n > 1", list(METADATA), ["word", "n"]),
        ("select n from t union all from t", list(METADATA), ["word", "n"]),
        ("select n from (table t)", list(METADATA), ["word", "n"]),
        ("describe t", list(METADATA), ["word", "n"]),
        ("select word from t pivot (count(1) for n in (1))", list(METADATA), ["word", "n"]),
        ("select word from t natural join u", list(METADATA), ["word", "n"]),
        ("select identifier('n') from t", list(METADATA), ["word", "n"]),
        ("select avg(words), null from t -- n", [], []),
        ("  select word from t order by _offset", ["_offset"], ["word"]),
        # What sqlglot cannot parse:
        (
            "select window(_timestamp, '1 hour').start, count(*), '*' from t"
            " group by window(_timestamp, '1 hour')",
            ["_timestamp"],
            [],
        ),
        ("select _value:user:ms, N from t", ["_value"], ["n"]),
        (
            "with recursive r(i) max recursion level 5 as (select n from t) select i from r",
            [],
            ["n"],
        ),
        ("select cast(word as void) from t", [], ["word"]),
        ("select cast(1 as void), * from t", list(METADATA), ["word", "n"]),
        ("select cast(1 as void), t.* from t", list(METADATA), ["word", "n"]),
        ("select cast(1 as void) from t natural join u", list(METADATA), ["word", "n"]),
        ("select cast(1 as void) from (table t)", list(METADATA), ["word", "n"]),
        ("select cast(1 as void) from (from t)", list(METADATA), ["word", "n"]),
        ("select cast(1 as void) union all from t", list(METADATA), ["word", "n"]),
        ("select cast(1 as void) from t |> where true", list(METADATA), ["word", "n"]),
        ("select cast(identifier('n') as void) from t", list(METADATA), ["word", "n"]),
        ("from t select cast(1 as void)", list(METADATA), ["word", "n"]),
        ("select 'not closed from t", list(METADATA), ["word", "n"]),
    ],
)
def test_only_what_is_named_is_read(text: str, metadata: list[str], fields: list[str]) -> None:
    assert needed(text, ["word", "n"]) == (metadata, fields)


def test_the_nearest_topic_is_named() -> None:
    names = ["searches", "clicks", "Orders"]
    for wrong, right in (("serches", "searches"), ("click", "clicks"), ("orders", "Orders")):
        assert (
            str(no_topic(wrong, names)) == f"there is no topic {wrong!r}; did you mean {right!r}?"
        )
    assert str(no_topic("xyz", names)).startswith("there is no topic 'xyz'; see `tidelog topics")


@pytest.mark.parametrize(
    "text",
    [
        "select * from nowhere",
        "select * from `nowhere` n where n.x = 1",
        "select 1 from (select 2 from clicks join nowhere on true)",
        "from nowhere",
        "describe nowhere",
        "select 'from clicks' /* from clicks */ from nowhere -- from clicks",
        "with a as (select 1 from nowhere) select * from a",
        "select extract(year from (select max(_timestamp) from nowhere))",
        "select * from a-b where x in (select y from nowhere)",
        "select * FROM\nnowhere",
        "table nowhere",
        "select /*+ BROADCAST(u) */ 1 from clicks u join nowhere",
    ],
)
def test_what_surely_is_no_topic_is_told_before_spark_starts(text: str) -> None:
    assert missing_topic(text, ["clicks", "a-b"]) == "nowhere"


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "select extract(year from _timestamp), trim(both 'x' from keyword) from clicks",
        "select substring(word from 2) from CLICKS",
        "with a as (select 1), b(x) as (select 2) select * from a join b on true",
        "with `a` (select 1) select * from `a`",
        "with recursive r(n) as (select 1 union all select n + 1 from r) select * from r",
        "select * from range(10) join explode(array(1))",
        "select * from parquet.`/data`",
        "select * from values (1), (2)",
        "select n is not distinct from m from clicks",
        "select * from clicks join lateral (select 1)",
        "select '\\' from nowhere', `from nowhere`, \"from nowhere\" from clicks",
        "describe function count",
        "show functions",
        "describe database nowhere",
        "select n from (table nowhere)",
        "explain select * from nowhere",
        "from clicks |> aggregate count(*) group by a |> where true",
        "select * from identifier('clicks')",
        "select /*+ BROADCAST(u) */ u.n from clicks c join `a-b` u on true",
        "select /*+ MERGE(c, u), MAPJOIN(s) */ 1 from clicks c join a-b u join (select 1) s",
        "select 1 from (select /*+ BROADCASTJOIN(s) */ 1 from (select 1 from clicks) s)",
    ],
)
def test_what_may_be_a_table_is_left_to_spark(text: str) -> None:
    assert missing_topic(text, ["clicks", "a-b"]) is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "[A.B] No such thing. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- View\n",
            "No such thing. (line 1, pos 7)",
        ),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "Division by zero."),
        (
            "[PYTHON] Failed: Traceback (most recent call last):\n  File x\n"
            "tidelog.errors.ApiError: the broker is gone\n SQLSTATE: 38000",
            "the broker is gone",
        ),
        ("Job aborted: lost.\n\tat org.apache.X\n\tat Y", "Job aborted: lost."),
    ],
)
def test_what_is_shown_of_an_error(said: str, shown: str) -> None:
    assert reason(Exception(said)) == shown


# -- the columns of JSON --------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (("1", "0.5"), "double"),
        (("9007199254740992", "1.5e3"), "double"),
        (("9007199254740993", "0.5"), "decimal(38,18)"),
        (("0.123456789012345678", "-9223372036854775807"), "decimal(38,18)"),
        (("9007199254740993", "1e-19"), "string"),
        (("9007199254740993", "1e20"), "string"),
        (("9223372036854775808", "0.5"), "string"),
        (("1e300", "0.5", "7"), "double"),
        (("1", "9223372036854775808"), "decimal(38,0)"),
    ],
)
def test_no_whole_number_is_rounded_for_a_fraction(numbers: tuple[str, ...], kind: str) -> None:
    values = [read_value(f'{{"x": [{number}]}}'.encode()) for number in numbers]
    assert fields_of(values) == fields_of(reversed(values)) == {"x": f"array<{kind}>"}


@pytest.mark.parametrize("number", ["1e99999999999999999999", "-1e-99999999999999999999"])
@pytest.mark.parametrize(("other", "kind"), [("7", "double"), ("9007199254740993", "string")])
def test_an_exponent_that_no_decimal_has(number: str, other: str, kind: str) -> None:
    values = [read_value(f'{{"x": {text}}}'.encode()) for text in (number, other)]
    assert fields_of(values) == {"x": kind}


def test_types_of_json() -> None:
    values = [
        {"i": 1, "f": 1, "b": True, "s": "x", "n": None, "big": 2**70, "huge": 10**50},
        {"i": 2, "f": 1.5, "b": None, "s": "y", "mixed": 1, "l": [1, 2.5], "e": [], "o": {}},
        {"mixed": "x", "d": {"a": 1}, "ll": [[1], []], "bm": True},
        {"d": {"b `q`": [{"c": "x"}]}, "bm": 1, "big": 1},
    ]
    assert fields_of(values) == {
        "i": "bigint",
        "f": "double",
        "b": "boolean",
        "s": "string",
        "n": "string",
        "big": "decimal(38,0)",
        "huge": "double",
        "mixed": "string",
        "l": "array<double>",
        "e": "array<string>",
        "o": "string",
        "d": "struct<`a`: bigint, `b ``q```: array<struct<`c`: string>>>",
        "ll": "array<array<bigint>>",
        "bm": "string",
    }
    assert schema_text({"a b": "bigint", "c": "string"}) == "`a b` bigint, `c` string"
