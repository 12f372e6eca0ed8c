"""One of two tensor-parallel ranks: megatron-core's layers with adapters, run in isolation."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.cpu_shims import megatron_cpu_shims
from kubealign_services.training.megatron_backend.model.architecture import read_architecture
from kubealign_services.training.megatron_backend.model.lora import adapters_disabled, add_adapters
from kubealign_services.training.megatron_backend.model.lora_layers import adapted_layers, init_lora_a
from kubealign_services.training.megatron_backend.model.stage_builder import build_stage
from kubealign_services.training.megatron_backend.parallel.process_groups import init_parallel_groups
from kubealign_services.training.megatron_backend.weights.conversion import (
    ADAPTER_MARK,
    HeadSizes,
    WeightConversion,
    build_conversions,
)
from kubealign_services.training.megatron_backend.weights.load_hf import load_weights
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    gather_tensors,
    is_adapter,
    is_weight,
)

TOKENS = 6
LORA = Lora(rank=3, alpha=6.0)
#: megatron-core's layers of the first block.
COLUMNS = ("self_attention.linear_qkv", "mlp.linear_fc1")
ROWS = ("self_attention.linear_proj", "mlp.linear_fc2")


def run_rank(rank: int, folder: Path, store: Path, work: Path) -> None:
    """Write this rank's results and, on rank 0, the gathered adapters and merged weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for shared in (False, True):
            _run(rank, folder, work, shared)
    finally:
        dist.destroy_process_group()


def _run(rank: int, folder: Path, work: Path, sequence_parallel: bool) -> None:
    config = AutoConfig.from_pretrained(folder)
    spec = MegatronBackendSpec(tensor_parallel=2, sequence_parallel=sequence_parallel)
    shape = read_architecture(config)
    conversions = build_conversions(shape, spec, 2, HeadSizes(), adapted_layers(config, LORA))
    conversion = conversions[rank]
    groups = init_parallel_groups(conversion.layout, rank, 2, 60.0)
    with megatron_cpu_shims():
        stage = build_stage(config, shape, spec, conversion.layout, groups, Head.LANGUAGE_MODEL, HeadSizes())
        load_weights(folder, conversion, stage.weights())
        downs = init_lora_a(config, LORA, 1, Head.LANGUAGE_MODEL, torch.float32)
        add_adapters(stage.trunk, conversion, LORA, downs, groups.tensor)
        stage.double().train()
        _fill(conversion, dict(stage.weights()))
        results = {}
        for name in COLUMNS + ROWS:
            results.update(
                _layer(stage.trunk, f"decoder.layers.0.{name}", rank, sequence_parallel, groups.tensor)
            )
        save_file(results, work / f"{sequence_parallel}-{rank}.safetensors")
        weights = {name: parameter.detach() for name, parameter in stage.weights().items()}
        gathered = dict(gather_tensors(conversions, rank, weights, torch.float64, is_adapter))
        gathered |= dict(
            gather_tensors(conversions, rank, weights, torch.float64, is_weight, LORA.alpha / LORA.rank)
        )
    if rank == 0:
        save_file(
            {name: tensor.contiguous() for name, tensor in gathered.items()},
            work / f"{sequence_parallel}-whole.safetensors",
        )


def _fill(conversion: WeightConversion, parameters: dict[str, Tensor]) -> None:
    """Fill every B from its name, the same for any layout."""
    for name, parameter in parameters.items():
        if name.endswith(".lora_B"):
            (part,) = conversion.slices_of(name)
            full_up = whole_up(part.name, part.tensor_shape)
            with torch.no_grad():
                parameter.copy_(full_up[part.start[0] : part.start[0] + part.size[0]])


def whole_up(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a full B in fp64, drawn from the name."""
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(name.encode())), dtype=torch.float64
    )


def whole_inputs(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return inputs in fp64 [T, 1, inputs], and the gradient [T, 1, outputs] of the output."""
    generator = torch.Generator().manual_seed(inputs * 1000 + outputs)
    sizes = ((TOKENS, 1, inputs), (TOKENS, 1, outputs))
    first, second = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    return first, second


def _layer(
    trunk: torch.nn.Module, name: str, rank: int, shared: bool, group: dist.ProcessGroup
) -> dict[str, Tensor]:
    """Return this rank's part of output and gradients of one layer, and of its output without the adapter."""
    layer = dict(trunk.named_modules())[name]
    outputs, inputs = layer.weight.shape
    is_row = name.endswith(("linear_proj", "linear_fc2"))
    full_input, gradient = whole_inputs(inputs * (2 if is_row else 1), outputs * (1 if is_row else 2))
    own = slice(rank * TOKENS // 2, (rank + 1) * TOKENS // 2) if shared else slice(None)
    if is_row:
        layer_input = full_input[..., rank * inputs : (rank + 1) * inputs]
        slope = gradient[own]
    else:
        layer_input = full_input[own]
        slope = gradient[..., rank * outputs : (rank + 1) * outputs]
    layer_input = layer_input.clone().requires_grad_()
    output = layer(layer_input)[0]
    output.backward(slope)
    with adapters_disabled(trunk), torch.no_grad():
        base = layer(layer_input)[0]
    results = {f"{name}.output": output.detach(), f"{name}.base": base, f"{name}.inputs": layer_input.grad}
    for part, adapter in layer.adapters.items():
        for half in ("lora_A", "lora_B"):
            parameter = getattr(adapter, half)
            if getattr(parameter, "sequence_parallel", False):
                dist.all_reduce(parameter.grad, group=group)
            results[f"{name}{ADAPTER_MARK}{part}.{half}"] = parameter.grad
    assert layer.weight.grad is None
    return {key: tensor.contiguous() for key, tensor in results.items()}
