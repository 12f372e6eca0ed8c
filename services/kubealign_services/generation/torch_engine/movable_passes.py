"""Passes whose model and cache may leave the accelerator between two generations."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from kubealign_services.generation.torch_engine.model import CausalModel
from kubealign_services.generation.torch_engine.passes import LocalPasses
from kubealign_services.residence.swap import Swap, swapping


class MovablePasses(LocalPasses):
    """Passes of one process that shares its accelerator. `residence.contract.Movable`, while nothing runs."""

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
        """Give the accelerator's memory back: the weights rest in the host's, the cache is forgotten."""
        if isinstance(self._swap, Swap):
            self._cache.clear()
            if self._graphs is not None:
                self._graphs.forget()
        self._swap.offload()

    def reload(self) -> None:
        """Take it again, with the weights that were there."""
        self._swap.reload()

    def reload_empty(self) -> None:
        """Take it again, with room for all weights, which come now."""
        self._swap.reload_empty()

    def _tensors(self) -> Iterator[Tensor]:
        """Buffers stay: they are small, and no refit would bring them."""
        yield from self.model.module.parameters()
        yield from self._adapted.bases()
