"""``name=value`` options.  Apart from the others, so that ``tidelog up`` starts without them."""

from __future__ import annotations

from collections.abc import Iterable

import click


def pairs(values: Iterable[str], option: str = "--set") -> dict[str, str]:
    """``name=value`` options as a dict."""
    result = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r}: write it as name=value", param_hint=option)
        result[name.strip()] = value.strip()
    return result
