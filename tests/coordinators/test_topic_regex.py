r"""Patterns for topics: the same answers as Python's ``re``, and never a wait."""

import os
import random
import re

import pytest

from tidelog.coordinators.groups.topic_regex import LONGEST, TopicRegex
from tidelog.errors import ApiError, ErrorCode

SEED = os.environ.get("TIDELOG_SEED", "1")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("clicks", ["clicks"], ["click", "clicks2", "Clicks", ""]),
        ("clicks.*", ["clicks", "clicks-eu"], ["my-clicks"]),
        ("^clicks$", ["clicks"], ["clicks2"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        (r"\Aa\z", ["a"], ["aa"]),
        ("(?i)clicks", ["CLICKS", "Clicks"], ["clickz"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        ("((?i)a)b", ["ab", "Ab"], ["aB"]),
        ("(?-i)a", ["a"], ["A"]),
        ("[a-c_.-]+", ["a", "c-b_a."], ["d", ""]),
        ("(?i)[a-c]", ["A", "b"], ["d"]),
        ("[^a-c]", ["d", "-"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["-", "a"], ["b"]),
        ("[[:digit:]x]{2}", ["1x"], ["a1", "1"]),
        ("[[:^digit:]]", ["x"], ["1"]),
        (r"\d+\.\w", ["12.a"], ["12xa"]),
        (r"[\d\-]+\D", ["1-2a"], ["12"]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb*", "a.b"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\x41\x{42}\.", ["AB."], ["ABC"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("a{0,2}", ["", "a", "aa"], ["aaa"]),
        ("a{,2}", ["a{,2}"], ["a"]),  # no count, so the braces stand for themselves
        ("a{x}", ["a{x}"], ["a"]),
        ("(?:ab)*?", ["", "abab"], ["aba"]),
        ("(?P<x>a)(?<y>b)", ["ab"], ["a"]),
        ("a||b", ["a", "", "b"], ["ab"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("(^a|b)*", ["", "a", "ab", "abb"], ["ba"]),
        (".*", ["", "anything"], []),
    ],
)
def test_syntax(pattern, yes, no):
    regex = TopicRegex(pattern)
    assert [name for name in yes + no if regex.matches(name)] == yes


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}"),
        *("\\", "+a", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?>a)", r"\b", r"\pL"),
        *(r"\x4", r"\x{}", r"\x{110000}", "[[:nope:]]", "(?P<>a)", "(?P<a", "(?", "(?x)a", "[\\"),
        *("a" * (LONGEST + 1), "(((a{100}){100}){100})", "(" * 1000 + ")" * 1000),
    ],
)
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(ApiError) as raised:
        TopicRegex(pattern)
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "regular expression" in raised.value.message


def test_a_pattern_that_stops_others_for_years_is_answered_at_once():
    for pattern in ("(a|a)*b", "(a*)*b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)x", "(a|aa)+b"):
        assert not TopicRegex(pattern).matches("a" * 249)
        assert TopicRegex(pattern.replace("b", "a").replace("x", "a")).matches("a" * 249)


def test_what_is_remembered_can_be_forgotten():
    regex = TopicRegex("(.?){200}")
    names = [f"topic-{i}" for i in range(50)]
    assert all(regex.matches(name) for name in names)
    assert regex._kept > 1000
    regex.forget()
    assert not regex._steps
    assert all(regex.matches(name) for name in names)


def random_pattern(rng, depth=0):
    kind = rng.random()
    if depth > 3 or kind < 0.45:
        return rng.choice(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\.", "(?:a|b)", "^", "$"])
    if kind < 0.65:
        return "".join(random_pattern(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    if kind < 0.8:
        ways = [random_pattern(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        return f"({'|'.join(ways)})"
    repeat = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
    return f"(?:{random_pattern(rng, depth + 1)}){repeat}"


def test_like_python():
    rng = random.Random(SEED)
    for _ in range(1500):
        pattern = random_pattern(rng)
        ours, theirs = TopicRegex(pattern), re.compile(pattern)
        for _ in range(10):
            name = "".join(rng.choice("ab.") for _ in range(rng.randint(0, 6)))
            assert ours.matches(name) is bool(theirs.fullmatch(name)), (pattern, name)
