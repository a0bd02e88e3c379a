"""The load generators.  They are Python too, so they do as little as can be done.

Requests are encoded before the clock starts and answers are only counted: every answer of
one kind of request has the same size.  The same code drives a broker and its floor, so
what the generator costs falls on both.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.wire import BenchError

_JOIN = 64 * 1024  # smaller requests that become due together leave in one system call


class Rate(NamedTuple):
    """What went through in a while."""

    requests: int
    payload: int  # bytes, of requests that carry data or of answers that do
    seconds: float
    warm_up: int = 0  # requests before the clock started

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def mb_per_second(self) -> float:
        return self.payload / self.seconds / 1e6


def gone() -> BenchError:
    return BenchError("the server closed the connection under load")


def pipelined(
    sock: socket.socket, request: bytes, answer_size: int, window: int, seconds: float
) -> Rate:
    """One connection, always ``window`` requests in flight."""
    size = len(request)
    joined = memoryview(request * window if size < _JOIN else request)
    answers = bytearray(64 * 1024)
    recv_into, sendall, clock = sock.recv_into, sock.sendall, time.perf_counter
    done = partial = 0
    left = window  # in flight
    started = clock()
    deadline = started + seconds
    due = window
    while True:
        if size < _JOIN:
            sendall(joined[: due * size])
        else:
            for _ in range(due):
                sendall(joined)
        due = 0
        while not due:
            n = recv_into(answers)
            if not n:
                raise gone()
            due, partial = divmod(partial + n, answer_size)
        done += due
        if clock() >= deadline:
            left -= due
            while left:
                n = recv_into(answers)
                if not n:
                    raise gone()
                due, partial = divmod(partial + n, answer_size)
                left -= due
                done += due
            return Rate(done, done * size, clock() - started)


def fill(sock: socket.socket, request: bytes, answer_size: int, count: int) -> None:
    """Send ``count`` requests, a few at a time, without a clock."""
    answer = bytearray(answer_size)
    for i in range(count + 4):
        if i < count:
            sock.sendall(request)
        if i >= 4 and sock.recv_into(answer, answer_size, socket.MSG_WAITALL) != answer_size:
            raise gone()


def ping_pong(sock: socket.socket, request: bytes, answer_size: int, seconds: float) -> list[int]:
    """One request in flight; how long each took, in nanoseconds."""
    answer = bytearray(answer_size)
    recv_into, send, clock = sock.recv_into, sock.send, time.perf_counter_ns
    times: list[int] = []
    note = times.append
    deadline = clock() + int(seconds * 1e9)
    now = clock()
    while now < deadline:
        send(request)
        n = recv_into(answer)
        while n < answer_size:
            more = recv_into(answer, answer_size - n)
            if not more:
                raise gone()
            n += more
        then, now = now, clock()
        note(now - then)
    return times


def many(
    socks: Sequence[socket.socket],
    request: bytes | Sequence[bytes],
    answer_size: int,
    seconds: float,
) -> Rate:
    """Many connections, each with one request in flight, served as they become ready.

    All send the same request, or each its own.
    """
    requests = [request] * len(socks) if isinstance(request, bytes) else request
    poller = select.epoll()
    by_fd = {
        sock.fileno(): (sock.recv_into, sock.send, own)
        for sock, own in zip(socks, requests, strict=True)
    }
    partial = dict.fromkeys(by_fd, 0)
    answer = bytearray(4096)
    clock, poll = time.perf_counter, poller.poll
    done = 0
    try:
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        started = clock()
        deadline = started + seconds
        for _, send, own in by_fd.values():
            send(own)
        flowing = True
        left = len(socks)
        while left:
            for fd, _ in poll():
                recv_into, send, own = by_fd[fd]
                n = recv_into(answer)
                if n != answer_size:
                    if not n:
                        raise gone()
                    n += partial[fd]
                    partial[fd] = n % answer_size
                    if n < answer_size:
                        continue
                done += 1
                if flowing:
                    send(own)
                else:
                    left -= 1
            if flowing and clock() >= deadline:
                flowing = False
        return Rate(done, done * len(requests[0]), clock() - started)
    finally:
        poller.close()


def fetch(
    socks: Sequence[socket.socket],
    requests: Sequence[bytes],
    answer_size: int,
    payload: int,
    seconds: float,
) -> Rate:
    """Large answers, one request in flight on each connection, each reading round and round."""
    if len(socks) == 1:
        return _fetch_one(socks[0], requests, answer_size, payload, seconds)
    poller = select.epoll()
    buffer = memoryview(bytearray(answer_size))
    clock = time.perf_counter
    missing = {sock.fileno(): answer_size for sock in socks}
    turn = {sock.fileno(): i * len(requests) // len(socks) for i, sock in enumerate(socks)}
    by_fd = {sock.fileno(): sock for sock in socks}
    done = 0
    try:
        for sock in socks:
            sock.setblocking(False)
            poller.register(sock.fileno(), select.EPOLLIN)
        started = clock()
        deadline = started + seconds
        for fd, sock in by_fd.items():
            sock.send(requests[turn[fd]])
        left = len(socks)
        while left:
            for fd, _ in poller.poll():
                n = by_fd[fd].recv_into(buffer[: missing[fd]])
                if not n:
                    raise gone()
                missing[fd] -= n
                if missing[fd]:
                    continue
                done += 1
                if clock() < deadline:
                    missing[fd] = answer_size
                    turn[fd] = (turn[fd] + 1) % len(requests)
                    by_fd[fd].send(requests[turn[fd]])
                else:
                    left -= 1
        return Rate(done, done * payload, clock() - started)
    finally:
        poller.close()
        for sock in socks:
            sock.setblocking(True)


def _fetch_one(
    sock: socket.socket, requests: Sequence[bytes], answer_size: int, payload: int, seconds: float
) -> Rate:
    buffer = memoryview(bytearray(answer_size))
    recv_into, send, clock = sock.recv_into, sock.send, time.perf_counter
    done, count = 0, len(requests)
    started = clock()
    deadline = started + seconds
    while True:
        send(requests[done % count])
        missing = answer_size
        while missing:
            n = recv_into(buffer[:missing])
            if not n:
                raise gone()
            missing -= n
        done += 1
        if clock() >= deadline:
            return Rate(done, done * payload, clock() - started)


def stream(sock: socket.socket, size: int, seconds: float) -> Rate:
    """One way only, in sends of ``size``; the last word is the receiver's."""
    chunk = b"x" * size  # zeros would all be one page of memory
    sendall, clock = sock.sendall, time.perf_counter
    done = 0
    started = clock()
    deadline = started + seconds
    while clock() < deadline:
        for _ in range(8):
            sendall(chunk)
        done += 8
    sock.shutdown(socket.SHUT_WR)
    if sock.recv(1) != b"!":
        raise gone()
    return Rate(done, done * size, clock() - started)


def wake_up(
    producer: socket.socket,
    consumer: socket.socket,
    ping: Callable[[], None],
    produce: bytes,
    produce_answer: int,
    fetch_frame: bytearray,
    fetch_answer: int,
    move: Callable[[int], None],
    offset: int,
    seconds: float,
) -> list[int]:
    """From the send of a record to its arrival at a consumer whose Fetch is parked."""
    answer = bytearray(max(produce_answer, fetch_answer))
    clock = time.perf_counter_ns
    times: list[int] = []
    deadline = clock() + int(seconds * 1e9)

    def receive(sock: socket.socket, size: int) -> None:
        while size:
            n = sock.recv_into(answer, size)
            if not n:
                raise gone()
            size -= n

    while clock() < deadline:
        move(offset)
        consumer.send(fetch_frame)
        ping()  # by the time this is answered the Fetch is parked
        then = clock()
        producer.send(produce)
        receive(consumer, fetch_answer)
        times.append(clock() - then)
        receive(producer, produce_answer)
        offset += 1
    return times
