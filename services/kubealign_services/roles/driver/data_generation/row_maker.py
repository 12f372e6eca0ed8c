"""Row maker protocol, shared by all algorithms that generate data instead of training."""

from collections.abc import Sequence
from typing import Any, Protocol

from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord


class RowMaker(Protocol):
    """Generates the rows of one step after another. The same indices always give the same rows."""

    async def make(
        self, indices: Sequence[int], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        """Return the rows generated from the job's rows at these indices (from 0), as JSON objects, in order.

        Args:
            state: State after the step. The maker stores in it what later steps need: moments of the
                rewards, failed prompts.

        Raises:
            UnrecoverableError: The job cannot succeed.
            ShutdownRequested: The driver was asked to stop.
        """
