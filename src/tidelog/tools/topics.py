"""``tidelog topics``: list, create, describe, alter and delete topics.

With ``--json`` every command prints a list with an object for each topic, whose ``name`` comes
first and whose keys are always all there; ``error`` is null or a sentence.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.admin import Change, Resource
from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.text import plural
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.elect import elect
from tidelog.tools.explain_compaction import explain_compaction
from tidelog.tools.options import bootstrap_option, confirm, connect, json_option, yes_option
from tidelog.tools.output import complain, show_json, show_table, warn
from tidelog.tools.pairs import pairs
from tidelog.tools.reassign import reassign
from tidelog.tools.topics_describe import describe, factor


@click.group(cls=CommandGroup)
def topics() -> None:
    """List, create, describe, alter and delete topics."""


topics.add_command(describe)
topics.add_command(elect)
topics.add_command(explain_compaction)
topics.add_command(reassign)


# -- list -----------------------------------------------------------------------


@topics.command("list")
@bootstrap_option
@json_option
def list_topics(bootstrap: str, as_json: bool) -> None:
    """List the topics."""
    with connect(bootstrap) as cluster:
        found = sorted(cluster.metadata().topics.values(), key=lambda topic: topic.name)
    rows = [(topic.name, len(topic.partitions), factor(topic)) for topic in found]
    if as_json:
        keys = ("name", "partitions", "replication_factor")
        show_json(
            [
                {**dict(zip(keys, row, strict=True)), "internal": topic.internal}
                for row, topic in zip(rows, found, strict=True)
            ]
        )
    elif rows:
        numbers = ("partitions", "replicas")
        show_table(("topic", *numbers), rows, right=numbers)
    else:
        click.echo("no topics; make one with `tidelog topics create NAME`")


# -- create ---------------------------------------------------------------------


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", type=click.IntRange(1), help="Default: the broker's num.partitions.")
@click.option("--replication-factor", type=click.IntRange(1), help="Default: the broker's.")
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="A setting of the topic.")
@click.option(
    "--assignment",
    metavar="0:1,1:2",
    help="The brokers of each partition: commas between partitions, colons between replicas.",
)
@click.option("--if-not-exists", is_flag=True, help="An existing topic is no error.")
@click.option("--validate-only", is_flag=True, help="Only say whether it would work.")
@bootstrap_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    assignment: str | None,
    if_not_exists: bool,
    validate_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create topics."""
    if assignment and (partitions or replication_factor):
        raise click.UsageError(
            "--assignment says how many partitions and replicas there are: "
            "leave --partitions and --replication-factor out"
        )
    brokers = _parse_assignment(assignment) if assignment else []
    settings = pairs(config, "--config")
    wanted = [
        NewTopic(name, partitions or -1, replication_factor or -1, brokers, settings)
        for name in dict.fromkeys(names)
    ]
    for name in names:
        if "." in name or "_" in name:
            warn(
                f"{name}: metrics cannot tell '.' from '_' in names; "
                "use one of the two in all your topics"
            )
    with connect(bootstrap) as cluster:
        results = admin.create_topics(cluster, wanted, validate_only=validate_only)
        report: list[dict[str, Any]] = []
        failed = False
        for name, result in results.items():
            if not isinstance(result, ApiError):
                report.append(_created(name, not validate_only, *result))
            elif if_not_exists and result.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                report.append(_created(name, False))
            else:
                failed = True
                report.append(_created(name, False, error=result.message))
    _show_created(report, validate_only, as_json)
    sys.exit(1 if failed else 0)


def _created(
    name: str,
    created: bool,
    partitions: int | None = None,
    factor: int | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "created": created,
        "partitions": partitions,
        "replication_factor": factor,
        "error": error,
    }


def _show_created(report: list[dict[str, Any]], validate_only: bool, as_json: bool) -> None:
    if as_json:
        show_json(report)
    for row in report:
        if row["error"] is not None:
            complain(row["error"])
        elif as_json:
            continue
        elif row["partitions"] is None:
            click.echo(f"{row['name']} exists already")
        else:
            verb = "could be created" if validate_only else "created"
            shape = f"{plural(row['partitions'], 'partition')}, " + plural(
                row["replication_factor"], "replica"
            )
            click.echo(f"{row['name']} {verb}: {shape}")


def _parse_assignment(text: str) -> list[list[int]]:
    """Kafka's syntax: ``0:1,1:2`` is two partitions with two replicas each."""
    try:
        return [[int(broker) for broker in part.split(":")] for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: write broker numbers, for example 0:1,1:2 for two partitions "
            "with two replicas each",
            param_hint="--assignment",
        ) from None


# -- alter and delete -----------------------------------------------------------


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", type=click.IntRange(1), help="How many there shall be; only more.")
@click.option("--assignment", metavar="0:1,1:2", help="The brokers of the new partitions.")
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="Set a setting.")
@click.option("--delete-config", multiple=True, metavar="KEY", help="Back to the default.")
@click.option("--validate-only", is_flag=True, help="Only say whether it would work.")
@bootstrap_option
@json_option
def alter(
    names: tuple[str, ...],
    partitions: int | None,
    assignment: str | None,
    config: tuple[str, ...],
    delete_config: tuple[str, ...],
    validate_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add partitions to topics, or change their settings."""
    changes: list[tuple[Change, str, str | None]] = [
        (Change.SET, key, value) for key, value in pairs(config, "--config").items()
    ]
    changes += [(Change.DELETE, key, None) for key in delete_config]
    if not changes and partitions is None:
        raise click.UsageError("say what to change: --partitions, --config or --delete-config")
    if assignment and partitions is None:
        raise click.UsageError("--assignment is for new partitions: add --partitions")
    brokers = _parse_assignment(assignment) if assignment else None
    report: list[dict[str, Any]] = []
    with connect(bootstrap) as cluster:
        for name in dict.fromkeys(names):
            error = None
            try:
                if changes:
                    admin.alter_configs(
                        cluster, Resource.TOPIC, name, changes, validate_only=validate_only
                    )
                if partitions is not None:
                    admin.grow_topic(
                        cluster, name, partitions, brokers, validate_only=validate_only
                    )
            except BrokerUnreachable:
                raise
            except ApiError as refused:
                error = refused.message
                complain(error)
            altered = error is None and not validate_only
            report.append({"name": name, "altered": altered, "error": error})
            if error is None and not as_json:
                click.echo(f"{name} could be altered" if validate_only else f"{name} altered")
    if as_json:
        show_json(report)
    sys.exit(1 if any(row["error"] for row in report) else 0)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="A missing topic is no error.")
@yes_option
@bootstrap_option
@json_option
def delete(
    names: tuple[str, ...], if_exists: bool, yes: bool, bootstrap: str, as_json: bool
) -> None:
    """Delete topics with all their records."""
    wanted = list(dict.fromkeys(names))
    missing: list[str] = []
    with connect(bootstrap) as cluster:
        if not yes:
            found = cluster.metadata(wanted).topics.values()
            missing = [topic.name for topic in found if topic.error]
            if missing and not if_exists:
                cluster.topics(wanted)  # raises, with the name
            wanted = [name for name in wanted if name not in missing]
            shown = ", ".join(wanted)
            if wanted:
                confirm(f"Delete {shown} with all records?", yes)
        results = admin.delete_topics(cluster, wanted) if wanted else {}
    failed = False
    report: list[dict[str, Any]] = []
    for name in missing:
        report.append({"name": name, "deleted": False, "error": None})
        if not as_json:
            click.echo(f"there is no topic {name}")
    for name, error in results.items():
        gone = error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error is not None and not (gone and if_exists):
            failed = True
            complain(error.message)
            report.append({"name": name, "deleted": False, "error": error.message})
            continue
        report.append({"name": name, "deleted": error is None, "error": None})
        if not as_json:
            click.echo(f"{name} deleted" if error is None else f"there is no topic {name}")
    if as_json:
        show_json(report)
    sys.exit(1 if failed else 0)
