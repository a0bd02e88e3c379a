"""``python -m bench``: run the sections, print the table."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import bench
from bench import growth, notes
from bench.kafka_jars import NoKafka, jars
from bench.report import Section, as_markdown, as_text, merge
from bench.rows import ALONE, SECTIONS
from bench.system import Bench, describe_machine
from bench.wire import BenchError

RESULTS = Path(__file__).with_name("RESULTS.md")
_INTRO = """
Made by `./dev bench --write`.  Every figure is the median of several rounds, with the least
and the most; tidelog, Kafka and the other peers take turns in every round, with the same load
generator, and a ratio is the median of the rounds' own ratios.

**Times as good** compares with Apache Kafka so that more than one is better for tidelog:
tidelog / Kafka for throughput, Kafka / tidelog for latency, time, memory and CPU.  `!` marks a
row that misses its goal (as good as Kafka; a tenth of its start-up time; an eighth of its
memory; 60 % of the floor for large batches, 70 % for fetches; a p99 that grows by a fifth at
most while the cleaner works); the reasons are at the end.

`loopback` is the same exchange of bytes with nothing between; `floor` is a bare Python server
that does the same system calls and no Kafka: for Produce loopback plus writing to rolling
files, for Fetch the file to the socket.

Neither broker flushes on writes, both have the same topic settings and requests of the same
versions (Produce 11, Fetch 12).  Kafka is warmed up: a dozen seconds of mixed load after its
start, then each row's own load, unrecorded, before its first round.  Rolling logs have
segments of 256 MB, because small ones flatter tidelog: with 32 MB Kafka lost up to a third of
its throughput to new index files.  The first writes to new partitions are left out for the
same reason.
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    rounds = options.rounds or (2 if options.quick else 5)
    wanted = [name for name in SECTIONS if not options.only or name in options.only]
    run = Bench(
        rounds,
        0.15 if options.quick else 0.4,
        options.quick,
        options.data,
        _say,
        kafka=not options.no_kafka and _kafka_is_there(),
        full=options.full,
    )
    if options.growth:
        with run.stack:
            growth.measure(run)
        return 0
    facts = describe_machine(run, " ".join(["./dev bench", *(arguments or sys.argv[1:])]))
    started = time.monotonic()
    sections: list[Section] = []
    try:
        for name in wanted:
            _say(f"[{time.monotonic() - started:4.0f} s] {name}", end="\n")
            if name in ALONE:
                run.stack.close()
            sections.append(SECTIONS[name](run))
    except KeyboardInterrupt:
        _say("interrupted: the table is not complete", end="\n")
    except BenchError as error:
        _say(f"wrong: {error}", end="\n")
        return 1
    finally:
        run.stack.close()
    _say(f"[{time.monotonic() - started:4.0f} s] done", end="\n")
    for name, value in facts:
        print(f"{name}: {value}")
    print("\n" + as_text(sections), end="")
    if options.json:
        report = {
            "facts": dict(facts),
            "sections": {s.name: [row.as_json() for row in s.rows] for s in sections},
        }
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.write:
        reasons = notes.read()
        page = as_markdown(sections, facts, _INTRO, reasons)
        if options.only:
            known = dict(facts)
            which = f"Run of {known['date']}, {known['command']}"
            page = merge(RESULTS.read_text(), page, which, reasons)
        RESULTS.write_text(page)
        _say(f"wrote bench/{RESULTS.name}", end="\n")
    return 0 if len(sections) == len(wanted) else 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=(bench.__doc__ or "").partition("\n")[0],
        epilog="Nothing else should run meanwhile: the machine is the measure.",
    )
    parser.add_argument("--quick", action="store_true", help="short and rough")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="NAME",
                        help="only these sections: " + ", ".join(SECTIONS))  # fmt: skip
    parser.add_argument("--rounds", type=int, help="rounds a figure (default 5, quick 2)")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka beside")
    parser.add_argument("--full", action="store_true", help="a large data directory has 10 GB")
    parser.add_argument("--growth", action="store_true",
                        help=f"only the growth curve: bench/{growth.PICTURE.name}")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write every round to a file")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"update bench/{RESULTS.name}; with --only, these sections of it",
    )
    parser.add_argument("--data", metavar="DIR", help="where the logs go (default: TMPDIR)")
    return parser


def _end(number: int, _frame: object) -> None:
    """Children end with us; a second signal must not stop that half-way."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _kafka_is_there() -> bool:
    try:
        jars()
    except NoKafka as error:
        _say(f"Apache Kafka is not measured: {error}", end="\n")
        return False
    return True


def _say(text: str, end: str = "\r") -> None:
    """Progress, on standard error; on a terminal with the details, each over the last."""
    if sys.stderr.isatty():
        print(f"\x1b[K{text}", end=end, file=sys.stderr, flush=True)
    elif end == "\n":
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
