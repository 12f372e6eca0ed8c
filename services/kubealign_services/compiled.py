"""Functions compiled to machine code when they are first called, and kept on disk for the next process."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be taken in any order, which is what vector instructions need. NaN and infinity stay what they are:
# the engine must see them.
_ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}


def compiled_at_once(*signatures: object) -> Callable[[Function], Function]:
    """As `compiled`, for arguments of these types and no others, when the module is imported. The first such
    function loads the compiler: a process forked after that has it."""
    return lambda function: _made(function, list(signatures))


def compiled(function: Function) -> Function:
    """The function, for one thread, without the interpreter's lock. Arrays are numpy's.

    Machine code is kept beside the source, or else in the user's cache folder; where neither can be written,
    each process compiles for itself. It is made anew when the function's own file changes, not when what it
    calls in another file does.
    """
    return _made(function)


def _made(function: Function, *signatures: list[object]) -> Function:
    options = {"nogil": True, "fastmath": _ARITHMETIC, "error_model": "numpy"}
    njit: Any = numba.njit
    try:
        made: Function = njit(*signatures, cache=True, **options)(function)
    except RuntimeError:  # no folder can be written
        made = njit(*signatures, **options)(function)
    return made
