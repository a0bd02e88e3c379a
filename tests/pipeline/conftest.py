"""One Spark session per worker, the shared broker, and topics with something in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.filling import fill

from tidelog.testing import LocalBroker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session as users get it, with as little as possible to start and to shuffle."""
    import tidelog.pipeline

    session = tidelog.pipeline.session(
        "tests",
        cores=2,
        settings={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
        },
    )
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a streaming query of this test keeps its offsets."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def filled(broker: LocalBroker, topic: str) -> Callable[..., str]:
    """``filled(values, partitions=3)``: this test's topic with these values in it."""

    def make(values: Any, partitions: int = 1, **options: Any) -> str:
        return fill(broker.bootstrap, topic, values, partitions=partitions, **options)

    return make


@pytest.fixture
def read(spark: Any, broker: LocalBroker) -> Callable[..., Any]:
    """``read(topic, startingOffsets=...)``: a batch DataFrame."""

    def make(topic: str, **options: Any) -> Any:
        reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", broker.bootstrap)
        for name, value in options.items():
            text = json.dumps(value) if isinstance(value, dict) else value
            reader = reader.option(name.replace("__", "."), text)
        return reader.option("subscribe", topic).load()

    return make
