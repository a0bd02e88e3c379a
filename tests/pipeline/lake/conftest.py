"""A topic, a destination, and the load between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tidelog.pipeline.lake.load import load
from tidelog.pipeline.lake.options import LoadReport
from tidelog.testing import LocalBroker


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A destination that nothing was loaded into yet."""
    return tmp_path / "lake"


@pytest.fixture
def loads(spark: Any, broker: LocalBroker, lake: Path) -> Callable[..., LoadReport]:
    """``loads(topic, value="json")``: a load into this test's destination."""

    def run(topics: Any = (), to: Path | None = None, **options: Any) -> LoadReport:
        return load(topics, to or lake, bootstrap=broker.bootstrap, spark=spark, **options)

    return run


def plain(lake: Path) -> list[dict[str, Any]]:
    """What a reader sees that knows nothing of the ledger, in the order of offsets."""
    rows = ds.dataset(lake, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
