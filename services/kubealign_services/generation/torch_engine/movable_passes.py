"""A model runner whose weights and KV cache can leave the accelerator between two generation phases."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from kubealign_services.generation.torch_engine.model import CausalModel
from kubealign_services.generation.torch_engine.passes import LocalPasses
from kubealign_services.residence.swap import Swap, swapping


class MovablePasses(LocalPasses):
    """Model runner of one process that shares its accelerator. Implements `Offloadable` while nothing runs.
    """

    def __init__(self, model: CausalModel) -> None:
        super().__init__(model)
        self._swap = swapping(self._tensors, self.device)

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._swap.changed()
        super().take(tensors)

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self._swap.changed()
        super().adapt(tensors, scale)

    def offload(self) -> None:
        """Release the accelerator's memory: weights move to host memory, the KV cache is dropped."""
        if isinstance(self._swap, Swap):
            self._cache.clear()
            if self._graphs is not None:
                self._graphs.forget()
        self._swap.offload()

    def reload(self) -> None:
        """Allocate the memory again, with the weights that were offloaded."""
        self._swap.reload()

    def reload_empty(self) -> None:
        """Allocate the memory again for weights that are all about to be loaded."""
        self._swap.reload_empty()

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the offloaded tensors. Buffers stay: they are small, and a refit does not bring them."""
        yield from self.model.module.parameters()
        yield from self._adapted.bases()
