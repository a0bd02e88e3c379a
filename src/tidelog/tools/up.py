"""``tidelog up``: one broker, the embedded keeper, no settings needed."""

from __future__ import annotations

import click

from tidelog.settings import Settings
from tidelog.tools.pairs import pairs
from tidelog.tools.serving import serve


@click.command()
@click.option("--data", default="tidelog-data", show_default=True, help="Where the logs are kept.")
@click.option("--host", default="", help="Listen on this address only; default every interface.")
@click.option(
    "--port", default=9092, show_default=True, type=click.IntRange(0, 65535), help="0: a free port."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any Kafka setting.")
@click.option("--json", "as_json", is_flag=True, help="Say that it is ready as one JSON line.")
@click.option("-v", "--verbose", is_flag=True, help="Say which client does what.")
def up(
    data: str, host: str, port: int, settings: tuple[str, ...], as_json: bool, verbose: bool
) -> None:
    """Start a broker; any Kafka client can use it.

    It keeps its data in --data and runs until Ctrl-C.  Settings carry Kafka's names, for
    example --set num.partitions=3 --set log.retention.hours=24.
    """
    bracketed = f"[{host}]" if ":" in host else host
    values = {
        "log.dirs": data,
        "listeners": f"PLAINTEXT://{bracketed}:{port}",
        "group.initial.rebalance.delay.ms": "0",  # who tries it out has one consumer
        **pairs(settings),
    }
    serve(Settings.of(values), as_json=as_json, verbose=verbose)
