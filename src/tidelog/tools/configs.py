"""``tidelog configs``: describe and alter the settings of topics, brokers and groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.admin import DEFAULT_SOURCE, Change, ConfigEntry, ConfigResource
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import Column, show_json, show_rows
from tidelog.tools.pairs import pairs_option

_topic_option = click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="A topic; repeatable."
)
_broker_option = click.option(
    "--broker",
    "brokers",
    multiple=True,
    type=click.IntRange(0),
    metavar="ID",
    help="A broker; repeatable.",
)
_all_brokers_option = click.option(
    "--all-brokers", is_flag=True, help="The cluster-wide settings of brokers."
)
_group_option = click.option(
    "--group", "groups", multiple=True, metavar="ID", help="A consumer group; repeatable."
)


@click.group(cls=CommandGroup)
def configs() -> None:
    """Describe and alter settings of topics, brokers and groups."""


def _resources(
    topics: tuple[str, ...], brokers: tuple[int, ...], all_brokers: bool, groups: tuple[str, ...]
) -> list[tuple[ConfigResource, str]]:
    chosen = [(ConfigResource.TOPIC, name) for name in topics]
    chosen += [(ConfigResource.BROKER, str(number)) for number in brokers]
    if all_brokers:
        chosen.append((ConfigResource.BROKER, ""))
    chosen += [(ConfigResource.GROUP, group_id) for group_id in groups]
    if not chosen:
        message = "say whose settings: --topic NAME, --broker ID, --all-brokers or --group ID"
        raise click.UsageError(message)
    return chosen


def _title(kind: ConfigResource, name: str) -> str:
    if kind is not ConfigResource.BROKER:
        return f"{kind.name.lower()} {name}"
    return f"broker {name}" if name else "all brokers"


@configs.command()
@_topic_option
@_broker_option
@_all_brokers_option
@_group_option
@click.option("--all", "show_all", is_flag=True, help="Show defaults as well.")
@click.option("--docs", is_flag=True, help="Show what each setting means.")
@bootstrap_option
@json_option
def describe(
    topics: tuple[str, ...],
    brokers: tuple[int, ...],
    all_brokers: bool,
    groups: tuple[str, ...],
    show_all: bool,
    docs: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show the settings that differ from their defaults, and where each comes from."""
    chosen = _resources(topics, brokers, all_brokers, groups)
    report: list[dict[str, Any]] = []
    with connect(bootstrap) as cluster:
        for i, (kind, name) in enumerate(chosen):
            entries = admin.describe_configs(cluster, kind, name, documentation=docs)
            shown = [entry for entry in entries if show_all or entry.source != DEFAULT_SOURCE]
            report.append(
                {
                    "resource": kind.name.lower(),
                    "name": name,
                    "config": [_as_dict(entry, docs) for entry in shown],
                }
            )
            if not as_json:
                if i:
                    click.echo()
                _show(_title(kind, name), shown, docs, show_all)
    if as_json:
        show_json(report)


def _as_dict(entry: ConfigEntry, docs: bool) -> dict[str, Any]:
    result = asdict(entry)
    if not docs:
        del result["documentation"]
    return result


def _show(title: str, entries: list[ConfigEntry], docs: bool, show_all: bool) -> None:
    click.secho(title, bold=True)
    if not entries:
        click.echo("  nothing is set" + ("" if show_all else "; --all shows the defaults too"))
        return
    columns: list[Column[ConfigEntry]] = [
        Column("setting", lambda row: row.name),
        Column("value", lambda row: row.value),
        Column("source", lambda row: row.source + (" (read-only)" if row.read_only else "")),
        Column("type", lambda row: row.type),
    ]
    if docs:
        columns.append(Column("meaning", lambda row: row.documentation))
    show_rows(entries, columns, indent="  ")


@configs.command()
@_topic_option
@_broker_option
@_all_brokers_option
@_group_option
@pairs_option("--set", "sets", help="Set a setting.")
@click.option(
    "--delete", "deletes", multiple=True, metavar="KEY", help="Reset a setting to its default."
)
@pairs_option("--append", "appends", help="Append to a list.")
@pairs_option("--subtract", "subtracts", help="Remove from a list.")
@click.option("--validate-only", is_flag=True, help="Check only, change nothing.")
@bootstrap_option
@json_option
def alter(
    topics: tuple[str, ...],
    brokers: tuple[int, ...],
    all_brokers: bool,
    groups: tuple[str, ...],
    sets: dict[str, str],
    deletes: tuple[str, ...],
    appends: dict[str, str],
    subtracts: dict[str, str],
    validate_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change settings; of each topic or broker all changes are made, or none."""
    chosen = _resources(topics, brokers, all_brokers, groups)
    changes: list[tuple[Change, str, str | None]] = [(Change.DELETE, key, None) for key in deletes]
    changes += [(Change.SET, key, value) for key, value in sets.items()]
    changes += [(Change.APPEND, key, value) for key, value in appends.items()]
    changes += [(Change.SUBTRACT, key, value) for key, value in subtracts.items()]
    if not changes:
        raise click.UsageError("say what to change: --set, --delete, --append or --subtract")
    with connect(bootstrap) as cluster:
        for kind, name in chosen:
            admin.alter_configs(cluster, kind, name, changes, validate_only=validate_only)
            if not as_json:
                verb = "could be altered" if validate_only else "altered"
                click.echo(f"{_title(kind, name)} {verb}")
    if as_json:
        show_json(
            [
                {"resource": kind.name.lower(), "name": name, "altered": not validate_only}
                for kind, name in chosen
            ]
        )
