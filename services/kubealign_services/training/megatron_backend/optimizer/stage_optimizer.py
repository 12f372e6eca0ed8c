"""AdamW over one stage's parameters: fp32 master weights, the gradient norm over all ranks, and the optimiser
state for checkpoints.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kubealign.spec.sections.training import Optimizer as OptimizerSpec
from kubealign_services.training.megatron_backend.model.stage import PipelineStage
from kubealign_services.training.megatron_backend.optimizer.buckets import ParameterBucket
from kubealign_services.training.megatron_backend.optimizer.gradient_sync import (
    all_reduce_shared,
    is_counted,
    is_expert,
)
from kubealign_services.training.megatron_backend.parallel.process_groups import ParallelGroups
from kubealign_services.training.megatron_backend.weights.checkpoint_shards import ParameterState
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion
from kubealign_services.training.torch_backend.optimizer import step_optimizer


class StageOptimizer:
    """Optimiser of the parameters that require a gradient. Every method is collective."""

    def __init__(
        self,
        stage: PipelineStage,
        spec: OptimizerSpec,
        conversion: WeightConversion,
        groups: ParallelGroups,
        distributed: bool,
    ) -> None:
        """Lay the parameters out in buckets.

        Args:
            stage: With its first weights; its parameters become views of the buckets.
            conversion: Identifies the parameters that are parts of full tensors.
            distributed: Shard the state over the model's replicas.
        """
        self._stage = stage
        self._spec = spec
        self._groups = groups
        self._buckets = _build_buckets(stage, conversion, groups, distributed)
        betas, epsilon = spec.adam_w.betas, spec.adam_w.epsilon
        self._adamw = torch.optim.AdamW(
            [
                {
                    "params": [bucket.master],
                    "weight_decay": spec.adam_w.weight_decay if bucket.decays else 0.0,
                }
                for bucket in self._buckets
            ]
            # A stage without a trained parameter (adapters on other stages only) still takes part.
            or [{"params": [torch.zeros(0)], "weight_decay": 0.0}],
            lr=0.0,  # each step sets its own
            betas=betas,
            eps=epsilon,
        )

    @property
    def parameters(self) -> list[str]:
        """Trained parameters, by megatron-core's names."""
        return [member.name for bucket in self._buckets for member in bucket.members]

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors other than the parameters: gradients, masters and moments."""
        for bucket in self._buckets:
            yield bucket.gradient
            yield bucket.master
            yield from (tensor for tensor in self._adamw.state[bucket.master].values() if tensor.dim())

    def load_masters(self, exact: Mapping[str, Tensor]) -> None:
        """Load the master weights that the parameters were rounded from: fp32, by megatron-core's names."""
        for bucket in self._buckets:
            with torch.no_grad():
                bucket.load_share(bucket.master, exact)
                bucket.publish_masters()

    def zero_grad(self) -> None:
        """Zero the gradient."""
        for bucket in self._buckets:
            bucket.gradient.zero_()

    def reduce_gradients(self) -> float:
        """Sum the gradient over all ranks that hold a part of it.

        Returns its global L2 norm, the same on all ranks: each parameter counts once.
        """
        gradients = {
            member.name: (member.parameter, bucket.gradient_of(member))
            for bucket in self._buckets
            for member in bucket.members
        }
        all_reduce_shared(gradients, self._stage, self._groups)
        square = 0.0
        for bucket in self._buckets:
            share = bucket.reduce()
            square += bucket.squared_norm(share)
            bucket.master.grad = share
        device = next(self._stage.parameters()).device
        total = torch.tensor([square], dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total.sqrt())

    def step(self, norm: float, updates: int, total: int) -> float:
        """Run one step, number `updates` from 0 of `total`, on the gradient of `reduce_gradients`, clipped as
        the spec says. Returns the learning rate.
        """
        bound = self._spec.gradient_clip_norm
        if bound and norm > bound:
            for bucket in self._buckets:
                assert bucket.master.grad is not None
                bucket.master.grad.mul_(bound / norm)
        rate = step_optimizer(self._adamw, self._spec, updates, total)
        for bucket in self._buckets:
            bucket.master.grad = None
            bucket.publish_masters()
        return rate

    def gather_states(self) -> Iterator[tuple[str, ParameterState]]:
        """Yield (parameter of this rank by megatron-core's name, its state) in the parameters' order.

        The states are gathered one at a time; they are copies on the parameter's device, and zeros before the
        first step.
        """
        for bucket in self._buckets:
            moments = self._moments(bucket)
            shares = (bucket.master.detach(), moments["exp_avg"], moments["exp_avg_sq"])
            for (member, master), (_, mean), (_, square) in zip(
                *map(bucket.gather_parameters, shares), strict=True
            ):
                yield member.name, ParameterState(master, mean, square)

    def load_state(self, states: Mapping[str, ParameterState], updates: int) -> None:
        """Load states of `gather_states`, from this or another layout.

        Args:
            states: State of every parameter that requires a gradient.
            updates: Steps done.
        """
        for bucket in self._buckets:
            moments = self._moments(bucket)
            with torch.no_grad():
                bucket.load_share(bucket.master, {name: state.master for name, state in states.items()})
                bucket.load_share(moments["exp_avg"], {name: state.exp_avg for name, state in states.items()})
                bucket.load_share(
                    moments["exp_avg_sq"], {name: state.exp_avg_sq for name, state in states.items()}
                )
                bucket.publish_masters()
            moments["step"].fill_(float(updates))

    def _moments(self, bucket: ParameterBucket) -> dict[str, Tensor]:
        state = self._adamw.state[bucket.master]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(bucket.master)
            state["exp_avg_sq"] = torch.zeros_like(bucket.master)
        moments: dict[str, Tensor] = state
        return moments


def _build_buckets(
    stage: PipelineStage, conversion: WeightConversion, groups: ParallelGroups, distributed: bool
) -> list[ParameterBucket]:
    """Group the parameters into buckets.

    Weight decay on matrices only: vectors are biases and normalisation weights.
    """
    kinds: dict[tuple[bool, bool, torch.dtype], dict[str, nn.Parameter]] = {}
    for name, parameter in stage.weights().items():
        if parameter.requires_grad:
            kind = is_expert(name), parameter.dim() > 1, parameter.dtype
            kinds.setdefault(kind, {})[name] = parameter
    return [
        ParameterBucket(
            named,
            {name: is_counted(name, stage, conversion) for name in named},
            decays,
            groups.expert_replicas if experts else groups.replicas,
            distributed,
        )
        for (experts, decays, _), named in kinds.items()
    ]
