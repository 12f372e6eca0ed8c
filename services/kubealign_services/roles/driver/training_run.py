"""State and collaborators of the training loop during one attempt."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from kubealign.spec.sections.overlap import Overlap
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.checkpoints import CheckpointWriter, ResultExporter, TrainingHistory
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.logprob_gap_gate import LogprobGapGate
from kubealign_services.roles.driver.metrics.nan_dump import dump_batch
from kubealign_services.roles.driver.metrics.report import MetricsReport, StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.sources.batch_sources import BatchSource
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import (
    CriticClient,
    CriticValues,
    OldLogprobs,
    TrainerClient,
    run_train_step,
)
from kubealign_services.roles.driver.validation.validation import ValidationSchedule
from kubealign_services.roles.driver.weight_sync import WeightSync
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.training.contract import NonFiniteLoss


@dataclass
class TrainingRun:
    """One attempt at a job under one fence.

    `state` is the last step that both trainer and critic have finished.
    """

    run_dir: Path
    max_steps: int
    checkpoint_every: int
    critic_warmup_steps: int
    overlap: Overlap
    algorithm: Algorithm
    source: BatchSource
    trainer_client: TrainerClient
    critic_client: CriticClient | None
    old_logprobs: OldLogprobs
    critic_values: CriticValues
    logprob_gap_gate: LogprobGapGate
    weight_sync: WeightSync
    previews: SamplePreviews
    validation: ValidationSchedule
    checkpoints: CheckpointWriter
    history: TrainingHistory
    result_exporter: ResultExporter
    report: MetricsReport
    state: JobState = field(default_factory=JobState)
    #: The batch of the latest TrainStep.
    last_batch: Batch | None = None
    #: Held during a TrainStep or a checkpoint: shutdown waits for these to end while its deadline allows.
    critical_section: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def train_step(self, batch: Batch, after: JobState, step: StepRecord) -> JobState:
        """Run one TrainStep on trainer and critic, and start to publish the new weights: once the trainer has
        them, or after the critic where they do not train at the same time.

        The step counts as done when both have finished, whatever happens to the driver. Raises RefitFailed
        for the weights of an earlier step.
        """
        self.last_batch = batch
        publishing: list[asyncio.Task[None]] = []

        def publish() -> None:
            publishing.append(
                asyncio.create_task(self.weight_sync.publish_in_background(after.version, step))
            )

        try:
            async with self.critical_section:
                failpoint(Failpoint.STEP_BEFORE_TRAIN)
                try:
                    self.state = await run_train_step(
                        self.trainer_client,
                        self.critic_client,
                        batch,
                        after,
                        step,
                        self.critic_warmup_steps,
                        publish,
                        self.overlap.parallel_training,
                    )
                except NonFiniteLoss as error:
                    raise self.non_finite_failure(after.step, error) from error
                failpoint(Failpoint.STEP_AFTER_TRAIN)
                await self.history.append(self.state)
            await asyncio.gather(*publishing)
        finally:
            for task in publishing:
                task.cancel()
        return self.state

    def non_finite_failure(self, step: int, error: Exception) -> UnrecoverableError:
        """Build the UnrecoverableError for a step that produced NaN or infinity.

        Saves the batch for debugging.
        """
        if self.last_batch is None:
            return UnrecoverableError(str(error))
        path = dump_batch(self.run_dir, step, self.last_batch)
        return UnrecoverableError(f"step {step}: {error}; its batch is kept in {path}")

    async def save_checkpoint(self, state: JobState) -> None:
        """Save a checkpoint of `state` once a quorum of workers has verified its weights, so that destroyed
        weights are never saved.
        """
        await self.weight_sync.wait_for_quorum(state.version)
        async with self.critical_section:
            await self.checkpoints.save(state)

    async def save_missed_checkpoint(self, state: JobState) -> None:
        """Save the checkpoint of the step that the attempt begins with, if an earlier attempt could not."""
        if state.step > 0 and self.is_checkpoint_due(state.step) and not self.checkpoints.is_saved(state):
            await self.save_checkpoint(state)

    def is_checkpoint_due(self, step: int) -> bool:
        """Return True if a checkpoint is due after this step."""
        return step % self.checkpoint_every == 0
