"""Extension of TensorRT-LLM's workers, mixed in by its own processes.

No other process imports this module.
"""

from safetensors import safe_open
from tensorrt_llm.llmapi.rlhf_utils import WorkerExtension


class TensorRTLLMWorkerExtension(WorkerExtension):  # type: ignore[misc]
    """An extension of TensorRT-LLM's worker, which provides `engine`."""

    def kubealign_load_weights(self, file: str) -> None:
        """Load the weights of a safetensors file in place.

        `update_weights(None)` must follow the last file.
        """
        runner = self.engine.model_engine
        if not hasattr(runner.model, "first_pre_reload_weights"):
            # The same start as WorkerExtension.update_weights: modules undo their fused weight layout.
            for module in runner.model.modules():
                if hasattr(module, "pre_reload_weights") and not getattr(module, "_weights_removed", False):
                    module.pre_reload_weights()
            runner.model.first_pre_reload_weights = True
        device = next(runner.model.parameters()).device
        with safe_open(file, framework="pt", device="cpu") as file_weights:
            weights = {
                name: file_weights.get_tensor(name).to(device)
                for name in file_weights.keys()  # noqa: SIM118
            }
            runner.model_loader.reload(runner.model, weights, allow_partial_loading=True)
