"""What the commands of ``tidelog load`` share."""

from __future__ import annotations

import importlib.util

import click

to_option = click.option(
    "--to", required=True, metavar="DIR", help="The folder of the files; it is created if needed."
)


def need_spark() -> None:
    """A sentence instead of a stack trace, where the extra is not installed."""
    from tidelog.java import NotInstalled, spark_extra

    needed = ("pyspark", "pyarrow", "numba", "sqlglot")
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise NotInstalled(f"tidelog load needs PySpark and sqlglot: {spark_extra()}")
