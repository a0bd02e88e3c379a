"""While there is no session with ZooKeeper: what is seen of it from outside, and who is told.

A server that is down refuses connections; one that has lost its data, or has no majority of its
ensemble, takes them and hangs up.  kazoo sees the same in all of these, so its servers are asked
one by one with ``srvr``, one of ZooKeeper's four letter words.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from typing import NamedTuple

from kazoo.hosts import collect_hosts

from tidelog import workers

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 2.0
_REMIND_SECONDS = 60.0
_AT_START_SECONDS = 0.5  # a session is there by then, as a rule
_ZXID = re.compile(r"^Zxid: 0x([0-9a-f]+)", re.MULTILINE)


class Sight(NamedTuple):
    """What is seen of ZooKeeper, and what a user should do about it."""

    state: str  # after "ZooKeeper at host:port"
    advice: str


DOWN = Sight("cannot be reached", "start it")
NO_MAJORITY = Sight(
    "answers, but serves no client without a majority of its ensemble", "start the other servers"
)
OTHER_DATA = Sight(
    "answers, but does not know what it has told before (its data are lost, or it is another one)",
    "start it on its own data",
)
NO_SESSION = Sight("answers, but has begun no session", "look into its log")


def four_letters(host: str, port: int, word: str) -> str:
    """The answer of a server to one of ZooKeeper's four letter words."""
    with socket.create_connection((host, port), _ANSWER_SECONDS) as connection:
        connection.sendall(word.encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return answer.decode(errors="replace")


def look(hosts: str, last_zxid: int) -> Sight:
    """Ask every server.  ``last_zxid``: the last transaction that one of them has told us of;
    a server that does not know it refuses us."""
    servers, _ = collect_hosts(hosts)
    answers: list[str] = []
    unknown: dict[str, str] = {}
    for host, port in servers:
        try:
            answers.append(four_letters(host, port, "srvr"))
        except (socket.gaierror, UnicodeError) as error:  # the second: it cannot be a name
            unknown[host] = getattr(error, "strerror", None) or str(error)
        except OSError:
            continue
    if unknown and len(unknown) == len({host for host, _ in servers}):
        reasons = ", ".join(f"{host}: {reason}" for host, reason in unknown.items())
        return Sight(f"cannot be reached ({reasons})", "put zookeeper.connect right")
    zxids = [int(found[1], 16) for found in map(_ZXID.search, answers) if found]
    if zxids:
        return OTHER_DATA if max(zxids) < last_zxid else NO_SESSION
    if any("not currently serving" in answer for answer in answers):
        return NO_MAJORITY
    return NO_SESSION if any(answers) else DOWN


class Absence:
    """Says that there is no session: at once, when something changes, and every minute."""

    def __init__(self, hosts: str, last_zxid: Callable[[], int]) -> None:
        self._hosts = hosts
        self._last_zxid = last_zxid
        self._since = 0.0  # by the loop's clock
        self._told: Sight | None = None  # what the log says
        self._task: asyncio.Task[None] | None = None
        self.sight = DOWN

    def __str__(self) -> str:
        return f"ZooKeeper at {self._hosts} {self.sight.state}: {self.sight.advice}"

    def begin_at_start(self) -> None:
        """There was no session yet."""
        self._begin(None, "waiting for ZooKeeper")

    def begin(self) -> None:
        """The connection broke."""
        log.warning("no connection to ZooKeeper at %s", self._hosts)
        self._begin(DOWN, "no connection to ZooKeeper")

    def over(self) -> None:
        """There is a session."""
        if self._task is not None and self._told:
            seconds = asyncio.get_running_loop().time() - self._since
            log.info("connected to ZooKeeper again, after %.1f s", seconds)
        self.stop()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _begin(self, told: Sight | None, words: str) -> None:
        loop = asyncio.get_running_loop()
        self._since, self.sight, self._told = loop.time(), DOWN, told
        self._task = loop.create_task(self._watch(words))

    async def _watch(self, words: str) -> None:
        now = asyncio.get_running_loop().time
        told_at = now()
        while True:
            await asyncio.sleep(_LOOK_SECONDS if self._told else _AT_START_SECONDS)
            before = self.sight
            self.sight = await workers.abandonable(lambda: look(self._hosts, self._last_zxid()))
            changed = self.sight == before != self._told  # what is seen once may be its start
            if changed or now() - told_at >= _REMIND_SECONDS:
                seconds = now() - self._since
                since = f" for {seconds:.0f} s" if self._told else ""
                why = "" if self.sight == self._told == DOWN else f": it {self.sight.state}"
                log.warning("%s at %s%s%s", words, self._hosts, since, why)
                self._told, told_at = self.sight, now()
