"""``tidelog topics reassign``: move replicas to other brokers, in three steps.

    tidelog topics reassign --plan > moves.json            which moves; read it, change it
    tidelog topics reassign --run moves.json               begin
    tidelog topics reassign --verify moves.json            how far it is

The file is that of Kafka's own tool (kafka-reassign-partitions), and so is the throttle: --run
sets it on the brokers and topics of the moves, --verify takes it away when nothing moves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.cluster import Cluster, Metadata, check_topic
from tidelog.controller.placement import Key, Replicas, plan
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.text import plural, some
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import Column, complain_of, note, show_json, show_rows, size_text, warn
from tidelog.tools.reassign_throttle import rates_in_force, remove_throttle, set_throttle

_PLAN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@click.option("--plan", "planning", is_flag=True, help="Print a plan for these topics, or for all.")
@click.option("--brokers", metavar="1,2,3", help="With --plan: the brokers to use (default: all).")
@click.option("--run", "to_run", type=_PLAN_FILE, help="Start the reassignments of a plan.")
@click.option("--verify", "to_verify", type=_PLAN_FILE, help="Show how far they are.")
@click.option(
    "--throttle",
    type=click.IntRange(1),
    metavar="BYTES",
    help="With --run: the most bytes per second that each broker copies.",
)
@bootstrap_option
@json_option
def reassign(
    names: tuple[str, ...],
    planning: bool,
    brokers: str | None,
    to_run: Path | None,
    to_verify: Path | None,
    throttle: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Reassign replicas: --plan prints a plan, --run FILE starts it, --verify FILE checks it.

    Use it after adding brokers, or with --brokers before removing some.
    """
    if sum((planning, to_run is not None, to_verify is not None)) != 1:
        raise click.UsageError("give one of --plan, --run FILE and --verify FILE")
    if throttle is not None and to_run is None:
        raise click.UsageError("--throttle goes with --run FILE")
    with connect(bootstrap) as cluster:
        if planning:
            _plan(cluster, names, brokers)
        elif to_run is not None:
            _run(cluster, _moves(to_run), throttle, as_json)
        elif to_verify is not None:
            _verify(cluster, _moves(to_verify), as_json)


def _plan(cluster: Cluster, names: tuple[str, ...], wanted: str | None) -> None:
    under_way = admin.reassignments(cluster)
    metadata = cluster.metadata(list(names) or None)
    for name in names:
        check_topic(metadata.topics[name])
    chosen = sorted(metadata.brokers)
    if wanted is not None:
        try:
            chosen = [int(part) for part in wanted.split(",")]
        except ValueError:
            raise click.BadParameter(f"{wanted!r}: write it as 1,2,3") from None
        unknown = [broker for broker in chosen if broker not in metadata.brokers]
        if unknown:
            message = f"there is no broker {unknown[0]}; there are {sorted(metadata.brokers)}"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    racks = {broker.broker_id: broker.rack for broker in metadata.brokers.values()}
    current = _current(metadata)
    running = {key: move.target for key, move in under_way.items() if key in current}
    current.update(running)  # who comes and who goes are both among the replicas meanwhile
    replicas = {broker for brokers in current.values() for broker in brokers}
    for broker in sorted(replicas - metadata.brokers.keys()):
        warn(
            f"broker {broker} is down: a plan takes away all that it has; start it first, if it "
            "shall stay"
        )
    moves = plan(current, chosen, racks)
    rows = [
        {"topic": name, "partition": index, "replicas": list(replicas)}
        for (name, index), replicas in moves.items()
    ]
    click.echo(json.dumps({"version": 1, "partitions": rows}, indent=2))
    if running:
        where = some([f"{name}-{index}" for name, index in sorted(running)])
        note(f"{plural(len(running), 'move')} under way ({where}), which the plan takes as done")
    note(_summary(current, moves))


def _summary(current: Mapping[Key, Replicas], moves: Mapping[Key, Replicas]) -> str:
    if not moves:
        return "nothing has to move"
    copied = sum(bool(set(replicas) - set(current[key])) for key, replicas in moves.items())
    text = f"{plural(copied, 'partition')} to move"
    if copied < len(moves):
        text += f"; in {len(moves) - copied} only the order changes, that is who leads"
    return text


def _current(metadata: Metadata) -> dict[Key, Replicas]:
    return {
        (topic.name, part.index): part.replicas
        for topic in metadata.topics.values()
        for part in topic.partitions
    }


def _moves(path: Path) -> dict[Key, Replicas]:
    moves = _read(path)
    if not moves:
        note(f"{path} is empty: nothing has to move")
    return moves


def _read(path: Path) -> dict[Key, Replicas]:
    """The moves in a file; SettingError says what is wrong, and where."""
    advice = "make one with `tidelog topics reassign --plan`"
    try:
        found = json.loads(path.read_text())
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not a plan (it is no text); {advice}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SettingError(f"{path} is not a plan (no JSON at {where}); {advice}") from None
    rows = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise SettingError(f'{path} is not a plan (it has no list "partitions"); {advice}')
    version = found.get("version", 1)
    if version != 1:
        raise SettingError(f"{path} is a plan of version {version!r}: only 1 is known; {advice}")
    moves: dict[Key, Replicas] = {}
    for number, row in enumerate(rows, 1):
        if not _is_move(row):
            raise SettingError(
                f"{path} is not a plan; number {number} of its partitions should look like "
                '{"topic": "orders", "partition": 0, "replicas": [1, 2]}'
            )
        key = row["topic"], row["partition"]
        if key in moves:
            raise SettingError(f"{path} has {key[0]}-{key[1]} twice")
        if any(directory != "any" for directory in row.get("log_dirs", ())):
            raise SettingError(
                f"{path}: log_dirs of {key[0]}-{key[1]}: this command moves replicas between "
                "brokers; between the directories of one use Kafka's own tool, "
                "kafka-reassign-partitions.sh"
            )
        moves[key] = tuple(row["replicas"])
    return moves


def _is_move(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("topic"), str):
        return False
    replicas = row.get("replicas")
    return isinstance(replicas, list) and all(
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31
        for number in (row.get("partition"), *replicas)
    )


def _run(cluster: Cluster, moves: dict[Key, Replicas], throttle: int | None, as_json: bool) -> None:
    under_way = admin.reassignments(cluster)  # whose new replicas still fetch
    current = _current(cluster.metadata())
    done = {key for key, to in moves.items() if key not in under_way and current.get(key) == to}
    left = {key: to for key, to in moves.items() if key not in done}
    if throttle is not None:
        have = {
            key: tuple(
                b for b in replicas if key not in under_way or b not in under_way[key].adding
            )
            for key, replicas in current.items()
        }
        set_throttle(cluster, have, left, throttle)
    results = admin.reassign(cluster, left) if left else {}
    failed = {key: error for key, error in results.items() if error is not None}
    if as_json:
        show_json(
            [
                {
                    "topic": name,
                    "partition": i,
                    "done": (name, i) in done,
                    "error": failed[name, i].message if (name, i) in failed else None,
                }
                for name, i in moves
            ]
        )
    else:
        begun = len(results) - len(failed)
        already = f"{len(done)} done already" if done else ""
        if begun or not done:
            already = f"{plural(begun, 'move')} begun" + (f", {already}" if done else "")
        click.echo(already)
        if throttle is not None and left:
            note(f"at most {size_text(throttle)} a second; --verify takes that away at the end")
    if throttle is None and len(left) > len(failed):
        _warn_of_throttle(rates_in_force(cluster, left.keys() - failed.keys()))
    complain_of({key: error.message for key, error in failed.items()})
    if failed:
        raise click.exceptions.Exit(1)


def _warn_of_throttle(rates: list[int]) -> None:
    if rates:
        limit = " to ".join(dict.fromkeys(map(size_text, (rates[0], rates[-1]))))
        warn(
            f"an earlier --throttle still holds: at most {limit} a second; --run with --throttle "
            "changes it, --verify takes it away when nothing moves any more"
        )


@dataclass(frozen=True, slots=True)
class ReassignmentState:
    """How far the reassignment of a partition is."""

    topic: str
    partition: int
    state: str
    replicas: Replicas


_COLUMNS: list[Column[ReassignmentState]] = [
    Column("topic", lambda row: row.topic),
    Column("partition", lambda row: row.partition, right=True),
    Column("replicas", lambda row: ",".join(map(str, row.replicas))),
    Column("state", lambda row: row.state),
]


def _verify(cluster: Cluster, moves: dict[Key, Replicas], as_json: bool) -> None:
    under_way = admin.reassignments(cluster)
    current = _current(cluster.metadata())
    topics = {name for name, _ in current}
    rows: list[ReassignmentState] = []
    for key, wanted in moves.items():
        if key in under_way:
            state = "moving"
        elif current.get(key) == wanted:
            state = "done"
        else:
            state = "not begun" if key in current else "no such partition"
        rows.append(ReassignmentState(*key, state, wanted))
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, _COLUMNS)
    if not under_way and remove_throttle(cluster, sorted({name for name, _ in moves} & topics)):
        note("nothing moves any more: the throttle is taken away")
    if any(row.state != "done" for row in rows):
        raise click.exceptions.Exit(1)
