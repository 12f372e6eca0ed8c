"""The part of a process's context that scorers use."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from kubealign_services.runtime.process.context import ProcessContext


class ScorerContext:
    """Computes on the caller's thread. `settings.name` is the worker's name."""

    def __init__(self, worker: str) -> None:
        self.settings = SimpleNamespace(name=worker)

    async def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def scorer_context(worker: str) -> ProcessContext:
    return cast(ProcessContext, ScorerContext(worker))
