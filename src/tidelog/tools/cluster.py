"""``tidelog cluster``: several brokers on this machine, to try things out; and any cluster's
brokers described."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tidelog.client.cluster import Cluster
from tidelog.errors import ApiError, SettingError
from tidelog.text import plural, some
from tidelog.tools.cluster_folder import BrokerEntry, ClusterFolder, locked
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.options import CLUSTER, bootstrap_option, connect, json_option
from tidelog.tools.output import Column, note, show_json, show_rows, size_text
from tidelog.tools.pairs import pairs_option
from tidelog.tools.stop_signal import StopSignal
from tidelog.views.cluster import BrokerSummary, describe_cluster

PORTS = click.IntRange(1, 65_500)  # room for those that follow

data_option = click.option(
    "--data",
    default=CLUSTER,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the cluster.",
)


@click.group(cls=CommandGroup)
def cluster() -> None:
    """A cluster on this machine: ZooKeeper and brokers, each a process of its own.

    Start one with `tidelog cluster up`, kill a broker with `tidelog cluster kill 2`, and check
    that nothing is lost.
    """


@cluster.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, 50),
    help="The number of brokers (default: 3); a larger number adds brokers to a cluster.",
)
@data_option
@click.option(
    "--port", type=PORTS, help="The port of the first broker (default: 9092); the others follow."
)
@click.option("--zookeeper-port", type=PORTS, help="The port of ZooKeeper (default: 2181).")
@pairs_option("--set", "settings", help="A setting of every broker; repeatable.")
@json_option
def up(
    brokers: int | None,
    data: Path,
    port: int | None,
    zookeeper_port: int | None,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Start a cluster, or those of its processes that are down.

    If the folder has a cluster already, its brokers start again with their data; with a larger
    --brokers new ones join them.
    """
    wanted = brokers or 3, port or 9092, zookeeper_port or 2181, settings
    if ClusterFolder.load(data) is None:
        ClusterFolder.check(*wanted)
        data.mkdir(parents=True, exist_ok=True)  # the lock is in it
    with locked(data):
        found = ClusterFolder.load(data)
        new: list[BrokerEntry] = []
        if found is None:
            found = ClusterFolder.plan(data, *wanted)
        else:
            others = {port, zookeeper_port} - {None, found.first_port, found.zookeeper_port}
            if settings or others:
                raise SettingError(
                    f"{data} has a cluster already: change its settings and ports in "
                    f"{data}/broker-N.properties, and leave --set, --port and --zookeeper-port out"
                )
            new = _add(found, brokers)
        _start(found)
    if as_json:
        show_json(_status(found))
        return
    click.secho(f"{plural(len(found.brokers), 'broker')} ready: ", nl=False)
    click.secho(found.bootstrap, bold=True, fg="green")
    if new:
        ids = ", ".join(str(broker.broker_id) for broker in new)
        click.echo(
            f"  new: {ids}; `tidelog topics reassign --plan` gives them a share of old topics"
        )
        if (factor := found.default_replicas) < min(3, len(found.brokers)):
            click.echo(
                f"  new topics get {plural(factor, 'replica')} as before: give more with "
                "--replication-factor, or change default.replication.factor and "
                f"min.insync.replicas in {data}/broker-N.properties and start them again"
            )
    click.echo(f"  everything is in {data}; `tidelog cluster down` stops it")
    where = "" if data == CLUSTER else f" -b {found.bootstrap}"
    click.echo(f"  try: tidelog topics list{where}")


def _add(found: ClusterFolder, wanted: int | None) -> list[BrokerEntry]:
    there = len(found.brokers)
    if wanted is None or wanted == there:
        return []
    if wanted < there:
        raise SettingError(
            f"{found.data} has {plural(there, 'broker')}, and `up` takes none away: leave "
            "--brokers out, and see `tidelog topics reassign --plan --brokers` and "
            "`tidelog cluster stop`"
        )
    return found.add(wanted)


def _start(found: ClusterFolder) -> None:
    """Start what is down; if one process cannot be started, none of them is left running."""
    had_zookeeper = found.zookeeper_runs
    down = [broker for broker in found.brokers.values() if not found.runs(broker)]
    with StopSignal(signal.SIGINT, raising=True) as stop:
        try:
            found.start_zookeeper()
            found.start(down)
        except BaseException as error:
            with stop.cleaning_up():
                found.stop(down)
                if not had_zookeeper:
                    found.stop_zookeeper()
            if isinstance(error, SettingError):
                raise SettingError(f"{error}\nwhat was started is stopped again") from error
            raise


@cluster.command()
@data_option
@json_option
def status(data: Path, as_json: bool) -> None:
    """Show which brokers are running, and which one is the controller."""
    found = _status(_existing(data))
    if as_json:
        show_json(found)
        return
    keeper = found.zookeeper
    words = "is down; `tidelog cluster up` starts what is down"
    if keeper.running:
        words = f"runs, process {keeper.pid}"
    click.echo(f"ZooKeeper on port {keeper.port} {words}")
    columns: list[Column[BrokerStatus]] = [
        Column("broker", lambda row: row.id, right=True),
        Column("address", lambda row: row.address),
        Column("state", lambda row: "up" if row.running else "down"),
        Column("process", lambda row: row.pid, right=True),
        Column("controller", lambda row: "yes" if row.id == found.controller else ""),
    ]
    show_rows(found.brokers, columns)


@dataclass(frozen=True, slots=True)
class ZooKeeperStatus:
    """ZooKeeper of a cluster in a folder."""

    connect: str
    port: int
    running: bool
    pid: int | None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker of a cluster in a folder."""

    id: int
    address: str
    running: bool
    pid: int | None
    log: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What `tidelog cluster status` shows."""

    bootstrap: str
    controller: int | None
    zookeeper: ZooKeeperStatus
    brokers: list[BrokerStatus]


def _status(found: ClusterFolder) -> ClusterStatus:
    running = [broker for broker in found.brokers.values() if found.runs(broker)]
    controller = None
    if running:
        addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in running)
        with contextlib.suppress(ApiError), Cluster(addresses) as asked:
            controller = asked.metadata().controller_id
    pid = found.zookeeper_pid if found.zookeeper_runs else None
    connect = f"127.0.0.1:{found.zookeeper_port}"
    return ClusterStatus(
        found.bootstrap,
        # Without ZooKeeper the others go on to name one that is dead.
        next((b.broker_id for b in running if b.broker_id == controller), None),
        ZooKeeperStatus(connect, found.zookeeper_port, pid is not None, pid),
        [
            BrokerStatus(
                broker.broker_id,
                f"127.0.0.1:{broker.port}",
                broker in running,
                broker.pid if broker in running else None,
                str(found.log_path(broker.broker_id)),
            )
            for broker in found.brokers.values()
        ],
    )


def _existing(data: Path) -> ClusterFolder:
    found = ClusterFolder.load(data)
    if found is None:
        raise SettingError(
            f"there is no cluster in {data.absolute()}; start one with `tidelog cluster up`, or "
            "name its folder with --data"
        )
    return found


@contextlib.contextmanager
def _to_change(data: Path) -> Iterator[ClusterFolder]:
    _existing(data)  # where there is no cluster, there is no place for its lock
    with locked(data):
        yield _existing(data)


def _running(found: ClusterFolder, number: int) -> BrokerEntry:
    broker = found.broker(number)
    if not found.runs(broker):
        raise SettingError(f"broker {number} is not running")
    return broker


def _way_back(found: ClusterFolder, number: int) -> str:
    if found.zookeeper_runs:
        return f"`tidelog cluster start {number}` brings it back"
    return "`tidelog cluster up` brings it back, and ZooKeeper, which is down"


@cluster.command()
@click.argument("number", type=int)
@data_option
def kill(number: int, data: Path) -> None:
    """Kill broker NUMBER as a crash would (kill -9)."""
    with _to_change(data) as found:
        found.kill(_running(found, number))
    click.echo(f"broker {number} is dead; {_way_back(found, number)}")


@cluster.command()
@click.argument("number", type=int)
@data_option
def stop(number: int, data: Path) -> None:
    """Stop broker NUMBER cleanly (SIGTERM): its leaderships move to other brokers first."""
    with _to_change(data) as found:
        unclean = found.stop([_running(found, number)])
    click.echo(f"broker {number} is stopped; {_way_back(found, number)}")
    _check_clean(found, unclean)


@cluster.command()
@click.argument("number", type=int)
@data_option
def start(number: int, data: Path) -> None:
    """Start broker NUMBER again, with its data."""
    with _to_change(data) as found:
        broker = found.broker(number)
        if found.runs(broker):
            raise SettingError(f"broker {number} is already running, process {broker.pid}")
        if not found.zookeeper_runs:
            raise SettingError(
                f"broker {number} needs ZooKeeper, which is down; `tidelog cluster up` starts "
                "it, and every broker that is down"
            )
        found.start([broker])
    click.echo(f"broker {number} is ready on 127.0.0.1:{broker.port}")


@cluster.command()
@data_option
def down(data: Path) -> None:
    """Stop all brokers cleanly, then ZooKeeper.  The data is kept."""
    with _to_change(data) as found:
        unclean = found.stop_all()
    _check_clean(found, unclean)
    click.echo(f"stopped: everything is on disk in {data}")


def _check_clean(found: ClusterFolder, unclean: Sequence[BrokerEntry]) -> None:
    if unclean:
        logs = [str(found.log_path(broker.broker_id)) for broker in unclean]
        raise click.ClickException(
            f"stopped, but not everything is on disk: see the end of {some(logs)}; the next "
            "start recovers what the disk has"
        )


@cluster.command()
@bootstrap_option
@json_option
def describe(bootstrap: str, as_json: bool) -> None:
    """Describe any cluster: brokers, controller, leaderships, disk use."""
    with connect(bootstrap) as asked:
        found = describe_cluster(asked)
    for broker in found.brokers:
        if not broker.answers:
            note(f"broker {broker.id} does not answer: what is shown of it is old")
    for number in found.down:
        note(f"broker {number} is down: it has replicas, and is not registered in the cluster")
    if as_json:
        show_json(found)
        return
    click.echo(f"cluster {found.cluster_id}, {plural(len(found.brokers), 'broker')}")
    click.echo(
        f"{plural(found.topics, 'topic')}, {plural(found.partitions, 'partition')}; "
        f"{found.under_replicated or 'none'} under-replicated, {found.offline or 'none'} offline"
        + (f", {found.moving} being reassigned" if found.moving else "")
    )
    columns: list[Column[BrokerSummary]] = [
        Column("broker", lambda row: row.id, right=True),
        Column("address", lambda row: row.address),
        Column("rack", lambda row: row.rack),
        Column("leads", lambda row: row.leads, right=True),
        Column("replicas", lambda row: row.replicas, right=True),
        Column("disk", lambda row: "?" if row.bytes is None else size_text(row.bytes), right=True),
        Column("controller", lambda row: "yes" if row.id == found.controller else ""),
    ]
    show_rows(found.brokers, columns)
