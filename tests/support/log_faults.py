"""Disk errors: file operations that fail when a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tidelog import files

CALLS = ("open", "pwrite", "write", "fsync", "fdatasync", "replace", "rename")


class FaultyDisk:
    """Counts the calls that write; those that ``fails`` picks are refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.half = False  # writes write half of it instead
        self.fails: Callable[[int, str, Any], bool] = lambda number, name, target: False
        for name in CALLS:
            monkeypatch.setattr(files, name, self._wrap(name, getattr(files, name)))

    def _wrap(self, name: str, real: Any) -> Any:
        def call(target: Any, *rest: Any) -> Any:
            if name == "open" and not rest[0] & (os.O_CREAT | os.O_TRUNC):
                return real(target, *rest)
            self.count += 1
            if not self.fails(self.count - 1, name, target):
                return real(target, *rest)
            if self.half and name in ("write", "pwrite"):
                return real(target, bytes(rest[0])[: len(rest[0]) // 2], *rest[1:])
            raise OSError(errno.ENOSPC, "No space left on device")

        return call
