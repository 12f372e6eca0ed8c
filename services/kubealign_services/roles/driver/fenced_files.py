"""Files of the run directory that the driver replaces, unless another driver has taken over."""

from collections.abc import Sequence
from pathlib import Path

from kubealign_services.checkpoints.durable_files import replace_file
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.roles.driver.errors import disk_error


def replace_fenced(fence: Fence, path: Path, lines: Sequence[str]) -> None:
    """Replace a file by these lines, durably; its folder is created.

    Args:
        lines: Each without the newline at its end.

    Raises:
        StaleFence: Another driver has taken over.
        StorageFull, UnrecoverableError: The file cannot be written; an earlier one is intact.
    """
    fence.check()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [f"{line}\n".encode() for line in lines])
    except OSError as error:
        raise disk_error(f"{path} was not written: {error.strerror}", error) from error
