"""What makes rows of data: one protocol for every algorithm that trains nothing."""

from collections.abc import Sequence
from typing import Any, Protocol

from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures


class RowMaker(Protocol):
    """Makes the rows of one step after another. The same places give the same rows, whenever they are asked
    for."""

    async def make(
        self, places: Sequence[int], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        """What the job's rows at these places (from 0) become, as JSON objects, in their order.

        state: that which follows the step; the maker keeps in it what it needs from step to step (moments of
        the rewards, prompts given up). Raises JobFailed, Stopping.
        """
