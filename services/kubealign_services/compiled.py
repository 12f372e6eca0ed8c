"""Functions compiled to machine code when they are first called, and kept on disk for the next process."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be taken in any order, which is what vector instructions need. NaN and infinity stay what they are:
# the engine must see them.
_ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}

_PACKAGE = Path(__file__).parent
#: Where the functions are, and what they call.
_SOURCES = ("refit", "generation/torch_engine/cpu")


def _state_of_sources() -> str:
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# The compiler itself looks at a function's own file only, not at those of what it calls: it would go on with
# machine code of yesterday's.
_CONFIG: Any = numba.config
_KEPT = Path(_CONFIG.CACHE_DIR or _PACKAGE / "__pycache__")
_CONFIG.CACHE_DIR = str(_KEPT / f"kernels-{_state_of_sources()}")


def compiled_at_once(*signatures: object) -> Callable[[Function], Function]:
    """As `compiled`, for arguments of these types and no others, when the module is imported. The first such
    function loads the compiler: a process forked after that has it."""
    return lambda function: _made(function, list(signatures))


def compiled(function: Function) -> Function:
    """The function, for one thread, without the interpreter's lock. Arrays are numpy's.

    Machine code is kept in the package's folder (or in NUMBA_CACHE_DIR), or else in the user's cache folder;
    where neither can be written, each process compiles for itself. It is made anew when any file changes that
    such functions are made of.
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
