"""Run a broker in the foreground until a signal stops it; shared by ``up`` and ``server``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import sys

import click

from tidelog import __version__
from tidelog.broker.broker import Broker
from tidelog.settings import Settings, parse_listener
from tidelog.text import some
from tidelog.tools.stop_signal import StopSignal


def serve(settings: Settings, *, as_json: bool, verbose: bool) -> None:
    """Start, say where we are, and wait for SIGTERM or Ctrl-C."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("asyncio").setLevel(logging.INFO)  # which selector it uses does not matter
    asyncio.run(_serve(settings, as_json))


async def _serve(settings: Settings, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    StopSignal(on_signal=lambda: loop.call_soon_threadsafe(stop.set)).install()
    broker = Broker(settings)
    if not await _started(broker, stop):
        return
    _calm_the_collector()
    _announce_if_read(broker, as_json)
    stopping = asyncio.create_task(stop.wait())
    failing = asyncio.create_task(broker.stopped())
    await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
    await broker.stop()
    await failing  # raises why it could not go on, if that was it
    if broker.unflushed:
        places = [f"{path}: {error.strerror or error}" for path, error in broker.unflushed.items()]
        raise click.ClickException(
            f"stopped, but not everything is on disk: {some(places)}; the next start recovers "
            "what the disk has"
        )
    if not as_json:
        click.echo("stopped: everything is on disk")


async def _started(broker: Broker, stop: asyncio.Event) -> bool:
    """Start; False if a signal comes meanwhile: it may wait for ZooKeeper, or for a controller."""
    starting = asyncio.create_task(broker.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


def _calm_the_collector() -> None:
    """Requests leave no cycles: looking for some after every 700 objects is a tenth of the time.

    Only here, where the process is ours; a broker inside a program leaves its collector alone.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _announce_if_read(broker: Broker, as_json: bool) -> None:
    """The process that has launched us may be gone: a broker does not depend on its output."""
    try:
        _announce(broker, as_json)
    except BrokenPipeError:
        logging.warning("standard output cannot be written: its reader has closed it")
        # What is still buffered goes nowhere, so that nothing complains at exit.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _announce(broker: Broker, as_json: bool) -> None:
    host, _ = parse_listener(broker.settings["listeners"][0])
    address = f"{'localhost' if host in ('', '0.0.0.0', '::') else host}:{broker.port}"
    directories = broker.settings["log.dirs"]
    if as_json:
        facts = {
            "bootstrap": address,
            "port": broker.port,
            "pid": os.getpid(),
            "broker_id": broker.broker_id,
            "cluster_id": broker.metadata.cluster_id,
            "log_dirs": broker.manager.directories,
        }
        click.echo(json.dumps(facts))
        return
    click.secho(f"tidelog {__version__} is ready on ", nl=False)
    click.secho(address, bold=True, fg="green")
    click.echo(f"  data in {', '.join(directories)}, process {os.getpid()}; Ctrl-C stops it")
    option = "" if broker.port == 9092 else f" -b {address}"
    click.echo(f"  in another terminal: tidelog produce hello{option}")
