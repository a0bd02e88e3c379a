"""What the compiled loops are made of: how numba compiles them, and the steps that they share.

Helpers take addresses, not arrays: numba counts references to an array in every call, with
atomic operations, which takes longer than all the rest of a record.  They are compiled into the
loops of ``kernel.py``; numba looks at that file alone to see whether compiled code is old, so
``__pycache__`` must be removed after a helper was changed.
"""

# ruff: noqa: ARG001
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-untyped-decorators=False
from __future__ import annotations

import os
import platform
import stat
import tempfile
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LARGEST = np.int64(2**63 - 1)


def _own_cache() -> str:
    """A folder for compiled code where the package's own and the user's cannot be written.

    What lies in it is executed: it must be ours alone.
    """
    path = os.path.join(tempfile.gettempdir(), f"tidelog-numba-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.getuid()
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            return tempfile.mkdtemp(prefix="tidelog-numba-")
    return path


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for these types, once for this machine: four seconds, or a tenth from the cache."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        compiler: Callable[..., Callable[..., Any]] = numba.njit(signature, cache=True, nogil=True)
        try:
            return compiler(function)
        except (OSError, RuntimeError) as error:  # an executor often has no home
            if isinstance(error, RuntimeError) and "no locator available" not in str(error):
                raise
        before = os.environ.get("XDG_CACHE_HOME")
        try:
            os.environ["XDG_CACHE_HOME"] = _own_cache()
            return compiler(function)
        except OSError:  # nothing can be written at all
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]
        finally:
            os.environ.pop("XDG_CACHE_HOME", None)
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before

    return compile_


helper = numba.njit(nogil=True, forceinline=True)


@intrinsic
def address_of(typing_context, array):
    """Where the bytes of an array lie."""

    def generate(context, builder, signature, args):
        made = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(made.data, ir.IntType(64))

    return types.int64(array), generate


@intrinsic
def byte_at(typing_context, address):
    """The byte at an address."""

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def copy_bytes(typing_context, to, source, count):
    """memcpy: a loop over bytes is not made into one by LLVM here, and costs ten times as much."""

    def generate(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(args[0], pointer),
            builder.inttoptr(args[1], pointer),
            args[2],
            ir.Constant(ir.IntType(64), 1),
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


# The processor's own CRC-32C, where numba compiles for a processor that is known to have it.
CRC_IN_HARDWARE = (
    platform.machine() == "x86_64"
    and numba.config.CPU_NAME is None
    and numba.config.CPU_FEATURES is None
    and bool(llvmlite.binding.get_host_cpu_features().get("sse4.2"))
)


@intrinsic
def _crc_of_word(typing_context, crc, address):
    """The CRC with the eight bytes at an address added."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word])
        name = "llvm.x86.sse42.crc32.64.64"
        step = cgutils.get_or_insert_function(builder.module, kind, name)
        pointer = builder.inttoptr(args[1], word.as_pointer())
        return builder.call(step, [args[0], builder.load(pointer, align=1)])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _crc_of_byte(typing_context, crc, address):
    """The CRC with one byte added."""

    def generate(context, builder, signature, args):
        half, byte = ir.IntType(32), ir.IntType(8)
        kind = ir.FunctionType(half, [half, byte])
        name = "llvm.x86.sse42.crc32.32.8"
        step = cgutils.get_or_insert_function(builder.module, kind, name)
        pointer = builder.inttoptr(args[1], byte.as_pointer())
        new = builder.call(step, [builder.trunc(args[0], half), builder.load(pointer)])
        return builder.zext(new, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@helper
def crc32c(at, end):
    crc = np.int64(0xFFFFFFFF)
    while end - at >= 8:
        crc = _crc_of_word(crc, at)
        at += 8
    while at < end:
        crc = _crc_of_byte(crc, at)
        at += 1
    return crc ^ np.int64(0xFFFFFFFF)


# -- numbers --------------------------------------------------------------------


@helper
def big_endian(at, size):
    value = np.int64(0)
    for i in range(size):
        value = (value << 8) | byte_at(at + i)
    return value


@helper
def int32_at(at):
    value = big_endian(at, 4)
    return value - (np.int64(1) << 32) if value >= np.int64(1) << 31 else value


@helper
def varint_at(at, limit):
    """A zig-zag number and what follows it; -1 follows one that is not complete."""
    if at >= limit:
        return np.int64(0), np.int64(-1)
    byte = byte_at(at)
    at += 1
    if byte < 128:  # nearly always
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 127
    shift = np.int64(7)
    while shift < 64:
        if at >= limit:
            return np.int64(0), np.int64(-1)
        byte = byte_at(at)
        at += 1
        if shift == 63 and byte > 1:
            return np.int64(0), np.int64(-1)
        value |= (byte & 127) << shift
        if byte < 128:
            return ((value >> 1) & _LARGEST) ^ -(value & 1), at
        shift += 7
    return np.int64(0), np.int64(-1)
