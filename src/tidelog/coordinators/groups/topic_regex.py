r"""Regular expressions for topics, in time that grows only with the length of the name.

Clients send them to the coordinator (KIP-848), in the syntax of RE2.  Python's ``re`` would
let one bad pattern, ``(a|a)*b``, stop the broker for years: it tries one way after the other.
This follows all ways at once: the pattern becomes an automaton of states, a name is read
once, and each step from one set of states to the next is remembered.

A pattern must match the whole name.  Groups, flags ``i m s U``, classes, ``\Q..\E`` and
counted repeats up to 1000 are there; what RE2 does not have either (references back, looking
ahead and behind) is refused, and so are ``\b``, ``\B`` and classes of Unicode, which the
names of topics (letters, digits, ``.``, ``_`` and ``-``) have little use for.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from tidelog.errors import ApiError, ErrorCode

LONGEST = 4096  # characters of a pattern
_MOST_STATES = 2_000
_MOST_REPEATS = 1000  # as RE2
_DEEPEST = 200  # groups in groups
_MOST_KEPT = 500_000  # states in remembered steps, all together

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset("\t\n\f\r ")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_NAMED = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "digit": _DIGITS,
    "lower": frozenset(string.ascii_lowercase),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

Test = Callable[[str], bool]  # does a character fit?


@dataclass(frozen=True, slots=True)
class _Char:
    test: Test


@dataclass(frozen=True, slots=True)
class _Edge:
    """The beginning of the name, or its end."""

    end: bool


@dataclass(frozen=True, slots=True)
class _Row:
    parts: list[_Node]


@dataclass(frozen=True, slots=True)
class _Choice:
    ways: list[_Node]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Char | _Edge | _Row | _Choice | _Repeat


@dataclass(slots=True)
class _State:
    """Read a character and go on, or go on without; with an edge only there."""

    test: Test | None = None
    edge: _Edge | None = None
    next: list[int] = field(default_factory=list)


class TopicRegex:
    """See the module.  Raises ApiError (INVALID_REGULAR_EXPRESSION) for a bad pattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > LONGEST:
            message = f"a regular expression of {len(pattern)} characters is over {LONGEST}"
            raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
        self.pattern = pattern
        self._states: list[_State] = []
        node = _Parser(pattern).parse()
        start = self._state()
        self._last = self._add(node, start)
        self._start = self._closure({start}, at_start=True, at_end=False)
        self._empty = self._closure({start}, at_start=True, at_end=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._kept = 0

    def matches(self, name: str) -> bool:
        """Does the pattern match the whole name?"""
        if not name:
            return self._last in self._empty
        now, steps = self._start, self._steps
        for char in name:
            following = steps.get((now, char))
            if following is None:
                following = self._step(now, char)
            now = following
            if not now:
                return False
        return self._last in self._closure(set(now), at_start=False, at_end=True)

    def forget(self) -> None:
        """Let go of the steps that are remembered: there are no more names for now."""
        self._steps.clear()
        self._kept = 0

    def _step(self, now: frozenset[int], char: str) -> frozenset[int]:
        reached: set[int] = set()
        for number in now:
            state = self._states[number]
            if state.test is not None and state.test(char):
                reached.update(state.next)
        found = self._closure(reached, at_start=False, at_end=False)
        self._kept += len(found) + 10
        if self._kept > _MOST_KEPT:
            self._steps.clear()
            self._kept = 0
        self._steps[now, char] = found
        return found

    def _closure(self, found: set[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """Every state that can be reached without reading."""
        todo = list(found)
        while todo:
            state = self._states[todo.pop()]
            if state.test is not None:
                continue
            if state.edge is not None and not (at_end if state.edge.end else at_start):
                continue
            for number in state.next:
                if number not in found:
                    found.add(number)
                    todo.append(number)
        return frozenset(found)

    # -- building ---------------------------------------------------------------

    def _state(self, test: Test | None = None, edge: _Edge | None = None) -> int:
        if len(self._states) >= _MOST_STATES:
            message = f"the regular expression {self.pattern!r} is too large: use fewer repeats"
            raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
        self._states.append(_State(test, edge))
        return len(self._states) - 1

    def _then(self, before: int, test: Test | None = None, edge: _Edge | None = None) -> int:
        number = self._state(test, edge)
        self._states[before].next.append(number)
        return number

    def _add(self, node: _Node, before: int) -> int:
        """Put a part behind a state; the state in which it ends, which reads nothing."""
        if isinstance(node, _Char):
            return self._then(self._then(before, node.test))
        if isinstance(node, _Edge):
            return self._then(self._then(before, None, node))
        if isinstance(node, _Row):
            for part in node.parts:
                before = self._add(part, before)
            return before
        end = self._state()
        if isinstance(node, _Choice):
            for way in node.ways:
                self._states[self._add(way, self._then(before))].next.append(end)
            return end
        for _ in range(node.least):
            before = self._add(node.part, before)
        if node.most is None:
            loop = self._then(before)
            self._states[self._add(node.part, loop)].next.append(loop)
            self._states[loop].next.append(end)
            return end
        self._states[before].next.append(end)
        for _ in range(node.most - node.least):
            before = self._add(node.part, self._then(before))
            self._states[before].next.append(end)
        return end


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.fold = False  # the flag i

    def fail(self, what: str) -> NoReturn:
        message = f"the regular expression {self.pattern!r} is not valid: {what}"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{message} at character {self.at}")

    def parse(self) -> _Node:
        node = self.choice()
        if self.at < len(self.pattern):
            self.fail("a ) that closes nothing")
        return node

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def char(self) -> str:
        if self.at >= len(self.pattern):
            self.fail("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def choice(self) -> _Node:
        fold = self.fold  # flags last until the group ends
        ways = [self.row()]
        while self.take("|"):
            ways.append(self.row())
        self.fold = fold
        return ways[0] if len(ways) == 1 else _Choice(ways)

    def row(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            if self.take("\\Q"):
                end = self.pattern.find("\\E", self.at)
                end = len(self.pattern) if end < 0 else end
                parts += [self.one(char) for char in self.pattern[self.at : end]]
                self.at = min(end + 2, len(self.pattern))
                if parts:
                    parts[-1] = self.repeat(parts[-1])
            elif self.flags():
                continue
            else:
                parts.append(self.repeat(self.atom()))
        return _Row(parts)

    def flags(self) -> bool:
        """``(?i)``: from here to the end of the group."""
        end = self.pattern.find(")", self.at)
        text = self.pattern[self.at + 2 : end]
        if not self.peek("(?") or end < 0 or not text or set(text) - set("imsU-"):
            return False
        self.set_flags(text)
        self.at = end + 1
        return True

    def set_flags(self, text: str) -> None:
        on, _, off = text.partition("-")
        self.fold = (self.fold or "i" in on) and "i" not in off

    def repeat(self, node: _Node) -> _Node:
        found = self.count()
        if found is None:
            return node
        self.take("?")  # lazy: the same names match
        if self.count() is not None:
            self.fail("a repeat of a repeat")
        return _Repeat(node, *found)

    def count(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : max(end, 0)].partition(",")
        # A brace that is no count stands for itself.
        if not self.peek("{") or end < 0 or not _is_count(low) or not (_is_count(high) or not high):
            return None
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            self.fail(f"the repeat {self.pattern[self.at : end + 1]}")
        self.at = end + 1
        return least, most

    def atom(self) -> _Node:
        char = self.char()
        if char == "(":
            return self.group()
        if char == "[":
            return self.set_()
        if char == ".":
            return _Char(lambda c: c != "\n")
        if char in "^$":
            return _Edge(char == "$")
        if char in "*+?":
            self.fail(f"nothing before {char}")
        if char != "\\":
            return self.one(char)
        char = self.char()
        if char in "Az":
            return _Edge(char == "z")
        if char.lower() in _CLASSES:
            chars, wanted = _CLASSES[char.lower()], char.islower()
            return _Char(lambda c: (c in chars) is wanted)
        return self.one(self.escaped(char))

    def one(self, char: str) -> _Node:
        if self.fold and char.lower() != char.upper():
            both = (char.lower(), char.upper())
            return _Char(lambda c: c in both)
        return _Char(lambda c: c == char)

    def escaped(self, char: str) -> str:
        """The character that a backslash and ``char`` stand for."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            text = self.char()
            if text == "{":
                end = self.pattern.find("}", self.at)
                text, self.at = self.pattern[self.at : max(end, 0)], max(end, 0) + 1
            else:
                text += self.char()
            if not text or len(text) > 6 or set(text) - set(string.hexdigits):
                self.fail("a bad \\x")
            code = int(text, 16)
            if code > 0x10FFFF:
                self.fail("a bad \\x")
            return chr(code)
        if char.isalnum() or not char.isascii():
            self.fail(f"\\{char} is not known here")
        return char

    def group(self) -> _Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.fail("too many groups in groups")
        fold = self.fold
        if self.take("?"):
            if self.take("P<") or (self.take("<") and not (self.peek("=") or self.peek("!"))):
                end = self.pattern.find(">", self.at)
                name = self.pattern[self.at : max(end, 0)]
                if not name or set(name) - _WORD:
                    self.fail("a bad name of a group")
                self.at = end + 1
            else:
                end = self.pattern.find(":", self.at)
                text = self.pattern[self.at : max(end, self.at)]
                if end < 0 or set(text) - set("imsU-"):
                    self.fail("RE2 has no such group")
                self.set_flags(text)
                self.at = end + 1
        node = self.choice()
        self.fold = fold
        if not self.take(")"):
            self.fail("a ( that is not closed")
        self.depth -= 1
        return node

    def set_(self) -> _Node:
        negated = self.take("^")
        tests: list[Test] = []
        singles: set[str] = set()
        first = True
        while first or not self.peek("]"):
            first = False
            if self.peek("[:"):
                tests.append(self.named())
                continue
            char = self.char()
            if char == "\\":
                char = self.char()
                if char.lower() in _CLASSES:
                    chars, wanted = _CLASSES[char.lower()], char.islower()
                    tests.append(lambda c, chars=chars, wanted=wanted: (c in chars) is wanted)  # type: ignore[misc]
                    continue
                char = self.escaped(char)
            last = char
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                last = self.char()
                if last == "\\":
                    last = self.escaped(self.char())
                if last < char:
                    self.fail(f"the range {char}-{last}")
            if last == char:
                singles.add(char)
            else:
                tests.append(lambda c, low=char, high=last: low <= c <= high)  # type: ignore[misc]
        self.at += 1
        tests.append(singles.__contains__)

        def fits(char: str) -> bool:
            forms = (char, char.lower(), char.upper()) if fold else (char,)
            return any(test(form) for test in tests for form in forms) is not negated

        fold = self.fold
        return _Char(fits)

    def named(self) -> Test:
        end = self.pattern.find(":]", self.at)
        name = self.pattern[self.at + 2 : max(end, 0)]
        wanted = not name.startswith("^")
        chars = _NAMED.get(name.removeprefix("^"))
        if chars is None:
            self.fail("a class that is not known")
        self.at = end + 2
        return lambda c: (c in chars) is wanted


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
