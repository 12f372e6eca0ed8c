"""Flat buckets of parameters and gradients, so that whole buffers are reduced, sharded and gathered at once.

Not megatron-core's `DistributedOptimizer`: its state cannot be saved without pickle, nor at all on a CPU, and
a checkpoint must be readable in another layout. The sharding over the replicas is the same (Rajbhandari et
al. 2020, ZeRO-1).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class BucketParameter:
    """A parameter and its range in the bucket.

    Attributes:
        is_counted: True when this rank's copy is the one, among its tensor and pipeline ranks, that the
            gradient norm counts.
    """

    name: str
    parameter: nn.Parameter
    start: int
    end: int
    is_counted: bool


class ParameterBucket:
    """Parameters that are replicated over the same ranks and have the same weight decay.

    Attributes:
        master: fp32, this rank's share of the weights: all of them, or one of as many shares as there are
            replicas.
        gradient: fp32, of all the bucket's weights; the parameters' gradients are accumulated into it as soon
            as they are computed, so that those of many microbatches are summed in fp32.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        counted: Mapping[str, bool],
        decays: bool,
        group: dist.ProcessGroup,
        shared: bool,
    ) -> None:
        """Copy the parameters into one buffer and make them views of it.

        Args:
            group: The ranks that hold the same parameters.
            shared: Shard the optimiser's state over these ranks.
        """
        self.decays = decays
        self.group = group
        self.replicas = group.size()
        self.shares = self.replicas if shared else 1
        self.members: list[BucketParameter] = []
        size = 0
        for name, parameter in named.items():
            self.members.append(
                BucketParameter(name, parameter, size, size + parameter.numel(), counted[name])
            )
            size += parameter.numel()
        size += -size % self.shares
        first = self.members[0].parameter
        self._weights = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros(size, dtype=torch.float32, device=first.device)
        for member in self.members:
            piece = self._weights[member.start : member.end]
            piece.copy_(member.parameter.detach().flatten())
            member.parameter.data = piece.view(member.parameter.shape)
            hook = _accumulate_into(self.gradient_of(member))
            member.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        each = size // self.shares
        self._first = (group.rank() if shared else 0) * each
        self._local_range = slice(self._first, self._first + each)
        mine = self._weights[self._local_range]
        # In fp32 the share of the weights serves as its own master.
        self.master = mine if mine.dtype == torch.float32 else mine.float()

    def gradient_of(self, member: BucketParameter) -> Tensor:
        """Return a view of the gradient in the parameter's shape."""
        return self.gradient[member.start : member.end].view(member.parameter.shape)

    def reduce(self) -> Tensor:
        """Sum the gradient over the replicas. Returns this rank's share of it. Collective."""
        if self.shares > 1:
            mine = torch.empty_like(self.master)
            dist.reduce_scatter_tensor(mine, self.gradient, group=self.group)
            return mine
        if self.replicas > 1:
            dist.all_reduce(self.gradient, group=self.group)
        return self.gradient

    def squared_norm(self, mine: Tensor) -> float:
        """Return the squared norm of the parts of a reduced gradient that only this rank counts."""
        if self.shares == 1 and self.group.rank() > 0:
            return 0.0
        parts = (mine[start:end] for member, start, end in self._local_pieces() if member.is_counted)
        return sum(float(part.double().square().sum()) for part in parts)

    def publish_masters(self) -> None:
        """Copy the masters into the parameters of all replicas. Collective."""
        mine = self._weights[self._local_range]
        if mine.data_ptr() != self.master.data_ptr():
            mine.copy_(self.master)
        if self.shares > 1:
            dist.all_gather_into_tensor(self._weights, mine.clone(), group=self.group)

    def gather_parameters(self, share: Tensor) -> Iterator[tuple[BucketParameter, Tensor]]:
        """Yield each parameter's part of a tensor that is sharded as the masters are, as a copy in the
        parameter's shape. Collective, one parameter at a time.
        """
        pieces = {member.name: (start, end) for member, start, end in self._local_pieces()}
        for member in self.members:
            full = torch.zeros(member.end - member.start, dtype=share.dtype, device=share.device)
            if member.name in pieces:
                start, end = pieces[member.name]
                offset = self._first + start - member.start
                full[offset : offset + end - start] = share[start:end]
            if self.shares > 1:
                dist.all_reduce(full, group=self.group)
            yield member, full.view(member.parameter.shape)

    def load_share(self, share: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write this rank's share of full parameters' tensors; the reverse of `gather_parameters`."""
        for member, start, end in self._local_pieces():
            offset = self._first + start - member.start
            share[start:end] = tensors[member.name].flatten()[offset : offset + end - start]

    def _local_pieces(self) -> Iterator[tuple[BucketParameter, int, int]]:
        """Yield the parameters that overlap this rank's share, and their ranges in it."""
        for member in self.members:
            start = max(member.start - self._first, 0)
            end = min(member.end - self._first, len(self.master))
            if start < end:
                yield member, start, end


def _accumulate_into(gradient: Tensor) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradient.add_(parameter.grad)
        parameter.grad = None

    return hook
