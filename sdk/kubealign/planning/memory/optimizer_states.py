"""Weights, gradients and optimiser state of one rank.

With Adam a weight costs, in bytes: the weight, its gradient, two moments of 4, and in mixed precision a
master copy of 4 (Rajbhandari et al. 2020, section 3.1). ZeRO shards these over the replicas: stage 1 the
optimiser state, stage 3 everything.
"""

from kubealign.planning.memory.quantized_base import NOT_QUANTIZED, QuantizedBase
from kubealign.planning.model.trainer_layout import StageParameters, TrainerLayout
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Trainer

_ADAM_MOMENT_BYTES = 8
_FP32_BYTES = 4


def bytes_per_value(precision: Precision) -> int:
    """Return bytes per value of the computation's dtype."""
    return _FP32_BYTES if precision is Precision.FLOAT32 else 2


def torch_state_bytes(
    weights: int,
    adapted: int | None,
    precision: Precision,
    ranks: int,
    quantized: QuantizedBase = NOT_QUANTIZED,
) -> dict[str, int]:
    """Return the bytes of the torch backend's states on one rank.

    The weights are the fp32 masters, whatever the precision of the computation; below an adapter they have
    the precision of the computation, or are quantised. FSDP2 shards everything over the ranks (ZeRO-3), but
    the scales of quantised weights.

    Args:
        weights: Weights of the model.
        adapted: Weights of the adapter; None: all weights are trained.
        quantized: Quantised ones of the weights.
    """
    if adapted is None:
        return _divide_over_ranks({"weights": _FP32_BYTES * weights}, weights, ranks)
    base = bytes_per_value(precision) * (weights - quantized.weights) + quantized.packed
    states = _divide_over_ranks({"weights": base + _FP32_BYTES * adapted}, adapted, ranks)
    return {**states, "weights": states["weights"] + quantized.scales}


def _divide_over_ranks(weights: dict[str, int], trained: int, ranks: int) -> dict[str, int]:
    parts = weights | {"gradients": _FP32_BYTES * trained, "optimizer": _ADAM_MOMENT_BYTES * trained}
    return {name: -(-size // ranks) for name, size in parts.items()}


def megatron_state_bytes(
    stage: StageParameters, adapted: int | None, trainer: Trainer, division: TrainerLayout
) -> dict[str, int]:
    """Return the bytes of the megatron backend's states on one rank.

    Gradients are accumulated in fp32. In 16 bits the optimiser keeps fp32 masters. The distributed optimiser
    shards masters and moments over the replicas (ZeRO-1).

    Args:
        stage: The rank's weights, already divided.
        adapted: The rank's adapter weights; None: all weights are trained.
    """
    megatron = trainer.backend.megatron
    assert megatron is not None
    size = bytes_per_value(megatron.precision)
    masters = 0 if megatron.precision is Precision.FLOAT32 else _FP32_BYTES
    dense, experts = (stage.dense, stage.experts) if adapted is None else (adapted, 0)
    share = (division.replicas, division.expert_replicas) if megatron.distributed_optimizer else (1, 1)
    optimizer = -(-dense // share[0]) + -(-experts // share[1])
    return {
        "weights": size * (stage.weights + (adapted or 0)),
        "gradients": _FP32_BYTES * (dense + experts),
        "optimizer": (_ADAM_MOMENT_BYTES + masters) * optimizer,
    }
