"""What runs in each of TensorRT-LLM's own processes, mixed into its worker. Only those import this module."""

from safetensors import safe_open
from tensorrt_llm.llmapi.rlhf_utils import WorkerExtension


class WeightLoading(WorkerExtension):  # type: ignore[misc]
    """An extension of TensorRT-LLM's worker, whose `engine` is there."""

    def kubealign_load(self, file: str) -> None:
        """Take the weights of a safetensors file, in place. `update_weights(None)` must follow the last."""
        runner = self.engine.model_engine
        if not hasattr(runner.model, "first_pre_reload_weights"):
            # As WorkerExtension.update_weights begins: modules take their weights apart again.
            for module in runner.model.modules():
                if hasattr(module, "pre_reload_weights") and not getattr(module, "_weights_removed", False):
                    module.pre_reload_weights()
            runner.model.first_pre_reload_weights = True
        with safe_open(file, framework="pt", device=f"cuda:{self.device_id}") as held:
            weights = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
            runner.model_loader.reload(runner.model, weights, allow_partial_loading=True)
