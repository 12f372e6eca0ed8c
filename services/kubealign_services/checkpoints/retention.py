"""Retention of checkpoints: folders of older checkpoints, and the remnants of crashes, are deleted.

Names carry the fence of the driver that fills or deletes a folder: a driver deletes only remnants of lower
fences, never those of a driver that has replaced it.
"""

import logging
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from kubealign_services.runtime.failpoints import Failpoint, failpoint

#: Prefix of a folder that is being filled: not yet a checkpoint.
WRITING_PREFIX = ".writing-"
#: Prefix of a folder that is being deleted: no longer a checkpoint.
REMOVING_PREFIX = ".removing-"

# .writing-fence-2-step-00000020-1a2b3c4d; older releases wrote no fence.
_LEFTOVER_NAME = re.compile(r"\.(?P<action>writing|removing)-(?:fence-(?P<fence>\d+)-)?.*")

log = logging.getLogger(__name__)


def writing_name(fence: int, name: str) -> str:
    """Return a new name of a folder that this fence fills."""
    return f"{WRITING_PREFIX}fence-{fence}-{name}-{secrets.token_hex(4)}"


def removing_name(fence: int, name: str) -> str:
    """Return a new name of a folder that this fence deletes."""
    return f"{REMOVING_PREFIX}fence-{fence}-{name}-{secrets.token_hex(4)}"


def remove_leftovers(directory: Path, fence: int, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Delete the folders that lower fences have left, and those that this fence has set aside for deletion.

    Another process may write into or delete the same folders meanwhile: what could not be deleted is left
    for the next call. Raises OSError if the folder cannot be listed.

    Args:
        should_stop: Asked before each folder.
    """
    for path in list(directory.iterdir()):
        if should_stop():
            return
        if _is_leftover(path.name, fence):
            failpoint(Failpoint.PRUNE_BEFORE_DELETE)
            shutil.rmtree(path, ignore_errors=True)
            failpoint(Failpoint.PRUNE_AFTER_DELETE)
            if path.exists():
                log.warning("a leftover of a checkpoint could not be deleted", extra={"path": str(path)})


def _is_leftover(name: str, fence: int) -> bool:
    match = _LEFTOVER_NAME.fullmatch(name)
    if match is None:
        return False
    owner = int(match["fence"] or 0)
    return owner < fence or (owner == fence and match["action"] == "removing")
