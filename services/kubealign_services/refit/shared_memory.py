"""Reading a snapshot that another process of this machine or pod has written into a folder that both see."""

import mmap
import os
from pathlib import Path

from kubealign.v1 import batch_pb2
from kubealign_services.refit.manifest import identity
from kubealign_services.refit.snapshot import HEADER_BYTES, header_of
from kubealign_services.rpc.errors import NotFound

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SnapshotGone(NotFound):
    """The snapshot asked for has been replaced by newer ones, or never was there."""


def host_identity(directory: Path) -> str:
    """The same for two processes exactly when `directory` is one folder of one running machine for both.

    Raises OSError when the folder does not exist.
    """
    status = directory.stat()
    return f"{_BOOT_ID.read_text().strip()}:{status.st_dev}:{status.st_ino}"


class MappedSnapshot:
    """A view of a snapshot file. `snapshot` is valid until `confirm` says otherwise; copy before using it."""

    def __init__(self, directory: Path, name: str, weights: batch_pb2.WeightsId, size_bytes: int) -> None:
        """size_bytes: of the part that the file holds. Raises SnapshotGone when the file is not there or
        holds something else."""
        if Path(name).name != name:
            raise SnapshotGone(f"{name!r} is not the name of a file in {directory}")
        self._weights = weights
        path = directory / name
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise self._gone(path) from None
        try:
            self.confirm()
            # A private map: what is done to the views by mistake does not reach other readers.
            whole = mmap.mmap(self._file.fileno(), HEADER_BYTES + size_bytes, access=mmap.ACCESS_COPY)
        except (ValueError, SnapshotGone):
            self._file.close()
            raise self._gone(path) from None
        self.snapshot = memoryview(whole)[HEADER_BYTES:]

    def confirm(self) -> None:
        """Raises SnapshotGone when a later publication has begun to overwrite the bytes."""
        if os.pread(self._file.fileno(), HEADER_BYTES, 0) != header_of(self._weights):
            raise self._gone(None)

    def close(self) -> None:
        """Let go of the file. The map itself ends with the last view of it."""
        self._file.close()

    def _gone(self, path: Path | None) -> SnapshotGone:
        return SnapshotGone(
            f"weights {identity(self._weights)} have been overwritten by later ones"
            + (f" or never were in {path}" if path else "")
        )
