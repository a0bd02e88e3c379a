"""Topic patterns: RE2's syntax, the answers of Python's ``re``, bounded time and memory."""

import os
import random
import re
import resource
from pathlib import Path

import pytest

from tidelog.coordinators.groups.topic_regex import LONGEST, check_pattern, matching
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
        (r".*\beu\b.*", ["clicks-eu", "eu.clicks"], ["europe"]),
        (r"\pL+", ["clicks"], ["clicks2"]),
        ("(" * 1000 + "a" + ")" * 1000, ["a"], [""]),
    ],
)
def test_syntax(pattern, yes, no):
    assert matching(pattern, yes + no) == frozenset(yes)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}"),
        *("\\", "+a", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?>a)", r"\pX"),
        *(r"\x4", r"\x{}", r"\x{110000}", "[[:nope:]]", "(?P<>a)", "(?P<a", "(?", "(?x)a", "[\\"),
        *("a" * (LONGEST + 1), "(((a{100}){100}){100})"),
    ],
)
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(ApiError) as raised:
        check_pattern(pattern)
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "regular expression" in raised.value.message


HOSTILE = (
    "(a|a)*b",
    "(a*)*b",
    "(.*)(.*)(.*)(.*)(.*)(.*)(.*)x",
    "(a|aa)+b",
    "(x+x+)+y",
    # Many states at once, and other ones with every character.
    ".*a.{200}b",
    "((a?b?){300}a{300})",
    "(.*a.{9}){40}",
    "(a|b|ab|ba){1000}",
)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("pattern", HOSTILE)
def test_the_time_for_a_name_is_bounded(pattern):
    """By the sizes of the program and the name: some ms, where others take years."""
    rng = random.Random(SEED)
    names = ["".join(rng.choice("ab") for _ in range(249)) for _ in range(50)]
    matched = matching(pattern, [*names, "a" * 249])
    assert matched < {*names, "a" * 249}


@pytest.mark.parametrize("pattern", [r"(\pL?){300}", r"\pL{1000}", "(.?){1000}", "((.?){30}){30}"])
def test_a_pattern_with_a_large_program_is_refused(pattern):
    """Before the program is made, so that this costs little too."""
    with pytest.raises(ApiError, match="pattern too large"):
        check_pattern(pattern)


def test_nothing_is_kept_of_a_pattern():
    """A thousand members may have a thousand patterns."""
    rng = random.Random(SEED)
    names = ["".join(rng.choice("ab") for _ in range(249)) for _ in range(10)]
    patterns = [f"(a|b|ab|ba){{300}}|x{{{number}}}" for number in range(30)]
    matching(patterns.pop(), names)
    before = resident_bytes()
    for pattern in patterns:
        matching(pattern, names)
    assert resident_bytes() - before < 10 * 1024 * 1024  # 30 MiB if they were kept


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
        theirs = re.compile(pattern)
        names = {"".join(rng.choice("ab.") for _ in range(rng.randint(0, 6))) for _ in range(10)}
        assert matching(pattern, names) == {n for n in names if theirs.fullmatch(n)}, pattern
