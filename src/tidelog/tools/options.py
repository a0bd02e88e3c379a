"""Options that many commands share, and the way from an option to a cluster."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tidelog.client.cluster import Cluster
from tidelog.client.connection import CannotConnect
from tidelog.client.offsets import OffsetError, parse, parse_position
from tidelog.errors import SettingError

CLUSTER = Path("tidelog-cluster")  # where `tidelog cluster` keeps one, if nothing is said


def _nearest_brokers() -> str:
    """Those of the cluster in this folder, if it runs; else where `tidelog up` is by default.

    All of them: whichever is killed, the others answer.
    """
    if (CLUSTER / "cluster.json").exists():
        from tidelog.tools.cluster_folder import ClusterFolder  # seldom needed, and slow

        with contextlib.suppress(SettingError):
            found = ClusterFolder.load(CLUSTER)
            if found is not None and any(map(found.runs, found.brokers.values())):
                return found.bootstrap
    return "localhost:9092"


bootstrap_option = click.option(
    "-b",
    "--bootstrap",
    envvar="TIDELOG_BOOTSTRAP",
    default=_nearest_brokers,
    show_default=f"the cluster in ./{CLUSTER}, or localhost:9092",
    metavar="HOST:PORT,...",
    help="Addresses of brokers; also $TIDELOG_BOOTSTRAP.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


class Choice(click.Choice[str]):
    """A choice that also takes other names for the same things; help shows only the first."""

    def __init__(self, names: Sequence[str], aliases: Mapping[str, str]) -> None:
        super().__init__(names)
        self._aliases = aliases

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._aliases.get(str(value).lower(), value), param, ctx)


@contextlib.contextmanager
def connect(bootstrap: str, **options: Any) -> Iterator[Cluster]:
    """A cluster to ask; if no broker can be reached, the error says what to do."""
    with advice(), Cluster(bootstrap, **options) as cluster:
        yield cluster


@contextlib.contextmanager
def advice() -> Iterator[None]:
    """If no broker can be reached, the error says what to do."""
    try:
        yield
    except CannotConnect as error:
        start = "tidelog cluster up" if (CLUSTER / "cluster.json").exists() else "tidelog up"
        raise error.advised("-b", start) from error


def confirm(question: str, yes: bool) -> None:
    """Ask a person.  Without one (no terminal) the answer must be given as ``--yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: add --yes to do it without being asked")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(1)


def unescape(text: str) -> str:
    r"""``\t``, ``\n``, ``\0`` and ``\\`` as a shell user writes them; the rest stays."""
    result, chars = "", iter(text)
    names = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    for char in chars:
        if char != "\\":
            result += char
            continue
        following = next(chars, "")
        result += names.get(following, "\\" + following)
    return result


Value = TypeVar("Value")


def _parsed(parse: Callable[[str], Value]) -> Callable[[Any, Any, str | None], Value | None]:
    """A callback for an option whose value is in the language of client/offsets.py."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Value | None:
        try:
            return None if text is None else parse(text)
        except OffsetError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


offset_value = _parsed(parse_position)  # an offset
offset_or_range_value = _parsed(parse)  # or a range ``a:b``
