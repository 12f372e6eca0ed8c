"""Optimiser state of the torch backend on one rank, on the device and on the host.

Bytes per weight: AdamW 8 (two fp32 moments), with 8-bit moments 2 and two fp32 scales per block, Muon 4 (one
fp32 mean). On the host also a copy of the weight and of its gradient, 4 bytes each.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kubealign.planning.machine import Device
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.optimizers import (
    BLOCK_VALUES,
    MIN_8BIT_VALUES,
    MomentStates,
    OptimizerDevice,
)
from kubealign.spec.sections.training import Trainer

_FP32_BYTES = 4
_ADAMW_BYTES = 8.0
_BLOCKWISE_BYTES = 2 + 2 * _FP32_BYTES / BLOCK_VALUES
_MUON_BYTES = 4.0
# fp32 copies of the largest weight in a step of 8-bit AdamW on a CPU: moments, gradient, denominator, result.
_BLOCKWISE_CPU_COPIES = 5
# A bf16 matrix, its product with the polynomial, and the matrices of the polynomial.
_MUON_WORKING_BYTES = 8


@dataclass(frozen=True)
class OptimizerMemory:
    """Bytes of one rank.

    Attributes:
        device: State on the device of the weights.
        host: State, weights and gradients in host memory; 0 with the optimiser on the device.
        working: Further memory of the device during the optimiser step.
    """

    device: int
    host: int
    working: int


def torch_optimizer_memory(
    shape: ModelShape, trainer: Trainer, weights: int, adapter_weights: int | None, device: Device
) -> OptimizerMemory:
    """Return the memory of the optimiser. On a CPU the host's part is in the device's memory.

    Args:
        weights: Weights of the whole model.
        adapter_weights: Weights of the whole adapter; None: all weights are trained.
    """
    trained = weights if adapter_weights is None else adapter_weights
    moments = _moment_bytes(shape, trainer, trained)
    ranks, is_cpu = trainer.ranks, device is Device.CPU
    if trainer.optimizer.device is OptimizerDevice.HOST:
        host = -(-(moments + 2 * _FP32_BYTES * trained) // ranks)
        working = _host_step_bytes(shape, trainer) if is_cpu else _muon_working_bytes(shape, trainer)
        return OptimizerMemory(host if is_cpu else 0, 0 if is_cpu else host, working)
    return OptimizerMemory(-(-moments // ranks), 0, _step_bytes(shape, trainer, trained, is_cpu))


def _moment_bytes(shape: ModelShape, trainer: Trainer, trained: int) -> int:
    """Return the bytes of the state of all ranks."""
    optimizer = trainer.optimizer
    is_8bit = optimizer.adam_w.states is MomentStates.BLOCKWISE_8BIT
    if trainer.lora is not None:
        is_large = trainer.lora.rank * shape.hidden >= MIN_8BIT_VALUES
        return int((_BLOCKWISE_BYTES if is_8bit and is_large else _ADAMW_BYTES) * trained)
    matrices = list(_matrix_sizes(shape))
    if optimizer.muon is not None:
        total = _MUON_BYTES * sum(matrices)
    else:
        total = sum(_adamw_bytes(size, is_8bit) for size in matrices)
    # A critic or reward model has a score of a few weights in place of the language-modelling head.
    head = parameter_counts.head(shape) if trained >= parameter_counts.total(shape) else 0
    total += _adamw_bytes(head, is_8bit)
    return int(total + _ADAMW_BYTES * (trained - sum(matrices) - head))


def _adamw_bytes(size: int, is_8bit: bool) -> float:
    return size * (_BLOCKWISE_BYTES if is_8bit and size >= MIN_8BIT_VALUES else _ADAMW_BYTES)


def _matrix_sizes(shape: ModelShape) -> Iterator[int]:
    """Yield the size of each matrix of the blocks, and of each layer's stacks of experts."""
    for index in range(shape.layers):
        for name, inputs, outputs in parameter_counts.linear_layers(shape):
            if parameter_counts.is_attention(name) or not shape.is_sparse(index):
                yield inputs * outputs
        if shape.is_sparse(index):
            yield shape.experts * parameter_counts.expert(shape)
            yield shape.experts * shape.hidden


def _step_bytes(shape: ModelShape, trainer: Trainer, trained: int, is_cpu: bool) -> int:
    """Return the working memory of a step on the device of the weights.

    On a GPU torch computes AdamW on all weights at once, with an intermediate result of each.
    """
    optimizer, ranks = trainer.optimizer, trainer.ranks
    matrix = shape.hidden * shape.intermediate
    largest = max(parameter_counts.embedding(shape), matrix)
    adamw = 2 * _FP32_BYTES * -(-largest // ranks)
    if optimizer.adam_w.states is MomentStates.BLOCKWISE_8BIT and optimizer.muon is None:
        copies = _BLOCKWISE_CPU_COPIES * _FP32_BYTES * -(-matrix // ranks) if is_cpu else 0
        return max(adamw, copies)
    if not is_cpu:
        by_muon = sum(_matrix_sizes(shape)) if optimizer.muon is not None else 0
        adamw = _FP32_BYTES * -(-(trained - by_muon) // ranks)
    return max(adamw, _muon_working_bytes(shape, trainer))


def _host_step_bytes(shape: ModelShape, trainer: Trainer) -> int:
    """Return the working memory of a step on the host, where torch's AdamW needs none."""
    optimizer = trainer.optimizer
    matrix = -(-shape.hidden * shape.intermediate // trainer.ranks)
    if optimizer.adam_w.states is MomentStates.BLOCKWISE_8BIT and optimizer.muon is None:
        return _BLOCKWISE_CPU_COPIES * _FP32_BYTES * matrix
    return _muon_working_bytes(shape, trainer)


def _muon_working_bytes(shape: ModelShape, trainer: Trainer) -> int:
    """Return the memory of the orthogonalisation of the largest matrix, which every rank computes in full."""
    if trainer.optimizer.muon is None:
        return 0
    return _MUON_WORKING_BYTES * shape.hidden * max(shape.intermediate, shape.query_width)
