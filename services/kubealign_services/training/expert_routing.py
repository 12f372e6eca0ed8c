"""Routers of a mixture of experts: the experts that they choose are recorded in generation and replayed in
training (Ma et al. 2025, rollout routing replay, arXiv:2510.11370).

A router maps the states of n tokens to (logits [n, experts], gate weights [n, k], experts int64 [n, k]). Only
routers whose gate weights are the softmax over all experts at the chosen ones, as it is or normalised to sum
1, can be replayed: a trial on random input verifies the form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kubealign.planning.model.routing_record import MAX_BYTE_EXPERTS
from kubealign_services.batch.packed import Batch

#: Token column with the recorded experts: [T, layers with experts, k] in `routing_dtype`.
ROUTING = "routing"

#: Recorded experts of some tokens, [n, layers, k] in `routing_dtype`.
Routing = NDArray[np.integer[Any]]

# transformers' name of the modules that choose experts.
_ROUTER_SUFFIX = "TopKRouter"
_TRIAL_TOKENS = 4


class UnsupportedRouting(ValueError):
    """The model has no experts, or its routers are of a form whose choice cannot be replayed."""


@dataclass(frozen=True)
class RoutingShape:
    """Shape of a model's recorded choices.

    Attributes:
        layers: Number of layers with experts.
        experts: Number of experts of a layer.
        top_k: Number of experts of a token.
    """

    layers: int
    experts: int
    top_k: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 for up to 255 experts, otherwise int16."""
        return np.dtype(np.uint8 if self.experts <= MAX_BYTE_EXPERTS else np.int16)

    @property
    def unrecorded(self) -> int:
        """Number that marks a token without a record: the largest of uint8, -1 in int16."""
        return unrecorded_mark(self.dtype)


@dataclass(frozen=True)
class ExpertRouter:
    """The router of one layer. attention: the layer's attention, which runs before the router. normalises:
    the router divides its gate weights by their sum.
    """

    attention: nn.Module
    module: nn.Module
    normalises: bool


def unrecorded_mark(dtype: np.dtype[Any]) -> int:
    """Return the number that marks a token without a record in a column of this dtype."""
    return int(np.iinfo(dtype).max) if dtype == np.uint8 else -1


def find_routers(backbone: Any) -> tuple[list[ExpertRouter], RoutingShape]:
    """Return the routers of a causal language model in the order of its layers, and their shape.

    The model is not sharded, in evaluation mode. Raises UnsupportedRouting.
    """
    kind = f"model type {backbone.config.model_type!r}"
    routers: list[ExpertRouter] = []
    shapes: set[tuple[int, int]] = set()
    for layer in getattr(backbone.base_model, "layers", ()):
        modules = [each for each in layer.modules() if type(each).__name__.endswith(_ROUTER_SUFFIX)]
        attention = getattr(layer, "self_attn", None)
        if not modules:
            continue
        if len(modules) > 1 or not isinstance(attention, nn.Module):
            raise UnsupportedRouting(f"the layers of {kind} are not self_attn and one router of experts")
        normalises, shape = _examine(modules[0], kind)
        routers.append(ExpertRouter(attention, modules[0], normalises))
        shapes.add(shape)
    if not routers:
        raise UnsupportedRouting(f"{kind} has no routers of experts whose choice could be recorded")
    if len(shapes) > 1:
        raise UnsupportedRouting(f"the layers of {kind} have different numbers of experts: {sorted(shapes)}")
    experts, top_k = shapes.pop()
    return routers, RoutingShape(len(routers), experts, top_k)


@torch.no_grad()
def _examine(module: nn.Module, kind: str) -> tuple[bool, tuple[int, int]]:
    """Return whether a router normalises its gate weights, and (experts, k). Raises UnsupportedRouting."""
    weight = next(module.parameters())
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(_TRIAL_TOKENS, weight.shape[-1], generator=generator).to(weight)
    try:
        logits, scores, experts = module(states)
        for normalises in (False, True):
            if torch.equal(gate_weights(logits, experts, normalises, scores.dtype), scores):
                return normalises, (logits.shape[-1], experts.shape[-1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedRouting(f"the routers of {kind} are of an unknown form: {error}") from error
    raise UnsupportedRouting(
        f"the gate weights of {kind} are not the softmax over its experts at the chosen ones: the choice "
        "cannot be replayed"
    )


def gate_weights(logits: Tensor, experts: Tensor, normalises: bool, dtype: torch.dtype) -> Tensor:
    """Return the gate weights of given experts, [n, k], as transformers' routers compute them for their own.

    Args:
        logits: [n, experts].
        experts: int64 [n, k].
        normalises: Divide the weights of a token by their sum.
        dtype: Of the result; the softmax is in float32.
    """
    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, experts)
    if normalises:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(dtype)


class RoutingRecorder:
    """Records the experts that a model chooses in its forward passes."""

    def __init__(self, backbone: Any) -> None:
        """Attach to the model's routers. Raises UnsupportedRouting."""
        routers, self.shape = find_routers(backbone)
        self._chosen: list[Tensor | None] = [None] * len(routers)
        for index, router in enumerate(routers):
            router.module.register_forward_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def record(_: nn.Module, __: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
            self._chosen[index] = output[2]

        return record

    def take(self) -> Routing:
        """Return the experts of all tokens of the last forward pass, [tokens, layers, k].

        Raises RuntimeError where a layer has chosen none since the last call.
        """
        chosen = [each for each in self._chosen if each is not None]
        if len(chosen) < len(self._chosen):
            raise RuntimeError(f"{len(chosen)} of {len(self._chosen)} routers ran in the last pass")
        self._chosen = [None] * len(chosen)
        stacked: Routing = torch.stack(chosen, dim=1).cpu().numpy().astype(self.shape.dtype)
        return stacked


def routing_column(recorded: Routing, length: int) -> Tensor:
    """Return the column of a sequence of `length` tokens of which the first have a record, [length, layers,
    k]; the others, the last token at least, are marked.
    """
    column = np.full((length, *recorded.shape[1:]), unrecorded_mark(recorded.dtype), recorded.dtype)
    column[: min(len(recorded), length - 1)] = recorded[: length - 1]
    return torch.from_numpy(column)


def unrecorded_column(like: Tensor, length: int) -> Tensor:
    """Return the column of a sequence without a record, of the shape and dtype of another one's."""
    return torch.full((length, *like.shape[1:]), unrecorded_mark(like.numpy().dtype), dtype=like.dtype)


def check_routing(column: Tensor, shape: RoutingShape) -> None:
    """Raise ValueError for a column of recorded experts that does not fit the model."""
    expected = (shape.layers, shape.top_k)
    dtype = torch.uint8 if shape.dtype == np.uint8 else torch.int16
    if column.dtype is not dtype or tuple(column.shape[1:]) != expected:
        raise ValueError(
            f"token column {ROUTING} is {column.dtype} {list(column.shape)}; the model has {shape.layers} "
            f"layers with {shape.experts} experts, {shape.top_k} for a token: {dtype} "
            f"[{len(column)}, {shape.layers}, {shape.top_k}]"
        )
    is_marked = column == shape.unrecorded
    if bool((is_marked.flatten(1).any(1) != is_marked.flatten(1).all(1)).any()):
        raise ValueError(f"token column {ROUTING} has tokens with a record in some layers only")
    experts = column[~is_marked]
    if experts.numel() and not 0 <= int(experts.min()) <= int(experts.max()) < shape.experts:
        raise ValueError(
            f"token column {ROUTING} names expert {int(experts.max())}; the model has {shape.experts}"
        )


def without_routing(batch: Batch) -> Batch:
    """Return the batch without recorded experts, for a model whose routers decide themselves."""
    if ROUTING not in batch.token_columns:
        return batch
    columns = {name: column for name, column in batch.token_columns.items() if name != ROUTING}
    return Batch(
        batch.tokens, batch.cu_seqlens, batch.sample_ids, columns, batch.sequence_columns, batch.scalars
    )
