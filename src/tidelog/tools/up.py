"""``tidelog up``: one broker, the embedded keeper, no settings needed."""

from __future__ import annotations

import click

from tidelog.settings import Settings
from tidelog.tools.pairs import pairs_option
from tidelog.tools.serving import serve


@click.command()
@click.option("--data", default="tidelog-data", show_default=True, help="The data directory.")
@click.option("--host", default="", help="Listen on this address only (default: all interfaces).")
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 picks a free one.",
)
@pairs_option("--set", "settings", help="A broker setting; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when ready.")
@click.option("-v", "--verbose", is_flag=True, help="Log what clients do.")
def up(
    data: str, host: str, port: int, settings: dict[str, str], as_json: bool, verbose: bool
) -> None:
    """Start a broker; any Kafka client can use it.

    Runs until Ctrl-C.  Settings have Kafka's names, for example
    --set num.partitions=3 --set log.retention.hours=24.
    """
    bracketed = f"[{host}]" if ":" in host else host
    values = {
        "log.dirs": data,
        "listeners": f"PLAINTEXT://{bracketed}:{port}",
        "group.initial.rebalance.delay.ms": "0",  # for trying things out with one consumer
        **settings,
    }
    serve(Settings.of(values), as_json=as_json, verbose=verbose)
