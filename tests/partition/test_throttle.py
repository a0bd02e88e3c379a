"""How fast moved replicas may be copied."""

from __future__ import annotations

import pytest

from tidelog.broker.configs import BROKER, DELETE, apply_operation
from tidelog.clock import FakeClock
from tidelog.errors import SettingError
from tidelog.partition.throttle import FOLLOWER_REPLICAS, Throttle, is_throttled
from tidelog.settings import LogConfig, Settings, check_broker_config, check_topic_config
from tidelog.settings_table import LONG_MAX


def test_without_a_rate_nobody_waits() -> None:
    throttle = Throttle(FakeClock())
    throttle.took(10**12)
    assert throttle.wait_seconds == 0


def test_what_was_too_much_is_waited_for() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    throttle.limit(1000)
    assert throttle.wait_seconds == 0
    throttle.took(5000)
    assert throttle.wait_seconds == 5
    clock.advance(4900)
    assert throttle.wait_seconds == pytest.approx(0.1)
    clock.advance(100)
    assert throttle.wait_seconds == 0


def test_the_rate_holds_over_time() -> None:
    """Whatever the size of the fetches, and however long nothing was to do before."""
    clock = FakeClock()
    throttle = Throttle(clock)
    throttle.limit(1000)
    clock.advance(3_600_000)
    copied = 0
    for _ in range(60_000):
        clock.advance(1)
        if throttle.wait_seconds == 0:
            throttle.took(700)
            copied += 700
    assert 60_000 <= copied <= 60_000 + 1000 + 700  # a second's burst, and one fetch


def test_a_new_rate_forgets_the_old_debt() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    throttle.limit(1000)
    throttle.took(1_000_000)
    throttle.limit(1000)  # the same: nothing changes
    assert throttle.wait_seconds == 1000
    throttle.limit(2000)
    assert throttle.wait_seconds == 0
    throttle.took(4000)
    assert throttle.wait_seconds == 2
    throttle.limit(LONG_MAX)
    assert throttle.wait_seconds == 0


def test_a_rate_of_zero_stops_everything() -> None:
    clock = FakeClock()
    throttle = Throttle(clock)
    throttle.limit(0)
    clock.advance(3_600_000)
    assert throttle.wait_seconds > 0


def test_which_replicas() -> None:
    assert not is_throttled((), 0, 1)
    assert is_throttled(("*",), 7, 9)
    assert is_throttled(("0:1", "1:2"), 1, 2)
    assert not is_throttled(("0:1", "1:2"), 1, 1)


def test_settings() -> None:
    config = LogConfig.of(Settings.of(), {FOLLOWER_REPLICAS: "0:1, 12:3"})
    assert config.follower_replication_throttled_replicas == ("0:1", "12:3")
    assert config.leader_replication_throttled_replicas == ()
    for wrong in ("1", "a:b", "0:1,*", "0:-1"):
        with pytest.raises(SettingError, match="partition:broker"):
            check_topic_config({FOLLOWER_REPLICAS: wrong})
    rate = "leader.replication.throttled.rate"
    assert check_broker_config({rate: "1000"}) == {rate: 1000}
    with pytest.raises(SettingError, match="must be between 0"):
        check_broker_config({rate: "-1"})


def test_kafkas_tool_removes_a_third_rate() -> None:
    """kafka-reassign-partitions --verify deletes it on every broker, whether it was set or not."""
    config: dict[str, str] = {}
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    apply_operation(BROKER, config, name, DELETE, None)
    assert config == {}
