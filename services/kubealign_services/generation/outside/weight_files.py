"""Weights on their way into an engine's processes: safetensors files of a memory file system, one after
another, so that no more than a few are there at a time."""

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

#: A file is closed when it holds as much.
FILE_BYTES = 1 << 30


def batches(
    tensors: Iterable[tuple[str, Tensor]], most_bytes: int = FILE_BYTES
) -> Iterator[dict[str, Tensor]]:
    """Tensors by name, together at most so many bytes unless one alone is larger. Raises ValueError for a
    name that comes twice."""
    seen: set[str] = set()
    batch: dict[str, Tensor] = {}
    held = 0
    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"weights: {name!r} came twice")
        seen.add(name)
        size = tensor.numel() * tensor.element_size()
        if batch and held + size > most_bytes:
            yield batch
            batch, held = {}, 0
        batch[name] = tensor
        held += size
    if batch:
        yield batch


class WeightFiles:
    """The files of one engine, in a folder of a memory file system. What is left there ends with `close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = secrets.token_hex(8)
        self._count = 0
        self.kept: list[Path] = []

    def write(self, tensors: dict[str, Tensor]) -> Path:
        """A new file. Raises OSError where there is no room."""
        self._count += 1
        path = self._folder / f"engine-{self._prefix}-{self._count}.safetensors"
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def forget(self) -> None:
        """Remove the files that were kept."""
        for path in self.kept:
            path.unlink(missing_ok=True)
        self.kept.clear()
