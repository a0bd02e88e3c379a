"""Spark looks for modules named ``pyspark_*`` and registers what they call ``DefaultSource``."""

from tidelog.pipeline.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
