"""``name=value`` options.  Apart from the others, so that ``tidelog up`` starts without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def pairs_option(*names: str, help: str, metavar: str = "KEY=VALUE") -> Callable[[Any], Any]:  # noqa: A002
    """An option that may be repeated, whose values become a dict."""
    return click.option(*names, multiple=True, metavar=metavar, callback=_pairs, help=help)


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    result = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r}: write it as name=value", ctx, param)
        result[name.strip()] = value.strip()
    return result
