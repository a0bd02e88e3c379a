"""The sections, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from bench import clients, footprint, latency, limits, throughput
from bench.report import Section
from bench.system import Bench

SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "limits": limits.measure,
    "produce": throughput.produce,
    "fetch": throughput.fetch,
    "latency": latency.measure,
    "connections": throughput.connections,
    "memory": footprint.memory,
    "start": footprint.start,
    "clients": clients.measure,
}
