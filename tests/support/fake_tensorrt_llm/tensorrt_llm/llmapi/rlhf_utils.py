"""Weight updates from outside."""

from typing import Any


class WorkerExtension:
    """Base class of an extension of the worker. `engine` and `device_id` are the worker's."""

    engine: Any
    device_id: int

    def update_weights(self, ipc_handles: dict[str, Any] | None = None) -> None:
        """Load weights from other processes of the machine; None ends the update.

        Modules build their fused weights again, and cached prefixes are dropped.
        """
        if ipc_handles is not None:
            raise NotImplementedError("this stand-in loads no weights by handles")
        del self.engine.model_engine.model.first_pre_reload_weights
        self.engine.prefix_resets += 1
