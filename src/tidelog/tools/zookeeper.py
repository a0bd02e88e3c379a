"""``tidelog zookeeper``: a real ZooKeeper server, or an ensemble of three, for a cluster."""

from __future__ import annotations

import json
import os
import time

import click

from tidelog.errors import SettingError
from tidelog.keeper.zookeeper_server import PORT, ZooKeeperServer, ensemble
from tidelog.tools.stop_signal import StopSignal


@click.command()
@click.option("--data", default="tidelog-zookeeper", show_default=True, help="The data directory.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65500))
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all interfaces.",
)
@click.option(
    "--ensemble",
    "three",
    is_flag=True,
    help="Run three servers, on --port and the next two (and on --port + 10 to + 22 internally).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when ready.")
def zookeeper(data: str, port: int, host: str, three: bool, as_json: bool) -> None:
    """Start a real ZooKeeper server, from the jars that come with PySpark.

    Brokers find it with zookeeper.connect=localhost:2181.  With --ensemble three servers run on
    this machine, and any one of them may be killed without harm.
    """
    if three and host != "127.0.0.1":
        raise SettingError("--ensemble is for one machine: leave --host out")
    servers = ensemble(data, port) if three else [ZooKeeperServer(data, port, host=host)]
    with StopSignal() as stop:
        try:
            for server in servers:
                server.start()
            for server in servers:
                server.wait_ready()
            _announce(servers, data, as_json)
            _watch(servers, stop)
        finally:
            with stop.cleaning_up():
                for server in servers:
                    server.terminate()
                for server in servers:
                    server.stop()
    if not as_json:
        click.echo("stopped: everything is on disk")


def _announce(servers: list[ZooKeeperServer], data: str, as_json: bool) -> None:
    connect = ",".join(server.connect for server in servers)
    pids = [server.process.pid for server in servers if server.process]
    if as_json:
        facts = {"connect": connect, "pid": os.getpid(), "servers": pids}
        click.echo(json.dumps(facts))
        return
    click.secho("ZooKeeper is ready on ", nl=False)
    click.secho(connect, bold=True, fg="green")
    shown = ", ".join(map(str, pids))
    click.echo(f"  data in {data}, process {shown}; Ctrl-C stops it")
    click.echo(f"  a broker of a cluster: tidelog server --set zookeeper.connect={connect}")


def _watch(servers: list[ZooKeeperServer], stop: StopSignal) -> None:
    """Until a signal, or until all servers have died; of an ensemble one may be killed."""
    while not stop:
        ended = [s for s in servers if s.process is not None and s.process.poll() is not None]
        if len(ended) == len(servers):
            log = servers[0].data / "zookeeper.log"
            raise SettingError(f"ZooKeeper has stopped by itself: see {log}")
        time.sleep(0.1)
