"""``tidelog topics``: list, create, describe, alter and delete topics.

With ``--json`` every command prints a list with an object for each topic, whose ``name`` comes
first and whose keys are always all there; ``error`` is null or a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from tidelog.client import admin
from tidelog.client.admin import Change, ConfigResource
from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.text import plural
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.elect import elect
from tidelog.tools.explain_compaction import explain_compaction
from tidelog.tools.options import bootstrap_option, confirm, connect, json_option, yes_option
from tidelog.tools.output import Column, show, show_each, show_results, warn
from tidelog.tools.pairs import pairs_option
from tidelog.tools.reassign import reassign
from tidelog.tools.topics_describe import describe
from tidelog.views import topics as views


@click.group(cls=CommandGroup)
def topics() -> None:
    """List, create, describe, alter and delete topics."""


topics.add_command(describe)
topics.add_command(elect)
topics.add_command(explain_compaction)
topics.add_command(reassign)


# -- list -----------------------------------------------------------------------

_LIST: list[Column[views.TopicSummary]] = [
    Column("topic", lambda row: row.name),
    Column("partitions", lambda row: row.partitions, right=True),
    Column("replicas", lambda row: row.replication_factor, right=True),
]


@topics.command("list")
@bootstrap_option
@json_option
def list_topics(bootstrap: str, as_json: bool) -> None:
    """List the topics."""
    with connect(bootstrap) as cluster:
        found = views.list_topics(cluster)
    show(found, _LIST, as_json, "no topics; create one with `tidelog topics create NAME`")


# -- create ---------------------------------------------------------------------


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", type=click.IntRange(1), help="Default: the broker's num.partitions.")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="Default: the broker's default.replication.factor.",
)
@pairs_option("--config", help="A setting of the topic; repeatable.")
@click.option(
    "--assignment",
    metavar="0:1,1:2",
    help="The brokers of each partition: commas between partitions, colons between replicas.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
@click.option("--validate-only", is_flag=True, help="Check only, change nothing.")
@bootstrap_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: dict[str, str],
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
    wanted = [
        NewTopic(name, partitions or -1, replication_factor or -1, brokers, config)
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
    report: list[CreatedTopic] = []
    for name, result in results.items():
        if not isinstance(result, ApiError):
            report.append(CreatedTopic(name, not validate_only, *result))
        elif if_not_exists and result.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            report.append(CreatedTopic(name))
        else:
            report.append(CreatedTopic(name, error=result.message))
    verb = "could be created" if validate_only else "created"
    show_results(report, as_json, lambda row: row.text(verb))


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of a topic to create."""

    name: str
    created: bool = False
    partitions: int | None = None
    replication_factor: int | None = None
    error: str | None = None

    def text(self, verb: str) -> str:
        if self.partitions is None or self.replication_factor is None:
            return f"{self.name} exists already"
        shape = plural(self.partitions, "partition"), plural(self.replication_factor, "replica")
        return f"{self.name} {verb}: {', '.join(shape)}"


@dataclass(frozen=True, slots=True)
class AlteredTopic:
    """What became of a topic to alter."""

    name: str
    altered: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What became of a topic to delete."""

    name: str
    deleted: bool
    error: str | None = None


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
@click.option(
    "--partitions", type=click.IntRange(1), help="The new number of partitions; it can only grow."
)
@click.option("--assignment", metavar="0:1,1:2", help="The brokers of the new partitions.")
@pairs_option("--config", help="Set a setting; repeatable.")
@click.option(
    "--delete-config",
    multiple=True,
    metavar="KEY",
    help="Reset a setting to its default; repeatable.",
)
@click.option("--validate-only", is_flag=True, help="Check only, change nothing.")
@bootstrap_option
@json_option
def alter(
    names: tuple[str, ...],
    partitions: int | None,
    assignment: str | None,
    config: dict[str, str],
    delete_config: tuple[str, ...],
    validate_only: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add partitions to topics, or change their settings."""
    changes: list[tuple[Change, str, str | None]] = [
        (Change.SET, key, value) for key, value in config.items()
    ]
    changes += [(Change.DELETE, key, None) for key in delete_config]
    if not changes and partitions is None:
        raise click.UsageError("say what to change: --partitions, --config or --delete-config")
    if assignment and partitions is None:
        raise click.UsageError("--assignment is for new partitions: add --partitions")
    brokers = _parse_assignment(assignment) if assignment else None
    report: list[AlteredTopic] = []

    def text(row: AlteredTopic) -> str:
        return f"{row.name} could be altered" if validate_only else f"{row.name} altered"

    with connect(bootstrap) as cluster:
        for name in dict.fromkeys(names):
            try:
                if changes:
                    admin.alter_configs(
                        cluster, ConfigResource.TOPIC, name, changes, validate_only=validate_only
                    )
                if partitions is not None:
                    admin.grow_topic(
                        cluster, name, partitions, brokers, validate_only=validate_only
                    )
                report.append(AlteredTopic(name, not validate_only))
            except BrokerUnreachable:
                if report:  # what is done already
                    show_each(report, as_json, text)
                raise
            except ApiError as error:
                report.append(AlteredTopic(name, False, error.message))
    show_results(report, as_json, text)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Succeed if there is no such topic.")
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
    report = [DeletedTopic(name, False) for name in missing]
    for name, error in results.items():
        gone = error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused = error is not None and not (gone and if_exists)
        report.append(
            DeletedTopic(name, error is None, error.message if error and refused else None)
        )
    show_results(
        report,
        as_json,
        lambda row: f"{row.name} deleted" if row.deleted else f"there is no topic {row.name}",
    )
