"""Requests that are almost right: real ones of every API and version, changed in a few places.

A mutation works on the message (a field gets a value from the edge of its type, a list is
repeated, a length lies), on the record batch in it (the CRC is made right again, so that the
checks behind it are reached) or on the bytes (the frame's size is made right again).
Everything comes from one ``random.Random``, so a seed is enough to see a failure again.
"""

import functools
import random
import struct

from crc32c import crc32c
from faults.corpus import Corpus

from tidelog.broker.registry import REGISTRY
from tidelog.wire.batch import HEADER_SIZE, LENGTH_OVERHEAD
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import REQUEST_PREFIX, encode_request, skip_tags
from tidelog.wire.hot import decode_fetch, decode_produce
from tidelog.wire.primitives import ProtocolError, uvarint
from tidelog.wire.schema import Struct, types_of

SIZES = (0, 1, 2, 7, 16, 127, 128, 255) * 5 + (1000, 32767, 40000)
NUMBERS = [0, 1, -1, 2, 127, -128, 255, 32767, -32768, 65535]
NUMBERS += [2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63)]
COUNTS = (0, 1, 2, 3, 126, 127, 128, 16383, 32767, 65536, 2**24, 2**31 - 1)
TEXTS = ("", ".", "..", "a/b", "\0", "é" * 100, "😀", "everything", "__consumer_offsets", "a b")
TEXTS += ("../x", "../../x", "/x", "a/../../../x")
TEXTS += ("made", "looked-into", "created-by-v4", "0", "-1", "9223372036854775807")
HEADER = 12  # size, key, version, correlation id: changed only by mutations that mean to
CLIENT = "fuzz"
HEADER_TAGS = HEADER + 2 + len(CLIENT)  # where the tags of a flexible header begin
MAX_REPEAT = 40
MAX_PARTITIONS = 40  # what a mutated request may ask for: each is a directory
PRODUCE, FETCH, _CREATE_TOPICS, _CREATE_PARTITIONS = 0, 1, 19, 37

# Where the fields of a batch's header are, and how wide.
BATCH_FIELDS = [(0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (23, 4), (27, 8), (35, 8)]
BATCH_FIELDS += [(43, 8), (51, 2), (53, 4), (57, 4)]


class Frame:
    """Bytes to send, and what may be expected of them."""

    __slots__ = ("data", "how", "key", "lies", "version")

    def __init__(self, data, how, lies=False):
        self.data = data
        self.how = how  # the mutation, for the report
        self.lies = lies  # its size is wrong: the broker may wait for the rest
        self.key, self.version = struct.unpack_from(">hh", data, 4)

    def numbered(self, correlation):
        return b"%b%b%b" % (self.data[:8], correlation.to_bytes(4, "big"), self.data[12:])

    def decoded(self):
        """The message as the broker decodes it; None if it cannot."""
        api = REGISTRY.get(self.key)
        if api is None or not api.announce_from <= self.version <= api.versions[1]:
            return None
        view = memoryview(self.data)[4:]
        try:
            start = REQUEST_PREFIX.size + max(0, REQUEST_PREFIX.unpack_from(view)[3])
            if self.version >= api.request.flexible:
                start = skip_tags(view, start)
            if self.key == PRODUCE:
                return decode_produce(view, start, self.version)
            if self.key == FETCH:
                return decode_fetch(view, start, self.version)
            return decoder(api.request, self.version)(view, start)[0]
        except (ProtocolError, struct.error, IndexError):
            return None


class _LyingList(list):
    """Says that it is longer or shorter than it is; so does its encoding."""

    claims = 0

    def __len__(self):
        return self.claims


class _LyingBytes(bytes):
    claims = 0

    def __len__(self):
        return self.claims


class _LyingText(str):
    claims = 0

    def encode(self):
        lying = _LyingBytes(super().encode())
        lying.claims = self.claims
        return lying


def _lying(value, claims):
    kind = {str: _LyingText, bytes: _LyingBytes}.get(type(value), _LyingList)
    made = kind(value)
    made.claims = claims
    return made


class Random(random.Random):
    def choice(self, seq):
        """Half the time of the original; that some are a bit likelier does not matter."""
        return seq[int(self.random() * len(seq))]

    def randrange(self, start, stop=None):
        if stop is None:
            start, stop = 0, start
        return start + int(self.random() * (stop - start))


class Mutator:
    """An endless source of frames."""

    def __init__(self, seed, topic_id):
        self.random = Random(seed)
        self._corpus = Corpus(self.random, topic_id)
        self.use(self._corpus.rows)
        self._kept = {}
        # More of those that are decoded as a rule: they reach the handlers.
        self._on_bytes = [self.flip] * 4 + [self.number, self.double, self.tags] * 2
        self._on_bytes += [self.cut, self.drop, self.splice, self.other_version]

    def use(self, samples):
        """Mutate these from now on: rows like those of the corpus."""
        self.samples = samples

    def frame(self):
        while True:
            frame = self._any_frame()
            if frame.key not in (_CREATE_TOPICS, _CREATE_PARTITIONS) or _is_bounded(frame):
                return frame

    def _any_frame(self):
        rng = self.random
        key, version, make = rng.choice(self.samples)
        if rng.random() < 0.85:
            message = make(version)
            if key == PRODUCE and rng.random() < 0.5:
                data = message.topic_data[0].partition_data[0]
                data.records, how = self.batch(data.records)
            else:
                how = self.change(message, version)
            try:
                return Frame(encode_request(message, version, 0, CLIENT), how)
            except (struct.error, ValueError, TypeError, OverflowError, AttributeError):
                pass  # the schema cannot say it
        data = self._bytes_of(key, version, make)
        if rng.random() < 0.05:
            return Frame(data, "as it is")
        if rng.random() < 0.02:  # rare: it takes the requests behind it along
            return self.wrong_size(data)
        return rng.choice(self._on_bytes)(data)

    def _bytes_of(self, key, version, make):
        data = self._kept.get((key, version, make))
        if data is None:
            data = encode_request(make(version), version, 0, CLIENT)
            self._kept[key, version, make] = data
        return data

    # -- on the message -----------------------------------------------------------

    def change(self, message, version):
        """Change one field, somewhere in a message; sometimes a few."""
        rng = self.random
        how = "as it is"
        places = _places(message, version, [])
        for _ in range(rng.choice((1, 1, 1, 2, 3)) if places else 0):
            owner, name, is_list = rng.choice(places)
            setattr(owner, name, self._other(getattr(owner, name), is_list))
            how = f"{type(owner).__name__}.{name} is another"
        return how

    def _other(self, old, is_list):
        rng = self.random
        if hasattr(old, "claims"):
            return old
        if isinstance(old, bool):
            return not old
        if isinstance(old, int):
            return rng.choice((rng.choice(NUMBERS), old + 1, old - 1, rng.randrange(128)))
        if old is None and is_list:
            return []
        if isinstance(old, str) or old is None:
            if old and rng.random() < 0.1:
                return _lying(old, rng.choice(COUNTS))
            return rng.choice([None, rng.choice(TEXTS), rng.choice("a\0é") * rng.choice(SIZES)])
        if isinstance(old, (bytes, bytearray)):
            if rng.random() < 0.1:
                return _lying(bytes(old), rng.choice(COUNTS))
            return rng.choice([b"", rng.randbytes(16), rng.randbytes(rng.choice(SIZES)), old * 2])
        if not isinstance(old, (list, tuple)):
            return None  # a struct that may be missing
        if rng.random() < 0.2:
            return _lying(old, rng.choice(COUNTS))
        return rng.choice([[], None, list(old) * rng.randrange(2, MAX_REPEAT)])

    # -- on the record batch --------------------------------------------------------

    def batch(self, batch):
        """Change a batch; its length and its CRC are right, as a rule."""
        rng = self.random
        made = bytearray(batch)
        how = rng.choice(
            ("field", "field", "count", "codec", "flip", "flip", "cut", "more", "junk")
        )
        if how == "field":
            at, size = rng.choice(BATCH_FIELDS)
            made[at : at + size] = self._edge(size)
        elif how == "count":  # both places agree, the records do not
            count = rng.choice(COUNTS)
            struct.pack_into(">i", made, 23, count - 1)
            struct.pack_into(">i", made, 57, count)
        elif how == "codec":
            made[22] = made[22] & ~7 | rng.randrange(8)
        elif how == "flip":
            for _ in range(rng.randrange(1, 5)):
                made[rng.randrange(HEADER_SIZE, len(made))] = rng.randrange(256)
        elif how == "cut":
            del made[rng.randrange(len(made)) :]
        elif how == "more":
            made += made[HEADER_SIZE:] * rng.randrange(1, 4)
        else:
            made[HEADER_SIZE:] = rng.randbytes(rng.choice(SIZES))
        if len(made) >= HEADER_SIZE:
            if rng.random() < 0.9:
                struct.pack_into(">i", made, 8, len(made) - LENGTH_OVERHEAD)
            if rng.random() < 0.9:
                struct.pack_into(">I", made, 17, crc32c(memoryview(made)[21:]))
        return bytes(made), f"batch: {how}"

    def _edge(self, size):
        return (self.random.choice(NUMBERS) & (2 ** (8 * size) - 1)).to_bytes(size, "big")

    # -- on the bytes -------------------------------------------------------------

    def _resized(self, data, how):
        return Frame(struct.pack(">i", len(data) - 4) + data[4:], how)

    def flip(self, data):
        data = bytearray(data)
        for _ in range(self.random.randrange(1, 5)):
            at = self.random.randrange(HEADER, len(data))
            if self.random.random() < 0.5:
                data[at] ^= 1 << self.random.randrange(8)
            else:
                data[at] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF))
        return Frame(bytes(data), "bytes flipped")

    def number(self, data):
        size = self.random.choice((2, 4, 8))
        at = self.random.randrange(HEADER, max(HEADER + 1, len(data) - size))
        changed = data[:at] + self._edge(size) + data[at + size :]
        return self._resized(changed, "a number at the edge")

    def cut(self, data):
        return self._resized(data[: self.random.randrange(HEADER, len(data))], "cut short")

    def drop(self, data):
        at = self.random.randrange(HEADER, len(data))
        return self._resized(data[:at] + data[at + self.random.randrange(1, 9) :], "bytes missing")

    def double(self, data):
        at = self.random.randrange(HEADER, len(data))
        piece = data[at : at + self.random.randrange(1, 40)]
        times = self.random.choice((2, 3, 50))
        return self._resized(data[:at] + piece * times + data[at:], "bytes repeated")

    def splice(self, data):
        other = self._bytes_of(*self.random.choice(self.samples))
        tail = other[self.random.randrange(HEADER, len(other)) :]
        at = self.random.randrange(HEADER, len(data))
        return self._resized(data[:at] + tail, "spliced")

    def tags(self, data):
        """Put a section of tagged fields where there is none (an empty one is a zero byte)."""
        rng = self.random
        somewhere = data.find(0, rng.randrange(HEADER, len(data)))
        at = rng.choice((HEADER_TAGS, len(data) - 1, somewhere if somewhere > 0 else HEADER_TAGS))
        count = rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 3, 100))
        section = bytearray(uvarint(rng.choice((count, count, count, 2**31 - 1))))
        for number in range(count):
            content = rng.randbytes(rng.choice((0, 1, 4, 5, 16, 100)))
            section += uvarint(rng.choice((number, number, 0, 2**31 - 1)))
            section += uvarint(len(content) if rng.random() < 0.9 else rng.choice(COUNTS))
            section += content
        return self._resized(data[:at] + section + data[at + 1 :], "tagged fields")

    def other_version(self, data):
        key, version, _ = self.random.choice(self.samples)
        if self.random.random() < 0.2:
            key, version = self.random.choice(NUMBERS[:10]) & 0x7FFF, self.random.randrange(-2, 20)
        return Frame(data[:4] + struct.pack(">hh", key, version) + data[8:], "another API")

    def wrong_size(self, data):
        size = len(data) - 4 + self.random.choice((-4, -1, 1, 4, 1000))
        return Frame(struct.pack(">i", max(1, size)) + data[4:], "wrong size", lies=True)


@functools.cache
def _fields(cls, version):
    """Names of the fields that a version has, and whether they are lists."""
    kinds = types_of(cls)
    return [
        (name, kinds[name].item is not None)
        for name, spec in cls._fields.items()
        if spec.in_version(version)
    ]


def _places(message, version, found):
    """Every field of a message, and of the structs in it, that this version has."""
    for name, is_list in _fields(type(message), version):
        found.append((message, name, is_list))
        value = getattr(message, name)
        if type(value) is list and value and isinstance(value[0], Struct):
            for item in value:
                _places(item, version, found)
    return found


def _is_bounded(frame):
    """Would it, if it is well-formed, make only a few partitions?"""
    message = frame.decoded()
    topics = (message and message.topics) or ()
    counts = [max(getattr(t, "num_partitions", 0), getattr(t, "count", 0), 1) for t in topics]
    return sum(counts) <= MAX_PARTITIONS or min(counts) > 100_000  # so many are refused
