"""What Spark keeps in the checkpoint: one state, one text, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.offsets import Lost, OffsetFormatError, StreamOffset, same_topic
from tidelog.topic_partition import TopicPartition
from tidelog.wire.schema import ZERO_UUID

names = st.sampled_from(["clicks", "views", "a.b", "version", "topics"])
tps = st.builds(TopicPartition, names, st.integers(0, 20))
numbers = st.integers(0, 2**63 - 1)
offsets = st.dictionaries(tps, numbers, max_size=12)
losses = st.builds(Lost, tps, numbers, st.none() | numbers, st.text(max_size=5))


@st.composite
def stream_offsets(draw: st.DrawFn) -> StreamOffset:
    rows = draw(offsets)
    ids = {tp.topic: draw(st.binary(min_size=16, max_size=16)) for tp in rows}
    began = draw(offsets)
    unique = draw(st.lists(losses, max_size=3, unique_by=lambda row: (row.tp, row.start)))
    lost = tuple(sorted(unique, key=lambda row: (row.tp, row.start)))
    gone = {tp: at for tp, at in draw(offsets).items() if tp.topic in ids}
    return StreamOffset(rows, ids, began, lost, draw(st.booleans()), gone)


@given(stream_offsets())
def test_it_reads_back_through_sparks_json(offset: StreamOffset) -> None:
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(stream_offsets(), st.randoms())
def test_one_state_has_one_text(offset: StreamOffset, random: object) -> None:
    def shuffled(rows: dict) -> dict:
        items = list(rows.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = StreamOffset(
        shuffled(dict(offset.offsets)),
        shuffled(dict(offset.ids)),
        shuffled(dict(offset.began)),
        tuple(reversed(offset.lost)),
        offset.initial,
        shuffled(dict(offset.gone)),
    )
    assert json.dumps(other.to_json()) == json.dumps(offset.to_json())
    assert other.same_place(offset)


def test_the_text() -> None:
    offset = StreamOffset(
        {TopicPartition("t", 10): 5, TopicPartition("t", 9): 4}, {"t": bytes(15) + b"\1"}
    )
    assert json.dumps(offset.to_json()) == (
        '{"version": 1, "topics": {"t": {"id": "AAAAAAAAAAAAAAAAAAAAAQ", '
        '"offsets": {"9": 4, "10": 5}}}}'
    )


def test_a_checkpoint_of_sparks_own_connector_is_read() -> None:
    offset = StreamOffset.from_json({"clicks": {"0": 42, "1": 17}, "version": {"0": 1}})
    assert offset.offsets == {
        TopicPartition("clicks", 0): 42,
        TopicPartition("clicks", 1): 17,
        TopicPartition("version", 0): 1,
    }
    assert offset.id_of("clicks") == ZERO_UUID


@pytest.mark.parametrize("value", [None, 5, "text", [], {"files": 3}, {"t": {"x": 1}}])
def test_another_sources_offset_is_refused(value: object) -> None:
    with pytest.raises(OffsetFormatError, match="checkpointLocation of its own"):
        StreamOffset.from_json(value)


def test_an_offset_of_a_later_version_is_refused() -> None:
    with pytest.raises(OffsetFormatError, match="of version 2, this tidelog knows version 1"):
        StreamOffset.from_json({"version": 2, "topics": {}})


def test_ids_that_are_not_known_tell_nothing() -> None:
    one, other = b"1" * 16, b"2" * 16
    assert same_topic(one, one) and not same_topic(one, other)
    assert same_topic(one, ZERO_UUID) and same_topic(ZERO_UUID, other)


def test_what_was_lost_in_words() -> None:
    tp = TopicPartition("t", 0)
    assert str(Lost(tp, 3, 9, "gone")) == "t-0: offsets 3 to 8: gone"
    assert str(Lost(tp, 3, 4, "gone")) == "t-0: offset 3: gone"
    assert str(Lost(tp, 3, None, "gone")) == "t-0: everything from offset 3 on: gone"
