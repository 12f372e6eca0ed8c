"""Memory of a trained model (policy or critic) on either backend."""

from dataclasses import dataclass

from kubealign.planning.machine import CUDA_CONTEXT_BYTES, PROCESS_BYTES, Device
from kubealign.planning.memory.activations import (
    LayerActivations,
    head_working_bytes,
    layer_activations,
    output_activations,
)
from kubealign.planning.memory.gathered import gathered_bytes
from kubealign.planning.memory.optimizer_states import (
    bytes_per_value,
    megatron_state_bytes,
    torch_state_bytes,
)
from kubealign.planning.memory.peak import MemoryPeak, largest_peak
from kubealign.planning.memory.quantized_base import QuantizedBase, quantized_base
from kubealign.planning.memory.torch_optimizer import OptimizerMemory, torch_optimizer_memory
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.planning.model.trainer_layout import (
    StageParameters,
    TrainerLayout,
    check_divisible,
    stage_parameters,
    trainer_layout,
)
from kubealign.planning.workload import Workload
from kubealign.spec.sections.megatron import Recompute
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Trainer

#: Tokens per pack of the torch backend on a CPU; the same as in
#: training/torch_backend/passes/microbatch_passes.py.
CPU_PACK_TOKENS = 1024


@dataclass(frozen=True)
class TrainedModel:
    """A model with its trainer and workload. has_vocabulary: False for a trunk with a scalar head."""

    shape: ModelShape
    trainer: Trainer
    work: Workload
    device: Device
    has_vocabulary: bool = True

    @property
    def precision(self) -> Precision:
        """Precision of the computation."""
        precision: Precision = self.trainer.backend.value.precision
        return precision

    @property
    def weights(self) -> int:
        """Weights of the whole model."""
        count = (
            parameter_counts.total(self.shape) if self.has_vocabulary else parameter_counts.trunk(self.shape)
        )
        return count + (0 if self.has_vocabulary else self.shape.hidden)

    @property
    def adapter_weights(self) -> int | None:
        """Weights of the whole adapter; None: no adapter."""
        lora = self.trainer.lora
        return None if lora is None else parameter_counts.adapter(self.shape, lora)

    @property
    def optimizer_memory(self) -> OptimizerMemory:
        """Memory of the torch backend's optimiser on one rank."""
        return torch_optimizer_memory(
            self.shape, self.trainer, self.weights, self.adapter_weights, self.device
        )

    @property
    def host_bytes(self) -> dict[str, int]:
        """Host memory of one rank's optimiser, by part; empty with the optimiser on the device."""
        if self.trainer.backend.torch is None or not self.optimizer_memory.host:
            return {}
        return {"optimizer": self.optimizer_memory.host}

    @property
    def offloads_activations(self) -> bool:
        """True if saved activations are in host memory, apart from the device's."""
        spec = self.trainer.backend.torch
        return self.device is Device.GPU and spec is not None and spec.activation_offload

    def pass_tokens(self, replicas: int) -> int:
        """Return the tokens of one forward pass on one of `replicas` data-parallel ranks, or of the ranks
        that share its tokens.
        """
        share = -(-self.work.minibatch_tokens // replicas)
        limit: int = self.trainer.backend.value.microbatch_tokens
        torch = self.trainer.backend.torch
        if torch is not None:
            limit = torch.context_parallel * (
                min(limit, CPU_PACK_TOKENS) if self.device is Device.CPU else limit
            )
        return max(self.work.sequence, min(limit, share))

    @property
    def rank_tokens(self) -> int:
        """One rank's tokens of a forward pass, which context-parallel ranks share."""
        division = trainer_layout(self.trainer)
        return -(-self.pass_tokens(division.data) // division.context)


def trainer_memory(model: TrainedModel) -> MemoryPeak:
    """Return the memory peak of one rank in the stage with the largest peak."""
    base = {"process": CUDA_CONTEXT_BYTES if model.device is Device.GPU else PROCESS_BYTES}
    if model.trainer.backend.megatron is None:
        peak = largest_peak(_torch_peaks(model))
    else:
        division = trainer_layout(model.trainer)
        all_stages = stage_parameters(model.shape, division, model.has_vocabulary)
        peak = largest_peak(
            moment for stage in all_stages for moment in _megatron_peaks(model, stage, division)
        )
    return MemoryPeak(peak.name, base | {name: size for name, size in peak.parts.items() if size})


def _torch_peaks(model: TrainedModel) -> list[MemoryPeak]:
    """Return the peaks of one update: the head's backward pass, the last layer's, and the optimiser step; of
    a quantised base on a CPU also that of loading it.

    An update usually has several forward passes, so gradients exist from the start. Of offloaded activations
    the device holds those of one layer at a time. Context-parallel ranks save their own tokens for all heads,
    and of the attention all tokens for their own heads.
    """
    division = trainer_layout(model.trainer)
    check_divisible(model.shape, division)
    shape, trainer, precision = model.shape, model.trainer, model.precision
    ranks, size = trainer.ranks, bytes_per_value(precision)
    optimizer = model.optimizer_memory
    quantized = quantized_base(shape, trainer.lora)
    states = torch_state_bytes(model.weights, model.adapter_weights, precision, ranks, quantized)
    states |= {"optimizer": optimizer.device}
    tokens = model.rank_tokens
    costs, recompute = _torch_activations(model)
    per_layer = [cost.saved_bytes(1, False, recompute) for cost in costs]
    saved = (max(per_layer) if model.offloads_activations else sum(per_layer)) + output_activations(
        shape, precision, model.has_vocabulary
    )
    again = max(cost.saved_bytes(1, False, Recompute.NOTHING) for cost in costs)
    working = max(cost.working for cost in costs) + (again if recompute is Recompute.LAYERS else 0)
    head = head_working_bytes(shape, tokens, precision) if model.has_vocabulary else 0
    if model.adapter_weights is not None and head:
        # A frozen head has no weight gradient.
        head -= size * parameter_counts.embedding(shape)
    # The gradient of a trained matrix; a quantised one is dequantised for its product.
    matrix = size * (
        shape.hidden * shape.intermediate if model.adapter_weights is None else quantized.largest
    )
    return [
        MemoryPeak(
            "head's backward",
            states
            | {"activations": int(tokens * saved), "head": head}
            | _gathered_bytes(model, size, in_layers=False),
        ),
        MemoryPeak(
            "layers' backward",
            states
            | {"activations": int(tokens * (saved + working)), "working": matrix}
            | _gathered_bytes(model, size, in_layers=True),
        ),
        MemoryPeak("optimiser's step", states | {"working": optimizer.working}),
        *_quantization_peaks(model, quantized),
    ]


def offloaded_activations(model: TrainedModel) -> dict[str, int]:
    """Return the bytes of one rank's offloaded activations in host memory, by part; nothing where the
    activations are not offloaded.
    """
    if not model.offloads_activations:
        return {}
    costs, recompute = _torch_activations(model)
    saved = sum(cost.saved_bytes(1, False, recompute) for cost in costs)
    saved += output_activations(model.shape, model.precision, model.has_vocabulary)
    return {"activations": int(model.rank_tokens * saved)}


def _torch_activations(model: TrainedModel) -> tuple[list[LayerActivations], Recompute]:
    """Return the activations of each layer of the torch backend, and which of them are recomputed."""
    shape, precision, spec = model.shape, model.precision, model.trainer.backend.torch
    lean = precision is Precision.FLOAT32
    costs = [layer_activations(shape, index, precision, lean) for index in range(shape.layers)]
    return costs, Recompute.LAYERS if spec and spec.gradient_checkpointing else Recompute.NOTHING


def _quantization_peaks(model: TrainedModel, quantized: QuantizedBase) -> list[MemoryPeak]:
    """Return the peak of quantising a base on a CPU, whose memory holds the whole model first.

    Quantising a matrix takes 10 bytes a weight, in 16 bits 14: 10.2 and 13.9 were measured with bitsandbytes
    0.50.
    """
    if not quantized.weights or model.device is Device.GPU:
        return []
    size = bytes_per_value(model.precision)
    working = (10 if size == 4 else 14) * quantized.largest
    return [MemoryPeak("quantisation of the base", {"weights": size * model.weights, "working": working})]


def _gathered_bytes(model: TrainedModel, size: int, in_layers: bool) -> dict[str, int]:
    """Return unsharded FSDP2 tensors: the gathered weights.

    In the layers' backward pass also a block's gradient with its fp32 copy for the reduction, and the
    head's gradient, which is reduced at the end. One rank in fp32 is not sharded.
    """
    if model.trainer.ranks == 1 and model.precision is Precision.FLOAT32:
        return {}
    shape = model.shape
    gathered = gathered_bytes(shape, size, model.has_vocabulary, model.trainer.lora)
    if in_layers and model.adapter_weights is None:
        block = max(parameter_counts.layer(shape, index) for index in range(shape.layers))
        gathered += (size + 4) * block + size * parameter_counts.embedding(shape) * model.has_vocabulary
    return {"gathered": gathered}


def _megatron_peaks(model: TrainedModel, stage: StageParameters, division: TrainerLayout) -> list[MemoryPeak]:
    """Return the peaks of a rank in this stage.

    With the 1F1B schedule (Narayanan et al. 2021), a stage holds as many microbatches as there are stages
    from it to the end.
    """
    shape, trainer, precision = model.shape, model.trainer, model.precision
    megatron = trainer.backend.megatron
    assert megatron is not None
    lora = trainer.lora
    adapted = (
        None if lora is None else -(-parameter_counts.adapter(shape, lora, stage.layers) // division.tensor)
    )
    states = megatron_state_bytes(stage, adapted, trainer, division)
    tokens = model.rank_tokens
    costs = [layer_activations(shape, index, precision) for index in stage.layers]
    split, sequence = division.tensor, megatron.sequence_parallel
    saved = sum(cost.saved_bytes(split, sequence, megatron.recompute) for cost in costs)
    in_flight = division.pipeline - stage.index
    again = 0.0
    if megatron.recompute is not Recompute.NOTHING:
        again = max(
            cost.saved_bytes(split, sequence, Recompute.NOTHING)
            - cost.saved_bytes(split, sequence, megatron.recompute)
            for cost in costs
        )
    working = max(cost.working for cost in costs) / split + again
    if stage.has_head:
        saved += output_activations(shape, precision, model.has_vocabulary) / (split if sequence else 1)
    head = 0
    if stage.has_head and model.has_vocabulary:
        head = head_working_bytes(shape, tokens, precision, split)
    trained_weights = stage.weights if adapted is None else adapted
    share = division.replicas if megatron.distributed_optimizer else 1
    activations = int(tokens * (in_flight * saved + working))
    return [
        MemoryPeak(f"backward of stage {stage.index}", states | {"activations": activations, "head": head}),
        MemoryPeak(
            f"optimiser's step of stage {stage.index}", states | {"working": 4 * trained_weights // share}
        ),
    ]
