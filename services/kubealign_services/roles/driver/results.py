"""Exports the job's result as a Hugging Face folder."""

from pathlib import Path

from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient


class ResultExporter:
    """Exporter of the trained model."""

    def __init__(self, trainer: TrainerClient, directory: Path) -> None:
        self._trainer = trainer
        self._directory = directory

    async def export(self, state: JobState) -> None:
        """Write the policy (or the reward model) of `state`."""
        await self._trainer.export(state.step, self._directory)
