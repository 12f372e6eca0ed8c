"""Weights, gradients and the optimiser's state of one rank.

With Adam a weight costs, in bytes: itself, its gradient, two moments of 4, and in mixed precision a master
copy of 4 (Rajbhandari et al. 2020, section 3.1). ZeRO divides these over the ranks that repeat them: stage 1
the optimiser's, stage 3 all.
"""

from kubealign.plan.division import Division, Stage
from kubealign.spec.precision import Precision
from kubealign.spec.training import Trainer

_MOMENTS = 8
_WIDE = 4


def width(precision: Precision) -> int:
    """Bytes of a number of the arithmetic."""
    return 2 if precision is Precision.BFLOAT16 else _WIDE


def torch_states(weights: int, adapted: int | None, precision: Precision, ranks: int) -> dict[str, int]:
    """Of the torch backend. weights: of the model; adapted: of the adapter, None: all weights are trained.

    The weights are themselves the fp32 masters, whatever the arithmetic; below an adapter they are of the
    arithmetic's precision. FSDP2 divides everything over the ranks (ZeRO-3).
    """
    if adapted is None:
        return _shares({"weights": _WIDE * weights}, weights, ranks)
    return _shares({"weights": width(precision) * weights + _WIDE * adapted}, adapted, ranks)


def _shares(weights: dict[str, int], trained: int, ranks: int) -> dict[str, int]:
    parts = weights | {"gradients": _WIDE * trained, "optimizer": _MOMENTS * trained}
    return {name: -(-size // ranks) for name, size in parts.items()}


def megatron_states(
    stage: Stage, adapted: int | None, trainer: Trainer, division: Division
) -> dict[str, int]:
    """Of one rank of the megatron backend. stage: its weights, already divided; adapted: its adapter's.

    Gradients are summed in fp32. In bf16 the optimiser keeps fp32 masters. The distributed optimiser divides
    masters and moments over the ranks that repeat the weights (ZeRO-1).
    """
    megatron = trainer.backend.megatron
    assert megatron is not None
    size = width(megatron.precision)
    masters = _WIDE if megatron.precision is Precision.BFLOAT16 else 0
    dense, experts = (stage.dense, stage.experts) if adapted is None else (adapted, 0)
    share = (division.replicas, division.expert_replicas) if megatron.distributed_optimizer else (1, 1)
    optimizer = -(-dense // share[0]) + -(-experts // share[1])
    return {
        "weights": size * (stage.weights + (adapted or 0)),
        "gradients": _WIDE * (dense + experts),
        "optimizer": (_MOMENTS + masters) * optimizer,
    }
