"""What runs in each of vLLM's own processes; vLLM mixes this class into its worker."""

from typing import Any

from safetensors import safe_open

#: What vLLM is told to mix in.
QUALIFIED = "kubealign_services.generation.vllm.worker.WeightLoading"


class WeightLoading:
    """An extension of vLLM's worker: its `model_runner` and `device` are there."""

    model_runner: Any
    device: Any

    def kubealign_load(self, file: str) -> None:
        """Take the weights of a safetensors file, in place. vLLM's models know the checkpoint's names and
        which part of a tensor is theirs."""
        with safe_open(file, framework="pt", device="cpu") as held:
            self.model_runner.model.load_weights(
                (name, held.get_tensor(name).to(self.device))
                for name in held.keys()  # noqa: SIM118
            )
