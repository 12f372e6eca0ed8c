"""Adapters that an external engine applies to its base weights itself."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from kubealign.spec.sections.training import Lora
from kubealign_services.generation.external.adapter_check import LayerShape, check_adapter
from kubealign_services.generation.external.contract import AdapterEngine
from kubealign_services.generation.external.weight_files import WeightFiles
from kubealign_services.training.adapters.lora import group_by_layer
from kubealign_services.training.adapters.targets import is_linear


@dataclass(frozen=True)
class AdapterShape:
    """Shape of the adapters of a job.

    layers: shape of each linear layer of the model.
    """

    rank: int
    layers: Mapping[str, LayerShape]

    @classmethod
    def of_model(cls, model: nn.Module, lora: Lora) -> "AdapterShape":
        """Return the shape for a model, which may be on the meta device."""
        layers = {}
        for name, module in model.named_modules():
            if is_linear(module):
                rows, columns = module.weight.shape
                # GPT-2 stores its matrices transposed.
                layers[name] = (rows, columns) if isinstance(module, nn.Linear) else (columns, rows)
        return cls(lora.rank, layers)


class NativeAdapters:
    """The adapter of an engine.

    keeps_folder: the engine releases its memory while it is idle, so the last adapter stays in files.
    """

    def __init__(
        self, engine: AdapterEngine, shape: AdapterShape, files: WeightFiles, keeps_folder: bool = False
    ) -> None:
        self._engine = engine
        self._shape = shape
        self._files = files
        self._keeps_folder = keeps_folder
        self._adapted_layers: set[str] = set()
        #: Folders that exist, and the one of the engine's adapter.
        self._folders: list[Path] = []
        self._kept_folder: Path | None = None

    def write(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> Path:
        """Check an adapter and write it as a PEFT folder for `load`.

        Raises ValueError for magnitudes (DoRA), another rank, and the errors of `check_adapter`.
        """
        adapters = group_by_layer(tensors)
        check_adapter(adapters, self._shape.layers, self._adapted_layers)
        rank = self._shape.rank
        for layer, adapter in adapters.items():
            if adapter.magnitude is not None:
                raise ValueError(f"adapter: {layer} has a magnitude (DoRA), which the engine cannot apply")
            if adapter.down.shape[0] != rank:
                raise ValueError(f"adapter: {layer} has rank {adapter.down.shape[0]}, trainer.lora {rank}")
        # The engine divides alpha by the rank.
        folder = self._files.write_adapter(adapters, Lora(rank=rank, alpha=scale * rank))
        self._folders.append(folder)
        self._adapted_layers |= adapters.keys()
        return folder

    async def load(self, folder: Path) -> None:
        """Load the adapter of a folder from `write` into the engine, in place of the one before."""
        self._kept_folder = folder if self._keeps_folder else None
        try:
            await self._engine.load_adapter(folder)
        finally:
            self._remove_folders()

    async def restore(self) -> None:
        """Load the last adapter again after the engine has released its memory."""
        if self._kept_folder is not None:
            await self._engine.load_adapter(self._kept_folder)

    async def drop(self) -> None:
        """Drop the adapter, because new base weights are about to be loaded."""
        self._adapted_layers.clear()
        self.close()
        await self._engine.drop_adapter()

    def close(self) -> None:
        """Remove all files."""
        self._kept_folder = None
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove every folder but the kept one."""
        for folder in self._folders:
            if folder != self._kept_folder:
                shutil.rmtree(folder)
        self._folders = [] if self._kept_folder is None else [self._kept_folder]
