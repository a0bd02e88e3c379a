"""Reading the values of options, with messages that say what to write.  No I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import overload

from tidelog.pipeline.kafka_settings import ALL_SETTINGS

KAFKA_PREFIX = "kafka."
# Spark adds these by itself, or hands on what was meant for other parts of a query.
_SPARK_OWN = frozenset({"path", "paths", "checkpointlocation", "queryname", "serialization.format"})


class OptionError(ValueError):
    """An option that cannot be; the message names it and says what to write."""


# What people write who know another tool.
_MEANT = {
    "topic": "subscribe",
    "topics": "subscribe",
    "brokers": "kafka.bootstrap.servers",
    "bootstrap": "kafka.bootstrap.servers",
    "offsets": "startingoffsets",
    "group": "kafka.group.id",
}


def unknown_option(name: str, known: Iterable[str]) -> OptionError:
    """There is no such option; perhaps there is one that is spelt nearly so."""
    by_lower = {row.lower(): row for row in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    if _MEANT.get(name.lower()) in by_lower:
        close = [_MEANT[name.lower()]]
    if not close:
        return OptionError(f"{name}: there is no such option")
    right = by_lower[close[0]]
    return OptionError(
        f"{_cased_like(name, right)}: there is no such option; did you mean {right}?"
    )


def _cased_like(name: str, right: str) -> str:
    """Spark hands names on in lower case; where they agree, both are written alike."""
    letters = list(name)
    for at, there, size in difflib.SequenceMatcher(
        None, name, right.lower(), autojunk=False
    ).get_matching_blocks():
        letters[at : at + size] = right[there : there + size]
    return "".join(letters) if name.islower() else name


class Given:
    """The options that were given, by their right names."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        if any(name.lower() == "provider" for name in options):
            raise OptionError(
                "a table cannot use tidelog: Spark forgets the options of a table when it reads "
                "it. Write: create temporary view NAME using tidelog options(...)"
            )
        for name, value in options.items():
            right = names.get(name.lower())
            if right is not None:
                self._values[right] = str(value)
            elif not name.lower().startswith(KAFKA_PREFIX) and name.lower() not in _SPARK_OWN:
                # "bootstrap.servers" is what one writes who has forgotten the prefix.
                with_prefix = [KAFKA_PREFIX + row for row in ALL_SETTINGS]
                if name.lower() in ALL_SETTINGS:
                    raise OptionError(
                        f"{name}: there is no such option; did you mean {KAFKA_PREFIX}{name}?"
                    )
                raise unknown_option(name, [*names.values(), *with_prefix])

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    @overload
    def number(self, name: str, least: int) -> int | None: ...
    @overload
    def number(self, name: str, least: int, default: int) -> int: ...
    def number(self, name: str, least: int, default: int | None = None) -> int | None:
        text = self.get(name)
        return default if text is None else whole_number(name, text, 0, least)

    def truth(self, name: str, default: bool) -> bool:
        return truth(name, self.get(name), default)

    def ms(self, name: str, default: float, least: int) -> float:
        return self.number(name, least, round(default * 1000)) / 1000

    def duration(self, name: str, default: float) -> float:
        text = self.get(name)
        return default if text is None else seconds(name, text)

    def size(self, name: str, least: int = 0) -> int | None:
        text = self.get(name)
        return None if text is None else byte_count(name, text, least)


_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.ASCII)
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.ASCII)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def seconds(name: str, text: str) -> float:
    """A time span as Spark writes it: ``15m``, ``30s``, ``500`` (milliseconds)."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise OptionError(f"{name}={text}: write a time span, for example 30s, 15m or 2h")
    return int(match[1]) * _DURATION_UNITS[match[2] or "ms"]


def byte_count(name: str, text: str, least: int = 0) -> int:
    """A size: ``512m``, ``1g``, ``1048576``."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise OptionError(f"{name}={text}: write a size, for example 512m, 1g or 1048576")
    size = int(match[1]) * _SIZE_UNITS[match[2]]
    if not least <= size < 2**63:
        raise OptionError(f"{name}={text}: write a size that is at least {least}")
    return size


def whole_number(name: str, text: str | None, default: int, least: int = 0) -> int:
    """A whole number, or a sentence that says what it may be."""
    if text is None:
        return default
    try:
        number = int(text.strip().replace("_", ""))
    except ValueError:
        raise OptionError(f"{name}={text}: write a whole number") from None
    if not least <= number < 2**63:
        raise OptionError(f"{name}={text}: write a whole number that is at least {least}")
    return number


def truth(name: str, text: str | None, default: bool) -> bool:
    """``true`` or ``false``."""
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}={text}: write true or false")
    return text.strip().lower() == "true"
