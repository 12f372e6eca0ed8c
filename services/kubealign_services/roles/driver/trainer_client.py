"""Driver-side clients of trainer and critic: typed calls, each with a deadline."""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from google.protobuf.message import Message
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2, training_pb2
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.codec import decode_columns, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import add_scores
from kubealign_services.batch.samples import copy_columns, last_sequences, merge_samples
from kubealign_services.roles.driver.concurrency import run_calls
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.batch_assembly import prompt_of
from kubealign_services.roles.driver.rollouts.prefetch import ForwardCall, ForwardPrefetcher
from kubealign_services.roles.driver.state import JobState
from kubealign_services.runtime.rpc.client import Peer


class TrainingClient:
    """Calls that trainer and critic share. `timeout` is the deadline of computing calls in seconds."""

    def __init__(self, peer: Peer, fence: int, timeout: float) -> None:
        self.role = peer.name
        self.fence = fence
        self._peer = peer
        self._timeout = timeout

    async def describe(self) -> training_pb2.TrainingState:
        """Return the role's training state. Waits for a running command."""
        request = training_pb2.DescribeRequest(fence=self.fence)
        reply: training_pb2.TrainingState = await self._call("Describe", request)
        return reply

    async def load(self, state: JobState, directory: Path | None) -> None:
        """Load the initial weights (None) or those of a checkpoint."""
        request = training_pb2.LoadRequest(
            fence=self.fence,
            directory=str(directory or ""),
            step=state.step,
            driver_state=state.model_dump_json().encode(),
        )
        await self._call("Load", request)

    async def train_step(
        self, batch: Batch, after: JobState, update: bool, measured: Mapping[str, float]
    ) -> dict[str, float]:
        """Run step `after.step`. Return the step's metrics; empty if nothing was updated.

        Args:
            measured: Metrics of the step so far, which the role keeps for a driver that takes over.
        """
        request = training_pb2.TrainStepRequest(
            fence=self.fence,
            step=after.step,
            batch=encode(batch),
            update=update,
            driver_state=after.model_dump_json().encode(),
            driver_metrics=batch_pb2.Metrics(values=measured),
        )
        reply = await self._call("TrainStep", request)
        return dict(reply.metrics.values)

    async def save(self, step: int, directory: Path) -> list[training_pb2.Shard]:
        """Write this role's shards into an existing folder."""
        request = training_pb2.SaveRequest(fence=self.fence, step=step, directory=str(directory))
        reply = await self._call("Save", request)
        return list(reply.shards)

    async def _call(self, method: str, request: Message) -> Any:
        return await self._peer.call(method, request, self._timeout)

    async def _forward_columns(
        self, method: str, batch: Batch, outputs: list[str], keep_graph: bool = False
    ) -> dict[str, Tensor]:
        request = training_pb2.ForwardRequest(
            fence=self.fence, batch=encode(batch), outputs=outputs, learned=keep_graph
        )
        reply = await self._call(method, request)
        return decode_columns(reply.columns, reply.digest)


class TrainerClient(TrainingClient):
    """Client of the policy's trainer."""

    async def logprobs(self, batch: Batch, keep_graph: bool = False) -> Tensor:
        """Return the policy's log-probabilities of the tokens, float32 [T].

        Args:
            keep_graph: The next update trains on these sequences, so the forward pass may be kept.
        """
        columns = await self._forward_columns("Logprobs", batch, ["logprobs"], keep_graph)
        return columns["token.logprobs"]

    async def token_outputs(self, outputs: Sequence[str], batch: Batch, keep_graph: bool = False) -> Tensor:
        """Return several outputs of the forward pass that `logprobs` makes, float32 [T, len(outputs)]."""
        columns = await self._forward_columns("Logprobs", batch, list(outputs), keep_graph)
        return torch.stack([columns[f"token.{name}"] for name in outputs], dim=1)

    async def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of the reference that the trainer hosts, float32 [T]."""
        columns = await self._forward_columns("ReferenceLogprobs", batch, ["logprobs"])
        return columns["token.logprobs"]

    async def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean loss and the metrics of a batch."""
        request = training_pb2.EvaluateRequest(fence=self.fence, batch=encode(batch))
        reply = await self._call("Evaluate", request)
        return dict(reply.metrics.values)

    async def export(self, step: int, directory: Path) -> None:
        """Write the model as a Hugging Face folder."""
        request = training_pb2.ExportRequest(fence=self.fence, step=step, directory=str(directory))
        await self._call("Export", request)

    async def publish_weights(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        """Take a snapshot of the weights for workers to fetch."""
        request = refit_pb2.PublishWeightsRequest(fence=fence, version=version)
        reply: refit_pb2.WeightsAnnouncement = await self._call("PublishWeights", request)
        return reply


class CriticClient(TrainingClient):
    """Client of the critic."""

    async def values(self, batch: Batch) -> Tensor:
        """Return the value of the state before each token, float32 [T].

        The next update trains on these sequences.
        """
        columns = await self._forward_columns("Values", batch, ["values"], keep_graph=True)
        return columns["token.values"]

    async def scores(self, batch: Batch, names: list[str]) -> dict[str, Tensor]:
        """Return the scores of the critic's reward models by name, each float32 [S]."""
        columns = await self._forward_columns("Score", batch, names)
        return {name: columns[f"sequence.{name}"] for name in names}


class OldLogprobs:
    """Old log-probabilities, and other outputs of the same pass, from the trainer, only where the algorithm
    needs them.

    `prefetcher` may request them before the batch is complete.

    Args:
        outputs: Result of `outputs_before_step`.
    """

    def __init__(self, client: TrainerClient, outputs: Sequence[str]) -> None:
        self._outputs = tuple(outputs)
        forward = partial(client.token_outputs, self._outputs) if len(outputs) > 1 else client.logprobs
        self.prefetcher = ForwardPrefetcher(partial(_forward_for_training, forward)) if outputs else None

    async def add_to(self, batch: Batch, step: StepRecord) -> None:
        """Add the columns old_logprobs and, where needed, old_entropy and old_collision (float32 [T])."""
        if self.prefetcher is None:
            return
        with step.phase("logprobs"):
            result = await self.prefetcher.get_column(batch)
        columns = result.unbind(1) if len(self._outputs) > 1 else (result,)
        for name, column in zip(self._outputs, columns, strict=True):
            batch.token_columns[f"old_{name}"] = column.contiguous()


class CriticValues:
    """Values from the critic, if one exists. `prefetcher` may request them before the batch is complete."""

    def __init__(self, client: CriticClient | None) -> None:
        self.prefetcher = None if client is None else ForwardPrefetcher(client.values)

    async def add_to(self, batch: Batch, step: StepRecord) -> None:
        """Add the column values (float32 [T])."""
        if self.prefetcher is not None:
            with step.phase("values"):
                batch.token_columns["values"] = await self.prefetcher.get_column(batch)


async def _forward_for_training(forward: Callable[..., Awaitable[Tensor]], batch: Batch) -> Tensor:
    return await forward(batch, keep_graph=bool(trainable_mask(batch).all()))


class ColocatedScorer:
    """Scorers hosted by other roles: reward models by the critic, the reference by the trainer.

    Their prefetchers, None where there is no such scorer, may request scores before the batch is complete.

    Args:
        rewards: Names of the critic's reward models.
        reference: Call of the reference that the trainer hosts; None: the trainer hosts none.
        parallel: Critic and trainer compute at the same time.
        sources: Name of a reward model -> prompts whose responses it scores; others score all.
    """

    def __init__(
        self,
        critic: CriticClient | None,
        rewards: Sequence[str],
        reference: ForwardCall | None,
        parallel: bool = True,
        sources: Mapping[str, Container[str]] | None = None,
    ) -> None:
        self._rewards = list(rewards)
        self._sources = sources or {}
        self._parallel = parallel
        self.reward_prefetcher = (
            ForwardPrefetcher(partial(self._stacked_scores, critic), per_sequence=True)
            if self._rewards and critic is not None
            else None
        )
        self.reference_prefetcher = None if reference is None else ForwardPrefetcher(reference)

    async def score(self, batch: Batch, step: StepRecord) -> None:
        """Add the scores of the rewards (see `reward_columns`) and reference_logprobs (float32 [T])."""
        with step.phase("score"):
            await run_calls(
                self._add_rewards(batch, step),
                self._add_reference_logprobs(batch, step),
                parallel=self._parallel,
            )

    async def _add_rewards(self, batch: Batch, step: StepRecord) -> None:
        if self.reward_prefetcher is not None:
            with step.phase("score/critic"):
                scores = await self.reward_prefetcher.get_column(batch)
            scored, samples, last = self._scored_sequences(batch), merge_samples(batch), last_sequences(batch)
            for name, values in zip(self._rewards, scores.unbind(1), strict=True):
                masked = mask_scores(values, scored[name])
                add_scores(samples, name, [masked[index] for index in last])
            copy_columns(samples, batch)

    async def _stacked_scores(self, critic: CriticClient, batch: Batch) -> Tensor:
        """Return the scores of the critic's K reward models, float32 [S, K], 0 where a model has none."""
        scores = await score_sequences(critic, batch, self._scored_sequences(batch))
        return torch.stack([scores[name] for name in self._rewards], dim=1)

    def _scored_sequences(self, batch: Batch) -> dict[str, list[int]]:
        """Return name of a reward model -> indices of the sequences that it scores, of each sample the
        last one at most.
        """
        prompts = [prompt_of(sample_id) for sample_id in batch.sample_ids]
        return {
            name: [
                index
                for index in last_sequences(batch)
                if name not in self._sources or prompts[index] in self._sources[name]
            ]
            for name in self._rewards
        }

    async def _add_reference_logprobs(self, batch: Batch, step: StepRecord) -> None:
        if self.reference_prefetcher is not None:
            with step.phase("score/reference"):
                batch.token_columns["reference_logprobs"] = await self.reference_prefetcher.get_column(batch)


async def score_sequences(
    critic: CriticClient, batch: Batch, sequences: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return the scores of the critic's reward models by name, float32 [S], 0 where a model has none.

    Args:
        sequences: Name of a model -> indices of the sequences that it scores.
    """
    names_by_sequences: dict[tuple[int, ...], list[str]] = {}
    for name, indices in sequences.items():
        names_by_sequences.setdefault(tuple(indices), []).append(name)
    result = {name: torch.zeros(len(batch)) for name in sequences}
    for scored, names in names_by_sequences.items():
        if scored:
            part = batch if len(scored) == len(batch) else batch.select(scored)
            for name, column in (await critic.scores(part, names)).items():
                result[name][list(scored)] = column
    return result


def mask_scores(scores: Tensor, sequences: Collection[int]) -> list[float | None]:
    """Return the scores [S] of these sequences, and None for the others."""
    scored = set(sequences)
    return [score if index in scored else None for index, score in enumerate(scores.tolist())]


async def run_train_step(
    trainer: TrainerClient,
    critic: CriticClient | None,
    batch: Batch,
    after: JobState,
    step: StepRecord,
    critic_warmup_steps: int,
    on_policy_trained: Callable[[], None],
    parallel: bool = True,
) -> JobState:
    """Send one TrainStep to trainer and critic; return `after` once both have finished.

    During the critic's warm-up the trainer counts the step and leaves the policy unchanged.

    Args:
        on_policy_trained: Called as soon as the trainer has finished, while the critic may still train.
        parallel: Trainer and critic train at the same time; otherwise the critic trains after the trainer,
            and `on_policy_trained` is called after both.
    """
    update = after.step > critic_warmup_steps
    measured = {**step.metrics, "seconds/step": step.elapsed_seconds()}

    async def train_policy() -> dict[str, float]:
        metrics = await trainer.train_step(batch, after, update, measured)
        if parallel:
            on_policy_trained()
        return metrics

    with step.phase("train"):
        values: dict[str, float] = {}
        if critic is None:
            policy = await train_policy()
        else:
            policy, values = await run_calls(
                _measure(step, "train/policy", train_policy()),
                _measure(step, "train/critic", critic.train_step(batch, after, True, measured)),
                parallel=parallel,
            )
    if not parallel:
        on_policy_trained()
    step.add(prefix_metrics(policy, "trainer"))
    step.add(prefix_metrics(values, "critic"))
    return after


async def _measure(step: StepRecord, phase: str, training: Awaitable[dict[str, float]]) -> dict[str, float]:
    with step.phase(phase):
        return await training


def prefix_metrics(metrics: dict[str, float], role: str) -> dict[str, float]:
    """Prefix optimiser metrics with the role's name; metrics of the objective keep their names and win.

    A map from the wire has no order that could decide between the critic's own loss and its objective's
    critic/loss.
    """
    objective_metrics = {name: value for name, value in metrics.items() if "/" in name}
    optimiser_metrics = {
        f"{role}/{name}": value for name, value in metrics.items() if name not in objective_metrics
    }
    return optimiser_metrics | objective_metrics
