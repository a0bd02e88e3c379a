"""Kafka's own producer performance tool, from its jars."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Any

from bench.kafka_jars import java_command
from bench.wire import BenchError

_RESULT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


def produce(
    bootstrap: str, topic: str, size: int, count: int, settings: Mapping[str, Any]
) -> float:
    """Seconds, by the tool's own clock: the start of Java is not in them."""
    command = java_command("org.apache.kafka.tools.ProducerPerformance", "-Xmx512m")
    command += ["--topic", topic, "--num-records", str(count), "--record-size", str(size)]
    command += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"]
    command += [f"{name}={value}" for name, value in settings.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError("ProducerPerformance did not end in three minutes") from error
    found = _RESULT.findall(done.stdout)
    if done.returncode or not found or int(found[-1][0]) != count:
        raise BenchError(f"ProducerPerformance: {(done.stderr or done.stdout)[-400:]}")
    return count / float(found[-1][1])
