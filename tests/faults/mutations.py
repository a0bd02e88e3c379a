"""Requests that are almost right: real ones of every API and version, changed in one place.

A mutation works on the message (a field gets a value from the edge of its type, a list
is repeated) or on its bytes.  Everything comes from one ``random.Random``, so a seed is
enough to see a failure again.
"""

import random
import struct

from broker import test_every_api as every

from tidelog.wire.frame import encode_request

SIZES = (0, 1, 2, 7, 127, 128, 255, 1000, 32767, 40000)
NUMBERS = [0, 1, -1, 2, 127, -128, 255, 32767, -32768, 65535]
NUMBERS += [2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63)]
TEXTS = ("", ".", "..", "a/b", "\0", "é" * 100, "😀", "everything", "__consumer_offsets", "a b")
HEADER = 12  # size, key, version, correlation id: changed only by mutations that mean to
MAX_REPEAT = 40
MAX_PARTITIONS = 20  # what a mutated CreateTopics may ask for: each is a directory


class Frame:
    """Bytes to send, and what may be expected of them."""

    __slots__ = ("data", "how", "key", "lies", "version")

    def __init__(self, data, how, lies=False):
        self.data = data
        self.how = how  # the mutation, for the report
        self.lies = lies  # its size is wrong: the broker may wait for the rest
        self.key, self.version = struct.unpack_from(">hh", data, 4)

    def numbered(self, correlation):
        return self.data[:8] + struct.pack(">i", correlation) + self.data[12:]


class Mutator:
    """An endless source of frames."""

    def __init__(self, seed, topic_id):
        self.topic_id(topic_id)
        self.random = random.Random(seed)
        self._samples = [(key, version, every.SAMPLES[key]) for key, version in every.CASES]
        self._on_bytes = [
            self.flip,
            self.number,
            self.cut,
            self.drop,
            self.double,
            self.splice,
            self.other_version,
        ]

    def topic_id(self, topic_id):
        """The base topic was made anew."""
        every.TOPIC_ID = topic_id
        self._kept = {}

    def frame(self):
        key, version, make = self.random.choice(self._samples)
        if self.random.random() < 0.75:
            message = make(version)
            how = self.change(message)
            try:
                return Frame(encode_request(message, version, 0, "fuzz"), how)
            except (struct.error, ValueError, TypeError, OverflowError, AttributeError):
                pass  # the schema cannot say it
        data = self._kept.get((key, version))
        if data is None:
            data = self._kept[key, version] = encode_request(make(version), version, 0, "fuzz")
        if self.random.random() < 0.05:
            return Frame(data, "as it is")
        if self.random.random() < 0.02:  # rare: it takes the requests behind it along
            return self.wrong_size(data)
        return self.random.choice(self._on_bytes)(data)

    # -- on the message -----------------------------------------------------------

    def change(self, message):
        """Change one field, somewhere in a message."""
        rng = self.random
        places = list(_places(message))
        if not places:
            return "as it is"
        owner, name = rng.choice(places)
        old = getattr(owner, name)
        if isinstance(old, bool):
            new = not old
        elif isinstance(old, int):
            new = rng.choice(NUMBERS)
            if name in ("num_partitions", "count"):
                new = min(new, MAX_PARTITIONS)
        elif isinstance(old, str) or old is None:
            new = rng.choice([None, rng.choice(TEXTS), rng.choice("a\0é") * rng.choice(SIZES)])
        elif isinstance(old, (bytes, bytearray)):
            new = rng.choice([b"", rng.randbytes(16), rng.randbytes(rng.choice(SIZES)), old * 2])
        else:
            new = rng.choice([[], None, list(old) * rng.randrange(2, MAX_REPEAT)])
        setattr(owner, name, new)
        return f"{type(owner).__name__}.{name} changed"

    # -- on the bytes -------------------------------------------------------------

    def _resized(self, data, how):
        return Frame(struct.pack(">i", len(data) - 4) + data[4:], how)

    def flip(self, data):
        data = bytearray(data)
        for _ in range(self.random.randrange(1, 5)):
            at = self.random.randrange(HEADER, len(data))
            data[at] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF, self.random.randrange(256)))
        return Frame(bytes(data), "bytes flipped")

    def number(self, data):
        code = self.random.choice((">h", ">i", ">q"))
        size = struct.calcsize(code)
        value = self.random.choice(NUMBERS) & (2 ** (8 * size) - 1)
        at = self.random.randrange(HEADER, max(HEADER + 1, len(data) - size))
        changed = data[:at] + value.to_bytes(size, "big") + data[at + size :]
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
        _, version, make = self.random.choice(self._samples)
        other = encode_request(make(version), version, 0, "fuzz")
        tail = other[self.random.randrange(HEADER, len(other)) :]
        at = self.random.randrange(HEADER, len(data))
        return self._resized(data[:at] + tail, "spliced")

    def other_version(self, data):
        key, version, _ = self.random.choice(self._samples)
        if self.random.random() < 0.2:
            key, version = self.random.choice(NUMBERS[:10]) & 0x7FFF, self.random.randrange(-2, 20)
        return Frame(data[:4] + struct.pack(">hh", key, version) + data[8:], "another API")

    def wrong_size(self, data):
        size = len(data) - 4 + self.random.choice((-4, -1, 1, 4, 1000))
        return Frame(struct.pack(">i", max(1, size)) + data[4:], "wrong size", lies=True)


def _places(message):
    """Every field of a message and of the structs in it."""
    for name in message._fields:
        value = getattr(message, name)
        yield message, name
        for item in value if isinstance(value, list) else ():
            if hasattr(item, "_fields"):
                yield from _places(item)
