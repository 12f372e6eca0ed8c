"""Ranks of a group as processes forked from a process with all imports done: imports take fifteen seconds of
a core, a fork almost nothing.
"""

import importlib
import multiprocessing as mp
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self


class RankFactory:
    """A process with `modules` imported, which forks ranks. A context manager: leaving ends the process and
    its remaining ranks.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)

    def __enter__(self) -> Self:
        context = mp.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._modules))
        self._process.start()
        theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(10)

    def run(self, target: str, ranks: Sequence[tuple[Any, ...]], timeout: float) -> list[int | None]:
        """Call `module:function` in one process for each rank's arguments, and wait for all. Returns their
        exit codes; one that is not done in time is killed (-9).
        """
        self._line.send((target, list(ranks), timeout))
        if not self._line.poll(timeout + 60):
            raise TimeoutError(f"{target} on {len(ranks)} ranks gave no answer in {timeout + 60:g} s")
        codes: list[int | None] = self._line.recv()
        return codes


def _serve(line: Connection, modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    context = mp.get_context("fork")
    while True:
        try:
            target, ranks, timeout = line.recv()
        except EOFError:
            # Exit immediately: an orderly interpreter shutdown takes seconds with so many modules.
            os._exit(0)
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
        processes = [context.Process(target=function, args=arguments) for arguments in ranks]
        deadline = time.monotonic() + timeout
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join(10)
        line.send([process.exitcode for process in processes])
