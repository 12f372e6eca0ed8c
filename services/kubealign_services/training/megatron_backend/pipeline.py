"""Microbatches through the pipeline, and a minibatch's totals over all ranks.

The schedule is megatron-core's (one forward, one backward: Narayanan et al. 2021). Each data-parallel rank
has as many microbatches as the others; all ranks of one replica of the model run the same ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.collectives import all_reduce_sum
from kubealign_services.training.megatron_backend.cpu_shims import megatron_cpu_shims
from kubealign_services.training.megatron_backend.model.stage import PipelineStage
from kubealign_services.training.megatron_backend.model.stage_tokens import StageTokens
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout
from kubealign_services.training.torch_backend.packing.microbatches import Microbatch, plan_microbatches
from kubealign_services.training.torch_backend.passes.microbatch_passes import MinibatchMetrics

Columns = dict[str, Tensor]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline stage and its layout. Every method is collective."""

    stage: PipelineStage
    layout: ParallelLayout
    world_size: int
    device: torch.device
    microbatch_tokens: int

    def run_objective(self, minibatch: Batch, objective: Objective) -> MinibatchMetrics:
        """Run one prepared minibatch. Returns the same metrics on all ranks.

        Adds this rank's part of the gradient to the parameters when gradients are enabled. The objective sees
        CPU tensors.
        """
        metrics = MinibatchMetrics()
        # Columns and loss are the same on all tensor and context ranks of the last stage: count them once.
        is_counting_rank = self.layout.tensor_rank == 0 and self.layout.context_rank == 0

        def loss_of(columns: Columns, part: Batch, microbatch: Microbatch) -> Tensor:
            terms = objective.loss(_model_outputs(columns), part)
            loss = terms.loss if microbatch.is_counted else terms.loss * 0.0
            if microbatch.is_counted and is_counting_rank:
                metrics.add(float(loss.detach()), *_to_floats(terms))
            return loss

        self._run(minibatch, objective.unit, objective.outputs, loss_of, torch.is_grad_enabled())
        return metrics.all_reduce(self.world_size)

    @torch.no_grad()
    def forward(self, batch: Batch, outputs: frozenset[str], widths: dict[str, tuple[int, ...]]) -> Columns:
        """Return the requested columns, float32 [T] or [T, K] on the CPU, the same on all ranks.

        Args:
            widths: For each output its shape after [T].
        """
        columns = {name: torch.zeros(len(batch.tokens), *widths[name]) for name in sorted(outputs)}
        starts = batch.cu_seqlens[:-1].long()
        is_counting_rank = self.layout.tensor_rank == 0 and self.layout.context_rank == 0

        def keep(outputs_of_part: Columns, part: Batch, microbatch: Microbatch) -> Tensor:
            if microbatch.is_counted and is_counting_rank:
                origin = starts[torch.tensor(microbatch.sequences)][part.sequence_of_token] + part.positions
                for name, column in outputs_of_part.items():
                    columns[name][origin] = column.float().cpu()
            return torch.zeros(())

        self._run(batch, 1, outputs, keep, False)
        return {name: all_reduce_sum(column, self.world_size) for name, column in columns.items()}

    def _run(
        self,
        batch: Batch,
        unit: int,
        outputs: frozenset[str],
        end: Callable[[Columns, Batch, Microbatch], Tensor],
        backward: bool,
    ) -> None:
        """Run all microbatches.

        Args:
            end: Maps the last stage's columns of a microbatch to the loss.
        """
        plan = plan_microbatches(batch, unit, self.microbatch_tokens, self.layout.data)[self.layout.data_rank]
        config = self.stage.config
        divisor = self.layout.tensor if config.sequence_parallel else 1
        none = torch.tensor(0, dtype=torch.int)

        def step(microbatches: Iterator[Microbatch], stage: PipelineStage) -> tuple[Any, Any]:
            microbatch = next(microbatches)
            part = batch.select(microbatch.sequences)
            result = stage(StageTokens.from_batch(part, self.layout, divisor, self.device), outputs)
            return result, lambda columns: (end(columns, part, microbatch), none, {})

        with megatron_cpu_shims():
            get_forward_backward_func()(
                forward_step_func=step,
                data_iterator=iter(plan),
                model=[self.stage],
                num_microbatches=len(plan),
                # Unused with variable lengths: the stages announce the shapes that they send.
                seq_length=self.microbatch_tokens,
                micro_batch_size=1,
                forward_only=not backward,
            )


def _model_outputs(columns: Columns) -> ModelOutputs:
    moved: dict[str, Any] = {name: column.cpu() for name, column in columns.items()}
    return ModelOutputs(**moved)


def _to_floats(terms: LossTerms) -> tuple[dict[str, float], dict[str, float]]:
    sums, maxima = (
        {name: float(tensor.detach()) for name, tensor in tensors.items()}
        for tensors in (terms.sums, terms.maxima)
    )
    return sums, maxima
