"""Everything that the loop works with, under the names that it uses."""

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
    """One attempt at a job, under one fence. `state` is the last step that trainer and critic have both
    done."""

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
    #: Of the newest TrainStep.
    batch: Batch | None = None
    #: Held by what is not broken off half-way where there is time to end it: a TrainStep, a commit.
    undivided: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step_both(self, batch: Batch, after: JobState, step: StepFigures) -> JobState:
        """One TrainStep on trainer and critic; from here on the step is done, whatever becomes of the
        driver."""
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
        """The failure of a step that has made no numbers of the policy; its batch is kept for study."""
        if self.batch is None:
            return JobFailed(str(error))
        path = save_evidence(self.run_dir, step, self.batch)
        return JobFailed(f"step {step}: {error}; its batch is kept in {path}")

    async def commit(self, state: JobState) -> None:
        """Commit a state whose weights are proven: what an update has destroyed is not kept."""
        await self.weights.proven(state.version)
        async with self.undivided:
            await self.commits.commit(state)

    def commits_at(self, step: int) -> bool:
        return step % self.commit_every == 0
