"""Numba-compiled functions, compiled at the first call or at import and cached on disk."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered, which vector instructions need. NaN and infinity are preserved: the engine must
# detect them.
_ARITHMETIC = {"reassoc", "contract", "nsz", "arcp"}

_PACKAGE = Path(__file__).parents[1]
#: Folders of the compiled functions and of the functions that they call.
_SOURCE_FOLDERS = ("weights/verify", "weights/transfer/delta", "generation/torch_engine/cpu")


def _source_digest() -> str:
    digest = hashlib.sha256()
    for folder in _SOURCE_FOLDERS:
        for path in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# The compiler itself checks a function's own file only, not the files of the functions that it calls: it
# would use stale machine code.
_CONFIG: Any = numba.config
_CACHE_FOLDER = Path(_CONFIG.CACHE_DIR or _PACKAGE / "__pycache__")
_CONFIG.CACHE_DIR = str(_CACHE_FOLDER / f"kernels-{_source_digest()}")


def numba_eager(*signatures: object) -> Callable[[Function], Function]:
    """Compile like `numba_lazy`, but when the module is imported, and for arguments of these types only.

    The first such function loads the compiler: a process that is forked later has it.
    """
    return lambda function: _jit(function, list(signatures))


def numba_lazy(function: Function) -> Function:
    """Compile the function for one thread, without the interpreter's lock. Arrays are numpy's.

    Machine code is cached in the package's folder (or in NUMBA_CACHE_DIR), or else in the user's cache
    folder; where neither is writable, each process compiles for itself. It is recompiled when any source
    file of such functions changes.
    """
    return _jit(function)


def _jit(function: Function, *signatures: list[object]) -> Function:
    options = {"nogil": True, "fastmath": _ARITHMETIC, "error_model": "numpy"}
    njit: Any = numba.njit
    try:
        result: Function = njit(*signatures, cache=True, **options)(function)
    except RuntimeError:  # no folder is writable
        result = njit(*signatures, **options)(function)
    return result
