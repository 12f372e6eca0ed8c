"""State and collaborators of the training loop during one attempt."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.driver.commits import Commits, TrainedPrompts
from kubealign_services.driver.evidence import save_evidence
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.members import Gate, Policy, Values, step_both
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.report import Report, StepFigures
from kubealign_services.driver.results import Results
from kubealign_services.driver.source import Source
from kubealign_services.driver.state import JobState
from kubealign_services.driver.training_client import CriticClient, TrainerClient
from kubealign_services.driver.validation import Validation
from kubealign_services.driver.weights import Weights
from kubealign_services.training.contract import NonFiniteLoss


@dataclass
class Run:
    """One attempt at a job under one fence. `state` is the last step that both trainer and critic have
    finished.
    """

    run_dir: Path
    max_steps: int
    commit_every: int
    critic_warmup_steps: int
    algorithm: Algorithm
    source: Source
    trainer_client: TrainerClient
    critic_client: CriticClient | None
    trainer: Policy
    critic: Values
    gate: Gate
    weights: Weights
    previews: Previews
    validation: Validation
    commits: Commits
    history: TrainedPrompts
    results: Results
    report: Report
    state: JobState = field(default_factory=JobState)
    #: The batch of the latest TrainStep.
    batch: Batch | None = None
    #: Held during a TrainStep or a checkpoint: shutdown waits for these to end while its deadline allows.
    undivided: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step_both(self, batch: Batch, after: JobState, step: StepFigures) -> JobState:
        """Run one TrainStep on trainer and critic. The step then counts as done, whatever happens to the
        driver.
        """
        self.batch = batch
        async with self.undivided:
            try:
                self.state = await step_both(
                    self.trainer_client, self.critic_client, batch, after, step, self.critic_warmup_steps
                )
            except NonFiniteLoss as error:
                raise self.no_numbers(after.step, error) from error
            self.history.add(self.state)
        return self.state

    def no_numbers(self, step: int, error: Exception) -> JobFailed:
        """Build the UnrecoverableError for a step that produced NaN or infinity. Saves the batch for
        debugging.
        """
        if self.batch is None:
            return JobFailed(str(error))
        path = save_evidence(self.run_dir, step, self.batch)
        return JobFailed(f"step {step}: {error}; its batch is kept in {path}")

    async def commit(self, state: JobState) -> None:
        """Save a checkpoint of `state` once a quorum of workers has verified its weights, so that destroyed
        weights are never saved.
        """
        await self.weights.proven(state.version)
        async with self.undivided:
            await self.commits.commit(state)

    def commits_at(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step."""
        return step % self.commit_every == 0
