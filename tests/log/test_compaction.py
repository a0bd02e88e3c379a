"""Compaction against a model: random logs, segments, codecs, times and rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compaction_model import CompactionModel, run_steps
from support.log import generator

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.mark.parametrize("story", range(40))
def test_random_stories(quick_path: Path, story: int) -> None:
    model = CompactionModel(quick_path / "t-0", generator("compaction", story))
    run_steps(model, 150)
    model.log.close()
