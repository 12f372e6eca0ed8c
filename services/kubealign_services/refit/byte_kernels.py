"""The loops over a snapshot's bytes, compiled: storing past the cache, and float32 as bfloat16.

A store into the cache reads the line first that it is going to write, and drives out what others have there.
A snapshot is many times the cache and is read next by another process, so its bytes go straight to memory:
two thirds of the traffic.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kubealign_services.compiled import compiled_at_once

Bytes = NDArray[np.uint8]

# What the processor writes to memory at once.
_LINE = 64
_WORDS = ir.VectorType(ir.IntType(64), _LINE // 8)


def store(target: Bytes, source: Bytes) -> None:
    """Copy contiguous bytes, as many as `target` has, leaving none of them in the cache where it begins at a
    whole line. Whoever is told afterwards sees them."""
    whole = len(target) // _LINE if target.ctypes.data % _LINE == 0 else 0
    if whole:
        _stream(target.ctypes.data, source.ctypes.data, whole)
    rest = slice(whole * _LINE, len(target))
    np.copyto(target[rest], source[rest])


@intrinsic
def _stream_line(context: Any, target: Any, source: Any) -> Any:
    """One line from an address to another, which is a multiple of it, marked as not to be cached: a hint that
    processors without such a store do without."""

    def generate(target_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of = (builder.inttoptr(argument, _WORDS.as_pointer()) for argument in arguments)
        stored = builder.store(builder.load(of, align=1), to, align=_LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return target_context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@intrinsic
def _fence(context: Any) -> Any:
    """Such stores keep no order with others, not even with the one that tells of them."""

    def generate(target_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target_context.get_dummy_value()

    return types.void(), generate


@compiled_at_once("void(uintp, uintp, uintp)")
def _stream(target: Any, source: Any, lines: Any) -> None:
    for line in range(lines):
        _stream_line(target + line * _LINE, source + line * _LINE)  # type: ignore[call-arg]
    _fence()  # type: ignore[call-arg]


@compiled_at_once("void(uint32[::1], uint16[::1])")
def narrow(bits: Any, out: Any) -> None:
    """float32 [n] as bfloat16 [n], both as their bits: rounded to the nearest, ties to even; a NaN stays one.
    `out` is filled."""
    for place in range(out.size):
        whole = bits[place]
        odd = (whole >> np.uint32(16)) & np.uint32(1)
        rounded = np.uint32(whole + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = (whole & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[place] = np.uint16(np.uint32(0x7FC0) if is_nan else rounded)
