"""Tables and sentences as a person sees them: on a terminal, and in a pipe."""

from __future__ import annotations

import pytest
from support.cli import on_terminal, run
from support.group_client import GroupClient

from tidelog.clock import SystemClock
from tidelog.testing import LocalBroker
from tidelog.tools.output import printable, short_id, short_time
from tidelog.views.times import time_text

EVIL = "e\x1b[31mvil\nlist\x9b\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grün 日本 🌊", "grün 日本 🌊"),
        ("a\tb\nc\rd\0", "a\\tb\\nc\\rd\\x00"),
        ("\x1b[31m\x9b\x7f", "\\x1b[31m\\x9b\\x7f"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_names_that_clients_choose_are_escaped(broker: LocalBroker, topic: str) -> None:
    with GroupClient(broker.port) as client:
        client.find()
        client.create_topic(topic)
        group = f"{topic}-{EVIL}"
        assert client.commit(group, topic, 1) == 0
    shown = printable(group)
    for command in (("list",), ("describe", group), ("explain", group)):
        found = run("groups", *command, bootstrap=broker.bootstrap)
        assert (found.code, found.err) == (0, "")
        if command[0] != "explain":
            assert any(line.startswith(shown) for line in found.lines)
        lines = "".join(on_terminal("groups", *command, bootstrap=broker.bootstrap, columns=300))
        assert not {"\n", "\x9b", "\u202e"} & set(lines)
        assert "\x1b[31m" not in lines
    deleted = run("groups", "delete", group, "--yes", bootstrap=broker.bootstrap)
    assert deleted.out == f"{shown} deleted\n"


def test_ids_and_times_are_short_where_there_is_no_room() -> None:
    member = "rdkafka-12ad4966-0c9c-4f4d-9a77-8f2f4e6d6c11"
    assert short_id(member) == "rdkafka-12ad…"
    assert short_id(f"my-own-service-{member[8:]} (1.2.3.4)") == "my-own-…12ad… (1.2.3.4)"
    assert short_id("12ad4966-0c9c-4f4d-9a77-8f2f4e6d6c11") == "12ad…"
    assert short_id("c6f7PKIZQTeOE/mTATKBSg") == "c6f7…"
    assert short_id("consumer-1") == "consumer-1"
    assert short_time("2001-11-16T02:22:06.356Z") == "11-16 02:22:06"
    now = time_text(SystemClock().now_ms())
    assert short_time(now) == now[11:19]
    assert short_time("-") == "-"
