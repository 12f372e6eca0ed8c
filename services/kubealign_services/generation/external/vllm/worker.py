"""Extension of vLLM's workers; vLLM mixes the class into its worker in each of its own processes."""

from typing import Any

from safetensors import safe_open

#: Import path of the class that vLLM mixes into its worker.
WORKER_EXTENSION = "kubealign_services.generation.external.vllm.worker.VllmWorkerExtension"


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
