"""xxh3-64 kernels over stripes of 64 bytes, which can be stored to a target in the same pass; building blocks
for compiled functions.

The library would read the bytes a second time for the checksum, slower than memory bandwidth: together
half a memcpy more for each refit. The result is exactly that of the library (Collet, "xxHash fast digest
algorithm", specification 0.2.0, section XXH3 for long inputs, without a seed).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Bytes. A stripe is processed by eight lanes of eight bytes; after each block the lanes are mixed.
STRIPE, BLOCK = 64, 1024
#: Inputs up to this length are hashed differently by the specification.
SHORT_INPUT_BYTES = 240
#: Offset of the last stripe's key in the secret.
LAST_KEY_OFFSET = 121
_MIXING_KEY_OFFSET, _END_KEY_OFFSET = 128, 11

_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_AVALANCHE = 0x165667919E3779F9
_MASK = (1 << 64) - 1
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

_LANES = ir.VectorType(ir.IntType(64), 8)


def init_lanes() -> Any:
    """Return the lanes [8] uint64 before the first stripe."""
    lanes = [_PRIME32[2], *_PRIME64[:4], _PRIME32[1], _PRIME64[4], _PRIME32[0]]
    return np.array(lanes, np.uint64)


def finalize(lanes: list[int], size: int) -> int:
    """Return the checksum of `size` bytes from the lanes after the last stripe."""
    total = size * _PRIME64[0] & _MASK
    for pair in range(4):
        first, second = (
            lanes[2 * pair + one]
            ^ int.from_bytes(SECRET[_END_KEY_OFFSET + 16 * pair + 8 * one :][:8], "little")
            for one in range(2)
        )
        product = first * second
        total += (product & _MASK) ^ (product >> 64)
    total &= _MASK
    total ^= total >> 37
    total = total * _AVALANCHE & _MASK
    return total ^ (total >> 32)


def absorb_stripes(stripes: int, *, stores: bool, mixes: bool) -> Any:
    """Return an intrinsic (target, source, lanes, key), all addresses, that accumulates stripes of the source
    into the lanes [8] uint64.

    Args:
        stripes: Number of stripes.
        stores: Also store the stripes to the target, whose address must be a multiple of 64.
        mixes: Mix the lanes at the end of a block.
    """

    @intrinsic
    def absorb(context: Any, target: Any, source: Any, lanes: Any, key: Any) -> Any:
        def generate(target_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target_address, source_address, state, secret = arguments
            accumulated = builder.load(_pointer(builder, state, 0, _LANES), align=8)
            for stripe in range(stripes):
                data = builder.load(_pointer(builder, source_address, stripe * STRIPE, _LANES), align=1)
                if stores:
                    pointer = _pointer(builder, target_address, stripe * STRIPE, _LANES)
                    stored = builder.store(data, pointer, align=STRIPE)
                    # Non-temporal: a cached store would read the line first and evict other data. A hint
                    # that processors without such stores ignore.
                    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
                keys = builder.load(_pointer(builder, secret, 8 * stripe, _LANES), align=1)
                accumulated = _accumulate(builder, accumulated, data, keys)
            if mixes:
                keys = builder.load(_pointer(builder, secret, _MIXING_KEY_OFFSET, _LANES), align=1)
                shifted = builder.lshr(accumulated, _broadcast_lanes(47))
                accumulated = builder.xor(builder.xor(accumulated, shifted), keys)
                accumulated = builder.mul(accumulated, _broadcast_lanes(_PRIME32[0]))
            builder.store(accumulated, _pointer(builder, state, 0, _LANES), align=8)
            return target_context.get_dummy_value()

        address = types.uintp
        return types.void(address, address, address, address), generate

    return absorb


@intrinsic
def store_fence(context: Any) -> Any:
    """Emit a memory fence: non-temporal stores are not ordered with other stores, such as the one that
    publishes the data.
    """

    def generate(target_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target_context.get_dummy_value()

    return types.void(), generate


def _accumulate(builder: Any, lanes: Any, stripe: Any, keys: Any) -> Any:
    """Return the lanes after one more stripe."""
    keyed = builder.xor(stripe, keys)
    product = builder.mul(
        builder.and_(keyed, _broadcast_lanes(0xFFFFFFFF)), builder.lshr(keyed, _broadcast_lanes(32))
    )
    order = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
    neighbours = builder.shuffle_vector(stripe, ir.Constant(_LANES, ir.Undefined), order)
    return builder.add(builder.add(lanes, neighbours), product)


def _pointer(builder: Any, address: Any, offset: int, of: Any) -> Any:
    moved = builder.add(address, ir.Constant(address.type, offset)) if offset else address
    return builder.inttoptr(moved, of.as_pointer())


def _broadcast_lanes(number: int) -> Any:
    return ir.Constant(_LANES, [number] * 8)
