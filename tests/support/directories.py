"""Fixtures for tests that make many files, or sync them often."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog import files


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such a thing, for tests that make many files."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tidelog-test-") as path:
        yield Path(path)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of recoveries: what is tested is what is in the files, not when it gets there."""
    monkeypatch.setattr(files, "fsync", lambda fd: None)
    monkeypatch.setattr(files, "fdatasync", lambda fd: None)
