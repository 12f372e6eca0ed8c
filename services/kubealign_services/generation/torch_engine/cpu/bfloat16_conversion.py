"""Element conversions for compiled kernels, which compute in float32 over arrays of float32 or of bfloat16
bits as uint16, because numpy has no bfloat16 type.
"""

from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def has_compiled_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True where the compiled kernels can compute: on a CPU, in float32 and bfloat16."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def element_array(tensor: Tensor) -> Array:
    """Return a contiguous float32 or bfloat16 CPU tensor as an array that shares its memory."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array


def widen(element: Any) -> Any:
    """Convert an element to float32."""
    raise NotImplementedError("for compiled functions")


def narrow(number: Any, like: Any) -> Any:
    """Convert a float32 to an element such as `like`, rounded to nearest, ties to even."""
    raise NotImplementedError("for compiled functions")


@overload(widen)
def _widen(element: Any) -> Any:
    return _from_bits if element == types.uint16 else _identity


@overload(narrow)
def _narrow(number: Any, like: Any) -> Any:
    return _to_bits if like == types.uint16 else _identity_like


# Numba requires the same parameters, with annotations, in an overload and its implementations.
def _identity(element: Any) -> Any:
    return element


def _from_bits(element: Any) -> Any:
    return np.uint32(np.uint32(element) << np.uint32(16)).view(np.float32)


def _identity_like(number: Any, like: Any) -> Any:
    return number


def _to_bits(number: Any, like: Any) -> Any:
    word = np.float32(number).view(np.uint32)
    # Rounding must not turn a NaN into a number.
    odd = np.uint32(word >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint32(np.uint32(word + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return np.uint16(rounded if number == number else np.uint32(0x7FC0))


@njit(inline="always")
def exponential(x: Any) -> Any:
    """Compute e^x in float32, for x up to 88; below -87 the result is e^-87. Relative error below 2e-7.

    x = n ln 2 + r with |r| <= ln(2) / 2, ln 2 in two parts so that r is exact (Cody and Waite, "Software
    manual for the elementary functions", 1980); e^r by Taylor's polynomial of degree 7; 2^n by its bits.
    Without branches or calls, so that loops over it become vector instructions.
    """
    if x < np.float32(-87.0):
        x = np.float32(-87.0)
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    return p * np.int32(np.int32(np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
