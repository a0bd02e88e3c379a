"""``tidelog topics elect``: give the lead back to preferred leaders.

The first of a partition's replicas is its preferred leader.  After a restart others lead until
it is elected again: by itself within five minutes (``auto.leader.rebalance.enable``), or now.
"""

from __future__ import annotations

import click

from tidelog.client import admin
from tidelog.client.cluster import check_topic
from tidelog.errors import ErrorCode
from tidelog.text import plural
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import complain_of, show_json


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@json_option
def elect(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Elect the preferred leaders of these topics, or of all.

    The preferred leader is the first of the replicas that `topics describe` shows.
    """
    with connect(bootstrap) as cluster:
        topics = cluster.metadata(list(dict.fromkeys(names)) or None).topics
        for name in names:
            check_topic(topics[name])
        preferred = {
            (topic.name, part.index): part.replicas[0]
            for topic in topics.values()
            for part in topic.partitions
            if part.replicas and part.leader != part.replicas[0]
        }
        results = admin.elect_leaders(cluster, preferred) if preferred else {}
    done = {
        key: error is None or error.code == ErrorCode.ELECTION_NOT_NEEDED
        for key, error in results.items()
    }
    failed = {
        key: f"broker {preferred[key]} is down or not in sync"
        if error.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        else error.message
        for key, error in results.items()
        if error and not done[key]
    }
    if as_json:
        show_json(
            [
                {
                    "topic": name,
                    "partition": i,
                    "leader": preferred[name, i],
                    "elected": done[name, i],
                    "error": failed.get((name, i)),
                }
                for name, i in results
            ]
        )
    elif not preferred:
        click.echo("every partition has its preferred leader already")
    elif any(done.values()):
        click.echo(f"{plural(sum(done.values()), 'partition')} led by the preferred leader again")
    if failed:
        complain_of(failed)
        raise click.exceptions.Exit(1)
