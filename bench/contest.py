"""Contenders in turn, round by round, and what each did and used."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bench.load import Rate
from bench.report import Row, percentile
from bench.system import Bench, cpu_seconds

Work = Callable[[], Rate]
PERCENTS = (50, 99, 99.9)
_WARM_UPS = 2  # unrecorded runs of Kafka before the first round of a row


class Process(Protocol):
    """Anything that listens in a process of its own."""

    port: int

    @property
    def pid(self) -> int: ...


class Meter:
    """What a process did with a load, round by round, and what it cost that process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.mb_per_second: list[float] = []
        self.per_second: list[float] = []
        self.cpu_per_gb: list[float] = []
        self.cpu_us: list[float] = []  # a request

    def run(self, work: Work) -> None:
        before = cpu_seconds(self._pid)
        rate = work()
        used = cpu_seconds(self._pid) - before
        self.mb_per_second.append(rate.mb_per_second)
        self.per_second.append(rate.per_second)
        requests = rate.requests + rate.warm_up
        self.cpu_per_gb.append(used / (rate.payload / rate.requests * requests / 1e9))
        self.cpu_us.append(used / requests * 1e6)


Meters = dict[str, Meter]


def contest(
    bench: Bench, works: Mapping[str, Work], peers: Mapping[str, Process], rounds: int = 0
) -> Meters:
    """All contenders in turn."""
    meters = {who: Meter(peers[who].pid) for who in works}
    for who in works:
        if who.startswith("kafka"):  # a section may have a second one, with another setting
            for _ in range(1 if bench.quick else _WARM_UPS):
                works[who]()
    total = rounds or bench.rounds
    for i in range(total):
        for who, work in works.items():
            meters[who].run(work)
        bench.progress(f"round {i + 1}/{total}")
    return meters


def values(meters: Meters, name: str) -> dict[str, list[float]]:
    """One figure of every contender, by contender."""
    return {who: getattr(meter, name) for who, meter in meters.items()}


def row(
    name: str,
    unit: str,
    got: Mapping[str, Sequence[float]],
    *,
    less_is_better: bool = False,
    goal: float = 1,
    floor_goal: float = 0,
    note: str = "",
) -> Row:
    """A row from figures by contender."""
    return Row(
        name,
        unit,
        got["tidelog"],
        kafka=got.get("kafka", ()),
        loopback=got.get("loopback", ()),
        floor=got.get("floor", ()),
        less_is_better=less_is_better,
        goal=goal,
        floor_goal=floor_goal,
        note=note,
    )


def throughput(name: str, meters: Meters, floor_goal: float = 0) -> Row:
    """Megabytes a second, with requests a second beside."""
    per_second = statistics.median(meters["tidelog"].per_second)
    return row(
        name,
        "MB/s",
        values(meters, "mb_per_second"),
        floor_goal=floor_goal,
        note=f"{per_second:,.0f} requests/s",
    )


def cpu_per_request(name: str, meters: Meters) -> Row:
    got = values(meters, "cpu_us")
    got.pop("loopback", None)
    return row(name, "us/request", got, less_is_better=True)


def cpu_per_gb(name: str, meters: Meters) -> Row:
    got = values(meters, "cpu_per_gb")
    got.pop("loopback", None)
    return row(name, "s/GB", got, less_is_better=True)


class Latencies:
    """Percentiles of each round, by contender."""

    def __init__(self) -> None:
        self._got: dict[float, dict[str, list[float]]] = {p: {} for p in PERCENTS}

    def note(self, who: str, times: Sequence[int]) -> None:
        """One round, in nanoseconds."""
        for percent, by_peer in self._got.items():
            by_peer.setdefault(who, []).append(percentile(times, percent) / 1000)

    def rows(self, name: str, percents: Sequence[float] = PERCENTS) -> list[Row]:
        return [row(f"{name}, p{p}", "us", self._got[p], less_is_better=True) for p in percents]
