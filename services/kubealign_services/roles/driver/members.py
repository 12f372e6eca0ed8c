"""Policy, critic and co-located scorers as the training loop uses them: each adds columns to the batch and
records its time.
"""

import asyncio
from functools import partial

from torch import Tensor

from kubealign.spec.sections.rollout import MismatchGateSpec
from kubealign_services.batch.auxiliary import trainable_mask
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.rollouts.prefetch import ForwardPrefetcher
from kubealign_services.roles.driver.metrics.batch_metrics import check_logprob_gap, measure_logprob_gap
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import CriticClient, TrainerClient


class OldLogprobs:
    """Old log-probabilities from the trainer, only where the algorithm needs them. `prefetcher` may request
    them before the batch is complete.
    """

    def __init__(self, client: TrainerClient, needs_old_logprobs: bool) -> None:
        self.prefetcher = ForwardPrefetcher(partial(_logprobs_for_training, client)) if needs_old_logprobs else None

    async def add_to(self, batch: Batch, step: StepRecord) -> None:
        """Add the column old_logprobs (float32 [T])."""
        if self.prefetcher is not None:
            with step.phase("logprobs"):
                batch.token_columns["old_logprobs"] = await self.prefetcher.get_column(batch)


class CriticValues:
    """Values from the critic, where one exists. `prefetcher` may request them before the batch is complete.
    """

    def __init__(self, client: CriticClient | None) -> None:
        self.prefetcher = None if client is None else ForwardPrefetcher(client.values)

    async def add_to(self, batch: Batch, step: StepRecord) -> None:
        """Add the column values (float32 [T])."""
        if self.prefetcher is not None:
            with step.phase("values"):
                batch.token_columns["values"] = await self.prefetcher.get_column(batch)


async def _logprobs_for_training(client: TrainerClient, batch: Batch) -> Tensor:
    return await client.logprobs(batch, keep_graph=bool(trainable_mask(batch).all()))


class ColocatedScorer:
    """Scorers hosted by other roles: reward models by the critic, the reference by the trainer."""

    def __init__(
        self, trainer: TrainerClient, critic: CriticClient | None, rewards: list[str], reference: bool
    ) -> None:
        self._trainer = trainer
        self._critic = critic
        self._rewards = rewards
        self._reference = reference

    async def score(self, batch: Batch, step: StepRecord) -> None:
        """Add the columns reward.NAME (float64 [S]) and reference_logprobs (float32 [T])."""
        with step.phase("score"):
            if self._rewards and self._critic is not None:
                for name, scores in (await self._critic.scores(batch, self._rewards)).items():
                    batch.sequence_columns[f"reward.{name}"] = scores.double()
            if self._reference:
                batch.token_columns["reference_logprobs"] = await self._trainer.reference_logprobs(batch)


class LogprobGapGate:
    """Check that stops a job whose engine and trainer disagree on log-probabilities.

    With one update per step and no KL penalty the trainer measures the gap within the step.
    """

    def __init__(self, spec: MismatchGateSpec | None) -> None:
        self._spec = spec

    def check(self, batch: Batch, step: StepRecord) -> None:
        """Raise UnrecoverableError if the mean log-probability gap exceeds the spec's bound."""
        if self._spec is None:
            return
        if "old_logprobs" in batch.token_columns and "rollout/logprob_gap_mean" not in step.metrics:
            step.add(measure_logprob_gap(batch))
        if "rollout/logprob_gap_mean" in step.metrics:
            check_logprob_gap(step.metrics, self._spec.mean)


async def run_train_step(
    trainer: TrainerClient,
    critic: CriticClient | None,
    batch: Batch,
    after: JobState,
    step: StepRecord,
    critic_warmup_steps: int,
) -> JobState:
    """Send one TrainStep to trainer and critic concurrently; return `after` once both have finished.

    During the critic's warm-up the trainer counts the step and leaves the policy unchanged.
    """
    update = after.step > critic_warmup_steps
    with step.phase("train"):
        values: dict[str, float] = {}
        if critic is None:
            policy = await trainer.train_step(batch, after, update)
        else:
            policy, values = await asyncio.gather(
                trainer.train_step(batch, after, update), critic.train_step(batch, after, update=True)
            )
    step.add(_prefix_metrics(policy, "trainer"))
    step.add(_prefix_metrics(values, "critic"))
    return after


def _prefix_metrics(metrics: dict[str, float], role: str) -> dict[str, float]:
    """Prefix optimiser metrics with the role's name; metrics of the objective keep their names and win.

    A map from the wire has no order that could decide between the critic's own loss and its objective's
    critic/loss.
    """
    objective_metrics = {name: value for name, value in metrics.items() if "/" in name}
    optimiser_metrics = {
        f"{role}/{name}": value for name, value in metrics.items() if name not in objective_metrics
    }
    return optimiser_metrics | objective_metrics
