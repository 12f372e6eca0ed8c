"""A model runner whose weights and KV cache can leave the accelerator between two generation phases."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.model_runner import LocalModelRunner
from kubealign_services.runtime.offload.host_offloader import HostOffloader, make_offloader


class OffloadableModelRunner(LocalModelRunner):
    """Model runner of one process that shares its accelerator.

    Implements `Offloadable` while nothing runs.
    """

    def __init__(self, model: CausalModel) -> None:
        super().__init__(model)
        self._offloader = make_offloader(self._tensors, self.device)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._offloader.mark_changed()
        super().load_weights(tensors)

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self._offloader.mark_changed()
        super().load_adapter(tensors, scale)

    def offload(self) -> None:
        """Release the accelerator's memory: weights move to host memory, the KV cache is dropped."""
        if isinstance(self._offloader, HostOffloader):
            self._cache.clear()
            if self._graphs is not None:
                self._graphs.clear()
        self._offloader.offload()

    def reload(self) -> None:
        """Allocate the memory again, with the weights that were offloaded."""
        self._offloader.reload()

    def reload_empty(self) -> None:
        """Allocate the memory again for weights that are all about to be loaded."""
        self._offloader.reload_empty()

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the offloaded tensors. Buffers stay: they are small, and a refit does not bring them."""
        yield from self.model.module.parameters()
        yield from self._adapters.base_weights()
