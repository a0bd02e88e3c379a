"""``tidelog server``: a broker from a properties file."""

from __future__ import annotations

import pathlib

import click

from tidelog.settings import Settings, read_properties
from tidelog.tools.pairs import pairs_option
from tidelog.tools.serving import serve


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="A server.properties file.",
)
@pairs_option("--set", "settings", help="A setting that overrides the file; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when ready.")
@click.option("-v", "--verbose", is_flag=True, help="Log what clients do.")
def server(
    config: pathlib.Path | None, settings: dict[str, str], as_json: bool, verbose: bool
) -> None:
    """Start a broker from a properties file, as Kafka's own server does."""
    values = read_properties(config.read_text()) if config else {}
    values.update(settings)
    serve(Settings.of(values), as_json=as_json, verbose=verbose)
