"""Every message there is, and random instances of each.

A plain seeded generator rather than hypothesis: there are hundreds of (message,
version) pairs, and drawing through hypothesis costs far more than the code under
test.  ``TIDELOG_SEED=n`` explores further; the seed is in every failure.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tidelog.errors import ErrorCode
from tidelog.wire import messages
from tidelog.wire.schema import (
    BOOL,
    STRING,
    UUID,
    Field,
    Message,
    Primitive,
    Struct,
    Type,
    types_of,
)

# For Produce and Fetch, which are also written by hand.
PRODUCE = range(14)
FETCH = range(4, 19)
ROUNDS = 150
NAMES = (
    "",
    "a",
    "orders",
    "x" * 39,
    "x" * 40,
    "x" * 126,
    "x" * 127,
    "x" * 249,
    "é漢" * 19,
    "🌊" * 39,
)


_types_of = cache(types_of)  # resolving annotations is slow, and random_struct is busy
SEED = int(os.environ.get("TIDELOG_SEED", "1"))

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
# Lengths around the places where a length takes one more byte of varint.
_STRING_LENGTHS = (0, 1, 2, 3, 5, 8, 13, 126, 127, 128)
_ALPHABET = "abcXYZ019._-é漢🌊\0"


def all_messages() -> list[type[Message]]:
    """Every message class, in API order, requests first."""
    found = []
    for info in pkgutil.iter_modules(messages.__path__):
        module = importlib.import_module(f"{messages.__name__}.{info.name}")
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Message)
            and value.__module__ == module.__name__
        ]
    return sorted(found, key=lambda cls: (cls.api_key, cls.__name__))


def all_cases() -> list[tuple[type[Message], int]]:
    """Every message in every version that it declares."""
    return [(cls, v) for cls in all_messages() for v in range(cls.versions[0], cls.versions[1] + 1)]


def all_layouts() -> list[tuple[type[Message], int]]:
    """Of versions that look alike on the wire only the first: the rest compile to the same."""
    first: dict[object, tuple[type[Message], int]] = {}
    for cls, version in all_cases():
        first.setdefault((cls, version >= cls.flexible, _layout(cls, version)), (cls, version))
    return list(first.values())


def _layout(cls: type[Struct], version: int) -> tuple[object, ...]:
    fields = []
    for name, kind in _types_of(cls).items():
        spec = cls._fields[name]
        if spec.in_version(version):
            leaf = kind
            while leaf.item:
                leaf = leaf.item
            inner = _layout(leaf.struct, version) if leaf.struct else leaf.primitive
            fields.append((name, spec.tag, kind.nullable and version >= spec.nullable_since, inner))
    return tuple(fields)


def case_id(cls: type[Message], version: int) -> str:
    return f"{cls.__name__}-v{version}"


def params(cases: list[tuple[type[Message], int]]) -> pytest.MarkDecorator:
    """Parametrize a test over (message, version) pairs, with readable names."""
    return pytest.mark.parametrize(
        ("cls", "version"), [pytest.param(*case, id=case_id(*case)) for case in cases]
    )


def gaps(names: dict[str, tuple[int, ...]]) -> set[str]:
    """Write expected gaps briefly: ``{"ProduceRequest": (0, 1, 2)}``."""
    return {f"{name}-v{version}" for name, versions in names.items() for version in versions}


def generator(what: str, cls: type[Message], version: int) -> random.Random:
    """Random numbers that depend on the test and the seed only, never on test order."""
    return random.Random(f"{SEED} {what} {case_id(cls, version)}")


def instances(what: str, cls: type[Message], version: int, count: int) -> Iterator[Any]:
    """``count`` random messages, valid in ``version``."""
    rng = generator(what, cls, version)
    for _ in range(count):
        yield random_struct(rng, cls, version)


def random_struct(rng: random.Random, cls: type[Struct], version: int, depth: int = 0) -> Any:
    """An instance with a random value in every field of the version.

    Some fields that have a default are left alone, so that tagged fields are both
    sent and not sent; fields outside the version always keep their default.
    """
    values = {}
    for name, kind in _types_of(cls).items():
        spec = cls._fields[name]
        if not spec.in_version(version):
            continue
        if spec.default is not ... and _legal(spec, version) and rng.random() < 0.2:
            continue
        values[name] = _random_field(rng, name, spec, kind, version, depth)
    return cls(**values)


def _legal(spec: Field, version: int) -> bool:
    """Whether the default itself can be sent (null is not, before ``nullable_since``)."""
    return spec.default is not None or version >= spec.nullable_since


def _random_field(
    rng: random.Random, name: str, spec: Field, kind: Type, version: int, depth: int
) -> Any:
    if kind.nullable and version >= spec.nullable_since and rng.random() < 0.2:
        return None
    if name.endswith("error_code"):
        return int(rng.choice(list(ErrorCode)))  # kio refuses codes that do not exist
    if name.endswith("time_ms") and kind.primitive and kind.primitive.name == "int64":
        return rng.choice((-1, 0, rng.randrange(1 << 43)))  # a date, or none
    value = random_value(rng, kind, version, depth)
    if spec.tag is not None and kind.struct and value == kind.struct():
        return None  # other encoders do not send a tagged struct of nothing but defaults
    return value


def random_value(rng: random.Random, kind: Type, version: int, depth: int = 0) -> Any:
    if kind.struct:
        return random_struct(rng, kind.struct, version, depth + 1)
    if kind.item:
        # Shorter with every level; now and then so long that its length takes two bytes.
        count = rng.choice((0, 1, 2, 3)) if depth < 2 else rng.choice((0, 1, 2))
        if kind.item.primitive and rng.random() < 0.05:
            count = 130
        return [random_value(rng, kind.item, version, depth) for _ in range(count)]
    assert kind.primitive
    return _random_primitive(rng, kind.primitive)


def _random_primitive(rng: random.Random, primitive: Primitive) -> Any:
    if primitive is BOOL:
        return rng.random() < 0.5
    if primitive is UUID:
        return rng.choice((bytes(16), rng.randbytes(16)))
    if primitive.name in _BITS:
        limit = 1 << (_BITS[primitive.name] - 1)
        return rng.choice((0, 1, -1, limit - 1, -limit, rng.randrange(-limit, limit)))
    length = rng.choice(_STRING_LENGTHS)
    if primitive is STRING:
        return "".join(rng.choices(_ALPHABET, k=length))
    return rng.randbytes(length)


def damage(rng: random.Random, data: bytes) -> bytes:
    """One to four random injuries: flips, insertions, removals, cuts, repetitions."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 5))
            case 3:
                del out[at : at + rng.randint(1, 5)]
            case 4:
                del out[at:]
            case _:
                out[at:at] = out[at : at + rng.randint(1, 20)]
    return bytes(out)
