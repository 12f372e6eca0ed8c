"""Transfers weights to an engine's processes in safetensors files on a memory file system, written one after
another so that few exist at a time.
"""

import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.lora import LowRankAdapter
from kubealign_services.training.adapters.peft_folder import write_peft_adapter

#: Largest size of a file with more than one tensor.
FILE_BYTES = 1 << 30


def batch_tensors(
    tensors: Iterable[tuple[str, Tensor]], most_bytes: int = FILE_BYTES
) -> Iterator[dict[str, Tensor]]:
    """Group tensors into batches of at most `most_bytes`, unless a single tensor is larger.

    Raises ValueError for a name that comes twice.
    """
    seen: set[str] = set()
    batch: dict[str, Tensor] = {}
    batch_bytes = 0
    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"weights: {name!r} came twice")
        seen.add(name)
        size = tensor.numel() * tensor.element_size()
        if batch and batch_bytes + size > most_bytes:
            yield batch
            batch, batch_bytes = {}, 0
        batch[name] = tensor
        batch_bytes += size
    if batch:
        yield batch


class WeightFiles:
    """The weight files of one engine, in a folder of a memory file system."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = secrets.token_hex(8)
        self._count = 0
        #: Files that are kept for an engine that may release its weights: those of the base, then those of
        #: the matrices that the last adapter has changed.
        self.kept_paths: list[Path] = []
        self._base_count = 0

    def write(self, tensors: dict[str, Tensor]) -> Path:
        """Write a new file. Raises OSError where no space is left."""
        self._count += 1
        path = self._folder / f"engine-{self._prefix}-{self._count}.safetensors"
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def write_adapter(self, adapters: Mapping[str, LowRankAdapter], lora: Lora) -> Path:
        """Write a new PEFT folder. Raises OSError where no space is left.

        Args:
            adapters: Adapter of each layer.
        """
        self._count += 1
        folder = self._folder / f"engine-{self._prefix}-{self._count}-adapter"
        tensors = dict(
            chain.from_iterable(adapter.named_tensors(layer) for layer, adapter in adapters.items())
        )
        try:
            write_peft_adapter(folder, tensors, sorted(adapters), lora)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def end_base(self) -> None:
        """Let the kept files be those of the base; later ones are of an adapter."""
        self._base_count = len(self.kept_paths)

    def remove_adapted(self) -> None:
        """Remove the kept files of an adapter."""
        for path in self.kept_paths[self._base_count :]:
            path.unlink(missing_ok=True)
        del self.kept_paths[self._base_count :]

    def remove_kept(self) -> None:
        """Remove all kept files."""
        self._base_count = 0
        self.remove_adapted()
