"""The keeper of a cluster: a real ZooKeeper ensemble, through kazoo.

kazoo has threads of its own.  A call hands the request to them and waits on an asyncio
future, which their callback completes in the event loop: nothing here ever blocks.

Reads are repeated when the connection breaks, up to the end of the session.  A write is not:
it is not known whether it has happened, so it fails with :class:`ConnectionLost` and the caller
looks at the tree.  When the session expires, kazoo begins a new one by itself; a
listener gets EXPIRED, and CONNECTED when ephemeral znodes can be made again.

Without a connection kazoo would keep requests, and send them when ZooKeeper is back, maybe
hours after its client has given up.  So it gets none: after a moment, in which another server
of the ensemble may answer, all calls fail with :class:`Unreachable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.exceptions import WriterNotClosedException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from tidelog import workers
from tidelog.errors import SettingError
from tidelog.keeper.keeper import (
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    KeeperError,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionEvent,
    SessionExpired,
    Set,
    Stat,
    Unreachable,
    Watch,
)
from tidelog.keeper.multi_read import MultiRead
from tidelog.keeper.zookeeper_absence import DOWN, Absence, look

log = logging.getLogger(__name__)

_EVENTS = {
    KazooState.SUSPENDED: SessionEvent.SUSPENDED,
    KazooState.CONNECTED: SessionEvent.CONNECTED,
    KazooState.LOST: SessionEvent.EXPIRED,
}
_AT_ONCE = 500  # znodes in one question
# How long a call waits for a connection: another server of an ensemble needs about a second,
# and kazoo tries once a second whether one is back.
_PATIENCE_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_RACES = 5  # how often a multi is put together again when parents or children changed meanwhile


class ZooKeeper:
    """See the module.  Made by :meth:`connect`."""

    def __init__(self, client: KazooClient, loop: asyncio.AbstractEventLoop, hosts: str) -> None:
        self._client = client
        self._hosts = hosts.partition("/")[0]
        self._loop = loop
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._connected = asyncio.Event()
        self._sessions = 0  # how many have ended
        self._absence = Absence(self._hosts, lambda: int(client.last_zxid))
        self._closed = False
        self._one_by_one = False  # the server is older than 3.6

    @classmethod
    async def connect(
        cls, hosts: str, session_timeout_ms: int, connection_timeout_ms: int
    ) -> ZooKeeper:
        """Begin a session; ``hosts`` is ``host:port,host:port/chroot``, as Kafka writes it."""
        logging.getLogger("kazoo").setLevel(logging.ERROR)  # what matters we say ourselves
        client = KazooClient(
            hosts,
            timeout=session_timeout_ms / 1000,
            # For ever, and soon: a broker without ZooKeeper waits for it.
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0),
        )
        loop = asyncio.get_running_loop()
        keeper = cls(client, loop, hosts)
        client.add_listener(keeper._state_changed)
        keeper._absence.begin_at_start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a chroot that is not there yet is made below
                await workers.abandonable(lambda: client.start(connection_timeout_ms / 1000))
            keeper._absence.over()
        except KazooTimeoutError:
            await workers.abandonable(client.close)
            raise SettingError(await keeper._why_not(hosts, connection_timeout_ms)) from None
        finally:
            keeper._absence.stop()
        keeper._connected.set()
        await keeper._call(client.ensure_path_async, "/")
        return keeper

    async def _why_not(self, hosts: str, waited_ms: int) -> str:
        sight = await workers.abandonable(lambda: look(self._hosts, 0))
        problem = f"zookeeper.connect={hosts}: no ZooKeeper answers within {waited_ms / 1000:g} s"
        if sight == DOWN:
            return f"{problem}; is it running (tidelog zookeeper)?"
        return f"{problem}. It {sight.state}: {sight.advice}"

    # -- the interface ----------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        data, stat = await self._read(self._client.get_async, path, watch)
        return data or b"", self._stat(stat)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        found: list[tuple[bytes, Stat] | None] = []
        for start in range(0, len(paths), _AT_ONCE):
            part = paths[start : start + _AT_ONCE]
            try:
                if self._one_by_one:
                    found += await asyncio.gather(*map(self._get_or_none, part))
                    continue
                rows = await self._read(self._multi_read, part[0], None, part)
            except _Unimplemented:
                self._one_by_one = True
                return await self.get_many(paths)
            found += [row and (row[0], self._stat(row[1])) for row in rows]
        return found

    def _multi_read(self, _path: str, _watch: None, paths: Sequence[str]) -> Any:
        answer = self._client.handler.async_result()
        request = MultiRead(tuple(self._client.chroot + path for path in paths))
        self._client._call(request, answer)
        return answer

    async def _get_or_none(self, path: str) -> tuple[bytes, Stat] | None:
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        stat = await self._read(self._client.exists_async, path, watch)
        return self._stat(stat) if stat else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return sorted(await self._read(self._client.get_children_async, path, watch))

    async def multi(self, operations: Sequence[Operation]) -> list[str]:
        careful = False
        for _ in range(_RACES):
            try:
                return await self._multi(operations, careful)
            except _Race:
                careful = True
        raise KeeperError(f"{operations[0].path}: others change it all the time")

    async def sync(self) -> None:
        await self.reachable()
        await self._call(self._client.sync_async, "/")

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(listener)

    async def reachable(self) -> None:
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._connected.wait()
        except TimeoutError:
            if problem := self.problem():  # else it came in the last moment
                raise Unreachable(problem) from None

    def problem(self) -> str:
        return "" if self._connected.is_set() else f"{self._absence}, then try again"

    async def close(self) -> None:
        self._closed = True
        self._absence.stop()
        # kazoo waits for the end of an attempt to connect, which may be a whole session.
        with contextlib.suppress(TimeoutError, WriterNotClosedException):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await workers.abandonable(self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # -- transactions -----------------------------------------------------------

    async def _multi(self, operations: Sequence[Operation], careful: bool) -> list[str]:
        """One transaction, with the missing parents before a creation and the children
        before a recursive deletion, as ZooKeeper itself does neither.

        Parents are looked for only if ``careful``: as a rule they are there.
        """
        transaction = self._client.transaction()
        places: list[int | None] = []  # which result belongs to which operation
        await self.reachable()
        coming: set[str] = set()
        known = await self._known_parents(operations) if careful else None
        below = await self._all_below(operations)
        for operation in operations:
            path = operation.path
            if isinstance(operation, Create):
                for parent in await self._missing_parents(path, coming, known):
                    transaction.create(parent)
                    places.append(None)
                    coming.add(parent)
                transaction.create(
                    path,
                    operation.data,
                    ephemeral=operation.ephemeral,
                    sequence=operation.sequential,
                )
                coming.add(path)
            elif isinstance(operation, Set):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, Check):
                transaction.check(path, operation.version)
            else:
                if operation.recursive:
                    for child in below[path]:
                        transaction.delete(child)
                        places.append(None)
                transaction.delete(path, operation.version)
            places.append(len(places))
        results = await self._call(transaction.commit_async)
        self._raise_first(operations, places, results, careful)
        made = [result for place, result in zip(places, results, strict=True) if place is not None]
        return [
            self._client.unchroot(result) if isinstance(operation, Create) else operation.path
            for operation, result in zip(operations, made, strict=True)
        ]

    def _raise_first(
        self,
        operations: Sequence[Operation],
        places: list[int | None],
        results: list[Any],
        careful: bool,
    ) -> None:
        """The error of the operation that failed; the others say only that they were undone."""
        own = iter(operations)
        undone = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
        for place, result in zip(places, results, strict=True):
            operation = None if place is None else next(own)
            if isinstance(result, Exception) and not isinstance(result, undone):
                if operation is None:
                    raise _Race  # a parent has come or a child has gone meanwhile
                if isinstance(result, exceptions.NotEmptyError) and getattr(
                    operation, "recursive", False
                ):
                    raise _Race
                if isinstance(result, exceptions.NoNodeError) and isinstance(operation, Create):
                    if careful:
                        raise KeeperError(f"{operation.path}: its parent cannot be made")
                    raise _Race  # a parent is missing
                raise _translate(result, operation.path) from result
        if any(isinstance(result, Exception) for result in results):
            raise KeeperError("ZooKeeper has undone a transaction without saying why")

    async def _known_parents(self, operations: Sequence[Operation]) -> dict[str, bool]:
        """Which parents are there, asked for all at once."""
        new = {operation.path for operation in operations if isinstance(operation, Create)}
        parents = sorted({path.rsplit("/", 1)[0] for path in new})
        asked = [path for path in parents if path and not any(p in new for p in _upwards(path))]
        stats = await asyncio.gather(*map(self.exists, asked))
        return {path: stat is not None for path, stat in zip(asked, stats, strict=True)}

    async def _missing_parents(
        self, path: str, coming: set[str], known: dict[str, bool] | None
    ) -> list[str]:
        above = list(_upwards(path))[1:]
        for i, parent in enumerate(above):
            if parent in coming:  # it is new: there is nothing below it
                return above[:i][::-1]
        missing: list[str] = []
        if known is None:
            return missing
        for parent in above:
            if parent not in known:
                known[parent] = await self.exists(parent) is not None
            if known[parent]:
                break
            missing.insert(0, parent)
        return missing

    async def _all_below(self, operations: Sequence[Operation]) -> dict[str, list[str]]:
        """What goes with recursive deletions, asked for all at once."""
        roots = [o.path for o in operations if isinstance(o, Delete) and o.recursive]
        found = await asyncio.gather(*map(self._below, roots))
        return dict(zip(roots, found, strict=True))

    async def _below(self, path: str) -> list[str]:
        """Everything under a path, the deepest first; one level at a time, many at once."""
        found: list[str] = []
        level = [path]
        while level:
            names = await asyncio.gather(*map(self.children, level))
            level = [
                f"{parent}/{name}"
                for parent, children in zip(level, names, strict=True)
                for name in children
            ]
            found += level
        return found[::-1]

    # -- the bridge -------------------------------------------------------------

    async def _read(
        self, function: Callable[..., Any], path: str, watch: Watch | None, *more: Any
    ) -> Any:
        notify = self._from_thread(watch) if watch else None
        sessions = self._sessions
        while True:
            await self.reachable()
            if self._sessions != sessions:
                raise SessionExpired(f"{path}: the session has expired")
            with contextlib.suppress(ConnectionLost):
                return await self._call(function, path, notify, *more)
            await asyncio.sleep(0)  # until we hear of it, too

    def _from_thread(self, watch: Watch) -> Callable[[Any], None]:
        def fired(_: Any) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(watch)

        return fired

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Have kazoo do something, and wait for the result without blocking."""
        future = self._loop.create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        def completed(result: Any) -> None:  # in kazoo's thread
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, result)

        path = args[0] if args else ""
        if self._client.connected:
            function(*args).rawlink(completed)
        if not self._client.connected:
            # It broke just now.  If that was between these two lines, kazoo may keep the request.
            future.cancel()  # its result is not wanted any more
            raise _translate(exceptions.ConnectionLoss(), path)
        try:
            return await future
        except Exception as error:
            raise _translate(error, path) from error

    def _state_changed(self, state: str) -> None:
        """In kazoo's thread: hand it over."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, _EVENTS[state])

    def _tell(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            if not self._connected.is_set():
                self._absence.over()
            self._connected.set()
        else:
            if self._connected.is_set() and not self._closed:
                self._absence.begin()
            self._connected.clear()
            self._sessions += event is SessionEvent.EXPIRED
        if not self._closed:
            for listener in self._listeners:
                listener(event)

    def _stat(self, stat: Any) -> Stat:
        session = self._client.client_id
        owner = stat.ephemeralOwner
        own = bool(owner) and session is not None and owner == session[0]
        return Stat(stat.version, stat.czxid, bool(owner), own, stat.mzxid)


class _Unimplemented(KeeperError):
    """The server is older than what it was asked for."""


class _Race(Exception):
    """The tree has changed while a transaction was put together."""


_WORDS = {
    ConnectionLost: "the connection to ZooKeeper broke",
    SessionExpired: "the session with ZooKeeper has expired",
}


def _upwards(path: str) -> Iterator[str]:
    """The path itself and everything above it, but for the root."""
    while path:
        yield path
        path = path.rsplit("/", 1)[0]


def _translate(error: Exception, path: str) -> KeeperError:
    """kazoo's error as ours."""
    kinds: list[tuple[Any, type[KeeperError]]] = [
        (exceptions.NoNodeError, NoNode),
        (exceptions.NodeExistsError, NodeExists),
        (exceptions.BadVersionError, BadVersion),
        (exceptions.NotEmptyError, NotEmpty),
        (exceptions.SessionExpiredError, SessionExpired),
        (exceptions.UnimplementedError, _Unimplemented),
        ((exceptions.ConnectionLoss, exceptions.ConnectionClosedError), ConnectionLost),
    ]
    for theirs, ours in kinds:
        if isinstance(error, theirs):
            words = _WORDS.get(ours)
            return ours(": ".join(part for part in (path, words) if part))
    return KeeperError(f"{path}: {type(error).__name__} {error}")
