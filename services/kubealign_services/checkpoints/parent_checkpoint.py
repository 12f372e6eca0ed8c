"""Hard links to the checkpoint of another run with which a run starts.

The links keep the files until the run has a checkpoint of its own, also if the other run goes on and its
retention removes the checkpoint meanwhile. The other run is only read.
"""

import errno
import os
import shutil
from pathlib import Path

from kubealign_services.checkpoints.draft_folders import make_draft
from kubealign_services.checkpoints.durable_files import fsync_path
from kubealign_services.checkpoints.lineage import Lineage
from kubealign_services.checkpoints.store import (
    CHECKPOINTS_FOLDER,
    PARENT_FOLDER,
    CheckpointName,
    CheckpointReader,
)
from kubealign_services.runtime.failpoints import Failpoint, failpoint

_DRAFT_PREFIX = ".parent-"
#: The file system has no hard links, or the other run is on another one.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


class CheckpointRemoved(RuntimeError):
    """The checkpoint was removed while it was linked."""


def link_checkpoint(checkpoint: Path, run_dir: Path) -> bool:
    """Link a checkpoint of another run into a run directory that has none linked yet, atomically.

    Returns:
        False: The file system does not allow it; the checkpoint must be read from the other run.

    Raises:
        CheckpointRemoved: The other run has removed the checkpoint meanwhile.
        OSError: The folder cannot be written.
    """
    target = run_dir / PARENT_FOLDER
    if target.exists():
        return True
    draft = make_draft(run_dir, _DRAFT_PREFIX)
    try:
        _link_files(checkpoint, draft / CHECKPOINTS_FOLDER / checkpoint.name)
    except OSError as error:
        shutil.rmtree(draft)
        if not checkpoint.exists():
            raise CheckpointRemoved(_removed_message(checkpoint)) from error
        if error.errno in _NO_LINKS:
            return False
        raise
    # A removal renames the folder before it deletes a file, so the links of one that still exists are all.
    if not checkpoint.exists():
        shutil.rmtree(draft)
        raise CheckpointRemoved(_removed_message(checkpoint))
    failpoint(Failpoint.PARENT_BEFORE_RENAME)
    draft.rename(target)
    fsync_path(run_dir)
    return True


def open_linked_checkpoint(run_dir: Path) -> CheckpointReader | None:
    """Return a reader of the linked checkpoint alone; None: none is linked."""
    folder = run_dir / PARENT_FOLDER
    names = [CheckpointName.parse(path.name) for path in (folder / CHECKPOINTS_FOLDER).glob("step-*")]
    fences = {name.fence: None for name in names if name is not None}
    return CheckpointReader(folder, Lineage(dict(fences))) if fences else None


def _link_files(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        link = target / path.relative_to(source)
        if path.is_dir():
            link.mkdir()
        else:
            os.link(path, link)


def _removed_message(checkpoint: Path) -> str:
    return (
        f"{checkpoint} was removed while the job started, by the retention of its run: pin a checkpoint of "
        "that run (kubealign pin), or name another step"
    )
