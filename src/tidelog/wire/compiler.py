"""From a declaration to two flat functions for each version.

``encoder(cls, version)(message, out)`` appends to a bytearray;
``decoder(cls, version)(view, pos)`` returns ``(message, pos)``.

The functions are written as Python source and compiled the first time they are
needed: nested structs become nested loops, neighbouring fixed-width fields become
one ``struct`` call, and there is no dispatch on types at run time.  Every length is
checked against what is left of the frame *before* anything is allocated, so no
message can ask for more memory than its own bytes justify.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.wire.primitives import MAX_TAGS, Buffer, ProtocolError, read_uvarint, uvarint
from tidelog.wire.schema import (
    BYTES,
    RECORDS,
    STRING,
    Field,
    Message,
    Struct,
    Type,
    types_of,
)

M = TypeVar("M", bound=Message)
Encoder = Callable[[Any, bytearray], None]
Decoder = Callable[[Buffer, int], tuple[Any, int]]

_encoders: dict[tuple[type[Message], int], Encoder] = {}
_decoders: dict[tuple[type[Message], int], Decoder] = {}


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function that writes ``cls`` in ``version``."""
    found = _encoders.get((cls, version))
    if found is None:
        found = _encoders[cls, version] = _write_encoder(cls, version)
    return found


def decoder(cls: type[Message], version: int) -> Decoder:
    """The function that reads ``cls`` in ``version``."""
    found = _decoders.get((cls, version))
    if found is None:
        found = _decoders[cls, version] = _write_decoder(cls, version)
    return found


def _write_encoder(cls: type[Message], version: int) -> Encoder:
    writer = _Writer(version, version >= cls.flexible)
    writer.line(0, "def encode(m, out):")
    writer.encode_struct(1, cls, "m")
    writer.line(1, "return")
    compiled: Encoder = writer.compile("encode", f"{cls.__name__} v{version}")
    return compiled


def _write_decoder(cls: type[Message], version: int) -> Decoder:
    writer = _Writer(version, version >= cls.flexible)
    writer.line(0, "def decode(buf, pos):")
    writer.line(1, "end = len(buf)")
    writer.line(1, "try:")
    name = writer.decode_struct(2, cls)
    writer.line(2, f"return {name}, pos")
    writer.line(1, "except (StructError, IndexError) as error:")
    writer.line(2, "raise ProtocolError(f'{WHAT} is cut short') from error")
    writer.line(1, "except UnicodeDecodeError as error:")
    writer.line(2, "raise ProtocolError(f'{WHAT} holds a string that is not UTF-8') from error")
    compiled: Decoder = writer.compile("decode", f"{cls.__name__} v{version}")
    return compiled


def encode(message: Message, version: int) -> bytes:
    """One message, without header."""
    out = bytearray()
    encoder(type(message), version)(message, out)
    return bytes(out)


def decode(cls: type[M], version: int, buf: Buffer) -> M:
    """One message that fills ``buf`` exactly."""
    message, pos = decoder(cls, version)(buf, 0)
    if pos != len(buf):
        raise ProtocolError(f"{cls.__name__} v{version} has {len(buf) - pos} bytes too many")
    result: M = message
    return result


class _Writer:
    """Writes the source of one function; ``depth`` is the indentation."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "ProtocolError": ProtocolError,
            "StructError": struct.error,
            "read_uvarint": read_uvarint,
            "uvarint": uvarint,
        }
        self.counter = 0

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def fresh(self, prefix: str, value: Any = None) -> str:
        """A new name; with a value, a constant of the compiled function."""
        self.counter += 1
        name = f"{prefix}{self.counter}"
        if value is not None:
            self.names[name] = value
        return name

    def compile(self, function: str, what: str) -> Any:
        self.names["WHAT"] = what
        code = compile("\n".join(self.lines), f"<{function} {what}>", "exec")
        exec(code, self.names)
        return self.names[function]

    def fields(self, cls: type[Struct], tagged: bool) -> list[tuple[str, Field, Type]]:
        kinds = types_of(cls)
        found = [
            (name, spec, kinds[name])
            for name, spec in cls._fields.items()
            if spec.in_version(self.version) and (spec.tag is not None) == tagged
        ]
        return sorted(found, key=lambda f: f[1].tag or 0) if tagged else found

    def nullable(self, spec: Field, kind: Type) -> bool:
        return kind.nullable and self.version >= spec.nullable_since

    # -- encoding ---------------------------------------------------------------

    def encode_struct(self, depth: int, cls: type[Struct], var: str) -> None:
        fixed: list[tuple[str, str]] = []

        def write_fixed() -> None:
            if fixed:
                pack = self.fresh("pack", struct.Struct(">" + "".join(c for c, _ in fixed)).pack)
                self.line(depth, f"out += {pack}({', '.join(v for _, v in fixed)})")
                fixed.clear()

        for name, spec, kind in self.fields(cls, tagged=False):
            if kind.primitive and kind.primitive.code:
                fixed.append((kind.primitive.code, f"{var}.{name}"))
                continue
            write_fixed()
            value = self.fresh("v")
            self.line(depth, f"{value} = {var}.{name}")
            self.encode_value(depth, kind, value, self.nullable(spec, kind))
        write_fixed()
        if self.flexible:
            self.encode_tags(depth, cls, var)

    def encode_value(self, depth: int, kind: Type, value: str, nullable: bool) -> None:
        if nullable:
            self.line(depth, f"if {value} is None:")
            self.line(depth + 1, f"out += {self.null_marker(kind)!r}")
            self.line(depth, "else:")
            depth += 1
        if kind.struct:
            if nullable:
                self.line(depth, "out.append(1)")
            self.encode_struct(depth, kind.struct, value)
        elif kind.item:
            self.encode_length(depth, f"len({value})", ">i")
            item = self.fresh("v")
            self.line(depth, f"for {item} in {value}:")
            self.encode_value(depth + 1, kind.item, item, kind.item.nullable)
        elif kind.primitive and kind.primitive.code:
            pack = self.fresh("pack", struct.Struct(">" + kind.primitive.code).pack)
            self.line(depth, f"out += {pack}({value})")
        else:
            if kind.primitive is STRING:
                self.line(depth, f"{value} = {value}.encode()")
            self.encode_length(depth, f"len({value})", self.length_code(kind))
            self.line(depth, f"out += {value}")

    def encode_length(self, depth: int, length: str, code: str) -> None:
        if not self.flexible:
            pack = self.fresh("pack", struct.Struct(code).pack)
            self.line(depth, f"out += {pack}({length})")
            return
        self.line(depth, f"n = {length} + 1")
        self.line(depth, "if n < 128: out.append(n)")
        self.line(depth, "else: out += uvarint(n)")

    def encode_tags(self, depth: int, cls: type[Struct], var: str) -> None:
        tagged = self.fields(cls, tagged=True)
        if not tagged:
            self.line(depth, "out.append(0)")
            return
        tags, outer = self.fresh("tags"), self.fresh("outer")
        self.line(depth, f"{tags} = []; {outer} = out")
        for name, spec, kind in tagged:
            default = self.fresh("default")
            self.names[default] = spec.default
            value = self.fresh("v")
            self.line(depth, f"{value} = {var}.{name}")
            # The default is not sent, and an empty list is the default ``()``.
            sent = value if spec.default == () else f"{value} != {default}"
            self.line(depth, f"if {sent}:")
            self.line(depth + 1, "out = bytearray()")
            # A tagged struct is never null on the wire: None means "not sent".
            nullable = self.nullable(spec, kind) and not kind.struct
            self.encode_value(depth + 1, kind, value, nullable)
            self.line(depth + 1, f"{tags}.append(({spec.tag}, out))")
        self.line(depth, f"out = {outer}; out += uvarint(len({tags}))")
        self.line(depth, f"for tag, payload in {tags}:")
        self.line(depth + 1, "out += uvarint(tag); out += uvarint(len(payload)); out += payload")

    # -- decoding ---------------------------------------------------------------

    def decode_struct(self, depth: int, cls: type[Struct]) -> str:
        made, made_by = self.fresh("m"), self.fresh("C", cls)
        self.line(depth, f"{made} = {made_by}.__new__({made_by})")
        fixed: list[tuple[str, str]] = []

        def read_fixed() -> None:
            if fixed:
                layout = struct.Struct(">" + "".join(c for c, _ in fixed))
                unpack = self.fresh("unpack", layout.unpack_from)
                targets = ", ".join(f"{made}.{name}" for _, name in fixed)
                self.line(depth, f"{targets}, = {unpack}(buf, pos); pos += {layout.size}")
                fixed.clear()

        for name, spec, kind in self.fields(cls, tagged=False):
            if kind.primitive and kind.primitive.code:
                fixed.append((kind.primitive.code, name))
                continue
            read_fixed()
            value = self.decode_value(depth, kind, self.nullable(spec, kind), name)
            self.line(depth, f"{made}.{name} = {value}")
        read_fixed()
        if self.flexible:
            self.decode_tags(depth, cls, made)
        return made

    def decode_value(self, depth: int, kind: Type, nullable: bool, name: str) -> str:
        value = self.fresh("v")
        if kind.struct:
            if nullable:
                self.line(depth, "n = buf[pos]; pos += 1")
                self.line(depth, f"if n > 127: {value} = None")  # Kafka: any negative byte
                self.line(depth, "else:")
                depth += 1
            made = self.decode_struct(depth, kind.struct)
            self.line(depth, f"{value} = {made}")
            return value
        if kind.primitive and kind.primitive.code:
            layout = struct.Struct(">" + kind.primitive.code)
            unpack = self.fresh("unpack", layout.unpack_from)
            self.line(depth, f"{value}, = {unpack}(buf, pos); pos += {layout.size}")
            return value
        self.decode_length(depth, kind)
        # One comparison refuses both a lying length and (as -1 or 0-1) an illegal null.
        self.line(depth, "if n < 0:")
        self.line(depth + 1, f"{value} = None" if nullable else _illegal_null(name))
        self.line(depth, "elif n > end - pos:")
        self.line(depth + 1, f"raise ProtocolError(f'{{WHAT}}: {name} is longer than the request')")
        if kind.primitive is STRING and self.flexible:
            # As in Kafka: else a string could come in that older versions cannot send.
            self.line(depth, "elif n > 32767:")
            self.line(depth + 1, f"raise ProtocolError(f'{{WHAT}}: {name} is over 32767 bytes')")
        self.line(depth, "else:")
        depth += 1
        if kind.item:
            append, count = self.fresh("append"), self.fresh("count")
            self.line(depth, f"{value} = []; {append} = {value}.append; {count} = n")
            self.line(depth, f"for _ in range({count}):")
            item = self.decode_value(depth + 1, kind.item, kind.item.nullable, name)
            self.line(depth + 1, f"{append}({item})")
            return value
        if kind.primitive is STRING:
            self.line(depth, f"{value} = str(buf[pos:pos + n], 'utf-8'); pos += n")
        elif kind.primitive is BYTES:
            self.line(depth, f"{value} = bytes(buf[pos:pos + n]); pos += n")
        else:
            assert kind.primitive is RECORDS
            self.line(depth, f"{value} = memoryview(buf)[pos:pos + n]; pos += n")
        return value

    def decode_length(self, depth: int, kind: Type) -> None:
        if not self.flexible:
            layout = struct.Struct(self.length_code(kind))
            unpack = self.fresh("unpack", layout.unpack_from)
            self.line(depth, f"n, = {unpack}(buf, pos); pos += {layout.size}")
            return
        self.line(depth, "n = buf[pos]; pos += 1")
        self.line(depth, "if n > 127: n, pos = read_uvarint(buf, pos - 1)")
        self.line(depth, "n -= 1")

    def decode_tags(self, depth: int, cls: type[Struct], made: str) -> None:
        tagged = self.fields(cls, tagged=True)
        # Names of their own: a tagged struct has a tag section inside this one.
        left, tag, tag_end = self.fresh("left"), self.fresh("tag"), self.fresh("tag_end")
        self.line(depth, f"{left} = buf[pos]; pos += 1")
        self.line(depth, f"if {left} > 127: {left}, pos = read_uvarint(buf, pos - 1)")
        self.line(depth, f"if {left} > {MAX_TAGS}:")
        self.line(depth + 1, "raise ProtocolError(f'{WHAT}: too many tagged fields')")
        self.line(depth, f"while {left}:")
        depth += 1
        self.line(depth, f"{left} -= 1")
        self.line(depth, f"{tag}, pos = read_uvarint(buf, pos)")
        self.line(depth, "n, pos = read_uvarint(buf, pos)")
        self.line(depth, f"{tag_end} = pos + n")
        self.line(depth, f"if {tag_end} > end:")
        self.line(depth + 1, "raise ProtocolError(f'{WHAT}: a tagged field is too long')")
        for name, spec, kind in tagged:
            self.line(depth, f"if {tag} == {spec.tag}:")
            nullable = self.nullable(spec, kind) and not kind.struct
            value = self.decode_value(depth + 1, kind, nullable, name)
            self.line(depth + 1, f"{made}.{name} = {value}")
            self.line(depth + 1, f"if pos != {tag_end}:")
            self.line(depth + 2, f"raise ProtocolError(f'{{WHAT}}: {name} has the wrong size')")
        # Unknown tags are skipped: that is how Kafka lets old brokers meet new clients.
        self.line(depth, f"pos = {tag_end}")

    # -- lengths ----------------------------------------------------------------

    def length_code(self, kind: Type) -> str:
        return ">h" if kind.primitive is STRING else ">i"

    def null_marker(self, kind: Type) -> bytes:
        if kind.struct:
            return b"\xff"
        if self.flexible:
            return b"\x00"
        return b"\xff\xff" if kind.primitive is STRING else b"\xff\xff\xff\xff"


def _illegal_null(name: str) -> str:
    return f"raise ProtocolError(f'{{WHAT}}: {name} may not be null')"
