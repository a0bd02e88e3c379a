"""``tidelog``: the table of commands, and how errors are shown.

A command module is imported when its command runs, so that ``tidelog --help`` and
``tidelog up`` start at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from tidelog import __version__
from tidelog.tools.command_group import CommandGroup

# name -> (module, what --help says); a module has a click command of the same name.
COMMANDS = {
    "up": ("up", "Start a broker: no settings needed."),
    "server": ("server", "Start a broker from a properties file."),
    "zookeeper": ("zookeeper", "Start a real ZooKeeper, for a cluster."),
    "cluster": ("cluster", "Run a cluster on this machine; describe any cluster."),
    "topics": ("topics", "List, create, describe, alter and delete topics."),
    "produce": ("produce", "Write records: from the keyboard, a file or a pipe."),
    "consume": ("consume", "Read records, from anywhere to anywhere."),
    "groups": ("groups", "List, describe, reset, delete and explain consumer groups."),
    "configs": ("configs", "Describe and alter settings of topics and brokers."),
    "records": ("records", "Delete records from the start of a log."),
    "log": ("log", "Dump and check log files on disk."),
    "load": ("load", "Load topics into Parquet files, each record once."),
    "sql": ("sql", "Query topics with SQL."),
    "demo": ("demo", "See a broker at work, in less than a minute."),
}


class _Commands(CommandGroup):
    """Finds commands in :data:`COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"tidelog.tools.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output has seen enough (`| head`): no error, whatever click
            # says.  What is still buffered goes nowhere, so that nothing complains at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidelog")
def cli() -> None:
    """A Kafka-compatible log in Python.

    Start a broker with `tidelog up`; any Kafka client can use it.  Commands that talk to a
    broker find it with -b HOST:PORT or $TIDELOG_BOOTSTRAP (default: the cluster in this folder,
    or localhost:9092).
    """


def main(args: list[str] | None = None) -> Any:
    """Run a command.  An error is one sentence on standard error, and exit code 1."""
    from tidelog.errors import ApiError, SettingError
    from tidelog.java import NotInstalled
    from tidelog.log.manager import DirectoryInUse, WrongCluster

    try:
        sys.exit(cli.main(args, prog_name="tidelog", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (ApiError, SettingError, DirectoryInUse, WrongCluster, NotInstalled) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{error.strerror or error}")


def _fail(message: str) -> None:
    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(message, err=True)
    sys.exit(1)
