"""Selects the update rule of each trained weight."""

from collections.abc import Iterable, Sequence

from torch import nn

from kubealign.spec.sections.optimizers import MIN_8BIT_VALUES, MomentStates, OptimizerDevice
from kubealign.spec.sections.optimizers import Muon as MuonSpec
from kubealign.spec.sections.training import Optimizer as OptimizerSpec
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.optimizers.blockwise_adamw import (
    BlockwiseAdamWRule,
    require_bitsandbytes,
)
from kubealign_services.training.torch_backend.optimizers.muon import MuonRule
from kubealign_services.training.torch_backend.optimizers.shard_optimizer import (
    RuleParameters,
    ShardOptimizer,
)
from kubealign_services.training.torch_backend.optimizers.update_rules import AdamWRule


def require_packages(spec: OptimizerSpec) -> None:
    """Raise PermanentFailure, naming the package, when the optimizer needs one that is not installed."""
    if spec.adam_w.states is MomentStates.BLOCKWISE_8BIT:
        require_bitsandbytes()


def make_optimizer(model: nn.Module, spec: OptimizerSpec) -> ShardOptimizer:
    """Create the optimizer of the parameters that require a gradient.

    Weight decay is for matrices only: vectors are biases and normalisation weights. Raises PermanentFailure
    without the package of the 8-bit moments, and ValueError for weights that they do not support.

    Args:
        model: On its device, sharded where required.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = hidden_matrices(model) if spec.muon is not None else []
    by_muon = set(matrices)
    others = [parameter for parameter in trained if parameter not in by_muon]
    in_8_bits: set[nn.Parameter] = set()
    if spec.adam_w.states is MomentStates.BLOCKWISE_8BIT:
        embeddings = set(_embedding_weights(model))
        in_8_bits = {each for each in others if each.numel() >= MIN_8BIT_VALUES and each not in embeddings}
    on_host = spec.device is OptimizerDevice.HOST
    parts = [
        _adamw_part([each for each in others if each not in in_8_bits], spec, on_host),
        _blockwise_part([each for each in others if each in in_8_bits], spec),
    ]
    if spec.muon is not None:
        parts.append(_muon_part(matrices, spec.muon))
    return ShardOptimizer([part for part in parts if part.groups], on_host=on_host)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained matrices and stacks of experts' matrices, without embeddings, heads and vectors.

    A matrix of one row or one column is a vector: there is nothing to orthogonalise.
    """
    excluded = {*_embedding_weights(model), *_head_weights(model)}
    return [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad
        and parameter not in excluded
        and parameter.dim() in (2, 3)
        and min(parameter.shape[-2:]) > 1
    ]


def _embedding_weights(model: nn.Module) -> Iterable[nn.Parameter]:
    """Yield the weights of embeddings, to which an output head may be tied."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield from module.parameters(recurse=False)


def _head_weights(model: nn.Module) -> Iterable[nn.Parameter]:
    if not isinstance(model, PackedModel):
        return
    for head in (model.backbone.get_output_embeddings(), model.score):
        if head is not None:
            yield from head.parameters()


def _decay_groups(
    parameters: Sequence[nn.Parameter], decay: float
) -> list[tuple[Sequence[nn.Parameter], float]]:
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    return [(members, value) for members, value in ((matrices, decay), (vectors, 0.0)) if members]


def _adamw_part(parameters: Sequence[nn.Parameter], spec: OptimizerSpec, on_host: bool) -> RuleParameters:
    adam_w = spec.adam_w
    return RuleParameters(
        _decay_groups(parameters, adam_w.weight_decay),
        lambda groups, _: AdamWRule(groups, adam_w.betas, adam_w.epsilon, fused=on_host),
    )


def _blockwise_part(parameters: Sequence[nn.Parameter], spec: OptimizerSpec) -> RuleParameters:
    adam_w = spec.adam_w
    return RuleParameters(
        _decay_groups(parameters, adam_w.weight_decay),
        lambda groups, _: BlockwiseAdamWRule(groups, adam_w.betas, adam_w.epsilon),
    )


def _muon_part(parameters: Sequence[nn.Parameter], spec: MuonSpec) -> RuleParameters:
    return RuleParameters(
        [(parameters, spec.weight_decay)] if parameters else [],
        lambda groups, stepped: MuonRule(
            groups, {tensor: weight for weight, tensor in stepped.items()}, spec
        ),
        spec.learning_rate,
    )
