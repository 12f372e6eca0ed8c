"""Extension of vLLM's workers; vLLM mixes the class into its worker in each of its own processes.

vLLM imports this module before it makes the model.
"""

import ctypes
import mmap
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from safetensors import safe_open
from vllm.model_executor.layers import utils as linear_layers
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kubealign_services.generation.external.vllm.extension_names import SCORING_TEMPERATURE

_pack_for_cpu = linear_layers.dispatch_cpu_unquantized_gemm


def _keep_plain_matrix(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute a linear layer with its matrix as it is.

    vLLM packs it for a CPU and leaves an empty weight, into which no later weights could be loaded.
    """
    if layer.weight.is_meta or layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]
    else:
        _pack_for_cpu(layer, remove_weight)


class _PlainExperts:
    """Packed copies of the matrices of the experts of one layer, made anew after each update of the weights.

    vLLM packs the experts for a CPU in place, in the shapes of the plain ones, so later weights would be
    written into packed ones without an error. Here the layer's parameters stay plain.
    """

    #: Number of weight updates of this process.
    updates = 0
    _instances: ClassVar[WeakSet["_PlainExperts"]] = WeakSet()

    def __init__(self) -> None:
        self._instances.add(self)
        self._packed: tuple[torch.Tensor, torch.Tensor] | None = None
        self._packed_at = -1

    @classmethod
    def drop_all(cls) -> None:
        """Drop the copies of every layer."""
        for layer in cls._instances:
            layer._packed = None

    def packed(self, experts: Any, w13: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return vLLM's packed form of the plain matrices."""
        if self._packed is None or self._packed_at != _PlainExperts.updates:
            layer: Any = torch.nn.Module()
            layer.w13_weight = torch.nn.Parameter(w13.detach(), requires_grad=False)
            layer.w2_weight = torch.nn.Parameter(w2.detach(), requires_grad=False)
            _pack_experts(experts, layer)
            self._packed = layer.w13_weight.data, layer.w2_weight.data
            self._packed_at = _PlainExperts.updates
        return self._packed


_pack_experts = cpu_moe.CPUUnquantizedExperts.process_weights_after_loading
_apply_experts = cpu_moe.CPUUnquantizedExperts.apply


def _keep_plain_experts(experts: Any, layer: torch.nn.Module) -> None:
    """Leave the parameters of a layer's experts as they are; `_apply_plain_experts` packs copies of them."""
    if hasattr(layer, "w13_bias"):
        # vLLM pads the biases together with the matrices. No supported model has any.
        _pack_experts(experts, layer)
    else:
        experts.kubealign_experts = _PlainExperts()


def _apply_plain_experts(experts: Any, *, w1: torch.Tensor, w2: torch.Tensor, **arguments: Any) -> None:
    """Compute the experts' output with packed copies of their matrices."""
    plain = getattr(experts, "kubealign_experts", None)
    if plain is not None:
        w1, w2 = plain.packed(experts, w1, w2)
    _apply_experts(experts, w1=w1, w2=w2, **arguments)


if current_platform.is_cpu():
    linear_layers.dispatch_cpu_unquantized_gemm = _keep_plain_matrix
    cpu_moe.CPUUnquantizedExperts.process_weights_after_loading = _keep_plain_experts
    cpu_moe.CPUUnquantizedExperts.apply = _apply_plain_experts


_score_prompts = GPUModelRunner._get_prompt_logprobs_dict


class _TemperedSampler:
    """Sampler that computes log-probabilities at a temperature."""

    def __init__(self, sampler: Any, temperature: float) -> None:
        self._sampler = sampler
        self._temperature = temperature

    def compute_logprobs(self, logits: torch.Tensor) -> Any:
        return self._sampler.compute_logprobs(logits.float() / self._temperature)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _TemperedRunner:
    """A model runner, as `_get_prompt_logprobs_dict` uses it, with the prompts of one temperature."""

    def __init__(self, runner: Any, prompts: dict[str, int], temperature: float) -> None:
        self._runner = runner
        self.num_prompt_logprobs = prompts
        self.sampler = _TemperedSampler(runner.sampler, temperature)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def _score_prompts_at_temperatures(
    runner: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
) -> dict[str, Any]:
    """Compute the log-probabilities of prompts, each at the temperature of its request; vLLM computes them at
    temperature 1.
    """
    prompts = runner.num_prompt_logprobs
    by_temperature: dict[float, dict[str, int]] = {}
    for request, entries in prompts.items():
        arguments = runner.requests[request].sampling_params.extra_args or {}
        temperature = float(arguments.get(SCORING_TEMPERATURE, 1.0))
        by_temperature.setdefault(temperature, {})[request] = entries
    scores: dict[str, Any] = {}
    for temperature, selected in by_temperature.items():
        requests = set(selected)
        tempered = _TemperedRunner(runner, selected, temperature)
        scores |= _score_prompts(tempered, hidden_states, num_scheduled_tokens)
        # It has removed those whose prompts are complete.
        for request in requests - selected.keys():
            del prompts[request]
    return scores


GPUModelRunner._get_prompt_logprobs_dict = _score_prompts_at_temperatures


_libc = ctypes.CDLL(None, use_errno=True)


def _discard_pages(block: torch.UntypedStorage) -> int:
    """Return the pages that lie entirely within a memory block to the operating system, and their number of
    bytes. They read as zeros.
    """
    first = -(-block.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (block.data_ptr() + block.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size <= 0:
        return 0
    if _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), f"{size} bytes of weights or KV cache could not be released")
    return size


class VllmWorkerExtension:
    """An extension of vLLM's worker, which provides `model_runner` and `device`."""

    model_runner: Any
    device: Any

    def kubealign_load_weights(self, file: str) -> None:
        """Load the weights of a safetensors file in place.

        vLLM's models map the checkpoint's names and load their own part of each tensor.
        """
        with safe_open(file, framework="pt", device="cpu") as weights:
            self.model_runner.model.load_weights(
                (name, weights.get_tensor(name).to(self.device))
                for name in weights.keys()  # noqa: SIM118
            )
        _PlainExperts.updates += 1

    def kubealign_scores_at_any_temperature(self) -> bool:
        """Return True if this worker's model runner has the method that is replaced above."""
        return isinstance(self.model_runner, GPUModelRunner)

    def kubealign_release_host_memory(self) -> int:
        """Return the memory of the weights and of the KV cache to the operating system; only for a CPU.

        They are zeros afterwards, and memory is allocated again where they are written.

        Returns the number of bytes.
        """
        _PlainExperts.drop_all()
        tensors = [*self.model_runner.model.parameters(), *self.model_runner.kv_caches]
        blocks = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        return sum(map(_discard_pages, blocks.values()))

    def kubealign_adaptable_layers(self) -> list[str]:
        """Return the last parts of the names of the layers that vLLM can apply an adapter to, as the
        checkpoint has them.

        vLLM joins some layers, such as q_proj, k_proj and v_proj.
        """
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(
            {
                part
                for module in manager.supported_lora_modules
                for part in manager.packed_modules_mapping.get(module, [module])
            }
        )
