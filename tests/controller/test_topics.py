"""The rules of topics are pure."""

from __future__ import annotations

import pytest

from tidelog.controller.topics import check_assignment, colliding, spread
from tidelog.errors import ApiError, ErrorCode
from tidelog.topic_partition import check_name, directory_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "_", "-", "x" * 249, "__consumer_offsets"])
def test_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a:b", "ä", "a\0", "x" * 250])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ApiError) as error:
        check_name(name)
    assert error.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(error.value.message) < 200


@pytest.mark.parametrize("index", [-1, -(2**31)])
def test_no_partition_has_a_negative_index(index: int) -> None:
    with pytest.raises(ApiError) as error:
        directory_name("t", index)
    assert error.value.code == ErrorCode.INVALID_REQUEST


def test_the_directory_of_a_partition() -> None:
    assert directory_name("t", 12) == "t-12"
    assert len(directory_name("x" * 249, 99_999)) == 255
    with pytest.raises(ApiError):  # longer than a file name may be
        directory_name("x" * 249, 100_000)
    with pytest.raises(ApiError):
        directory_name("../x", 0)


def test_names_that_look_alike() -> None:
    topics = ["a.b", "a_c", "x", "a.b.c"]
    assert colliding("a_b", topics) == ["a.b"]
    assert colliding("a.b", topics) == []  # itself
    assert colliding("a_b_c", topics) == ["a.b.c"]
    assert colliding("a-b", topics) == []


@pytest.mark.parametrize("brokers", [[0], [1, 2], [5, 7, 9], [1, 2, 3, 4, 5]])
def test_spreading(brokers: list[int]) -> None:
    for factor in range(1, len(brokers) + 1):
        rows = spread(4 * len(brokers), factor, brokers)
        assert all(len(set(row)) == factor for row in rows)
        leaders = [row[0] for row in rows]
        assert all(leaders.count(broker) == 4 for broker in brokers)
        check_assignment(rows, brokers)
        assert spread(3, factor, brokers) + spread(2, factor, brokers, first=3) == rows[:5] or (
            len(rows) < 5
        )


def test_how_many_at_a_time() -> None:
    assert len(spread(10_000, 1, [0])) == 10_000
    with pytest.raises(ApiError, match="at most 10000"):
        spread(10_001, 1, [0])


def test_assignments_of_different_sizes() -> None:
    with pytest.raises(ApiError, match="differ in their number"):
        check_assignment([[1], [1, 2]], [1, 2])
