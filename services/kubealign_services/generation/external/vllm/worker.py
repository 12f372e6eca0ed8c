"""Extension of vLLM's workers; vLLM mixes the class into its worker in each of its own processes.

vLLM imports this module before it makes the model.
"""

from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers import utils as linear_layers
from vllm.platforms import current_platform

_pack_for_cpu = linear_layers.dispatch_cpu_unquantized_gemm


def _keep_plain_matrix(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Compute a linear layer with its matrix as it is.

    vLLM packs it for a CPU and leaves an empty weight, into which no later weights could be loaded.
    """
    if layer.weight.is_meta or layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]
    else:
        _pack_for_cpu(layer, remove_weight)


if current_platform.is_cpu():
    linear_layers.dispatch_cpu_unquantized_gemm = _keep_plain_matrix


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
