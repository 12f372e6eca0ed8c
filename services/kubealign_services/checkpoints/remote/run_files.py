"""Files of a run directory that a copy of a checkpoint needs, and the restoration of a run directory from it.

Besides the checkpoint these are the starts of the fences, the history of the trained prompts, the record of
a parent, the pins and the rows of the current round: with them the job goes on as if its run directory had
never been lost. Metrics, samples, logs and the prepared data are not copied; the data is prepared again.
"""

import asyncio
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from kubealign.checkpoint_pins import pin_files
from kubealign_services.checkpoints.draft_folders import make_draft
from kubealign_services.checkpoints.durable_files import create_file, fsync_path, replace_file
from kubealign_services.checkpoints.fence import FENCES_FOLDER
from kubealign_services.checkpoints.history import HISTORY_FOLDER, UNRECORDED_HISTORY_FILE
from kubealign_services.checkpoints.manifest import CheckpointManifest
from kubealign_services.checkpoints.remote.remote_run import CHECKPOINTS, RemoteRun
from kubealign_services.checkpoints.store import (
    CHECKPOINTS_FOLDER,
    MANIFEST,
    CheckpointName,
    StoredCheckpoint,
)

#: Record of the run that the job started from; see `roles.driver.parent_run`.
_PARENT_FILE = "parent.json"
_ROUNDS_FOLDER = "rounds"
#: Folders of a published checkpoint.
_CHECKPOINT_PART = "checkpoint"
_RUN_PART = "run"
#: Identifier of the run directory in its claims of fences.
_RUN_ID_FILE = "storage-run-id"
_SNAPSHOT_PREFIX = ".uploading-"
_RESTORE_PREFIX = ".restoring-"


def run_id(run_dir: Path) -> str:
    """Return the identifier of the run directory, created on first use. Raises OSError."""
    path = run_dir / _RUN_ID_FILE
    if not path.exists():
        replace_file(path, [secrets.token_hex(16).encode()])
    return path.read_text()


def snapshot_files(run_dir: Path, checkpoint: StoredCheckpoint) -> dict[str, Path]:
    """Return name in the published folder -> file, for a checkpoint and what belongs to it.

    Files that are appended to are copied first; `remove_snapshots` deletes the copies. Raises OSError.
    """
    files = {
        f"{_CHECKPOINT_PART}/{path.relative_to(checkpoint.path).as_posix()}": path
        for path in checkpoint.path.rglob("*")
        if path.is_file()
    }
    copies = run_dir / f"{_SNAPSHOT_PREFIX}{checkpoint.path.name}"
    for path in _small_files(run_dir):
        name = path.relative_to(run_dir).as_posix()
        copy = copies / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        files[f"{_RUN_PART}/{name}"] = copy
    progress = checkpoint.manifest.driver_state.get("round")
    if isinstance(progress, dict) and progress.get("file"):
        name = f"{_ROUNDS_FOLDER}/{progress['file']}"
        files[f"{_RUN_PART}/{name}"] = run_dir / name
    return files


def remove_snapshots(run_dir: Path) -> None:
    """Delete the copies of `snapshot_files`, also those of an earlier process."""
    for path in run_dir.glob(f"{_SNAPSHOT_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


async def restore_run(remote: RemoteRun, run_dir: Path, name: CheckpointName) -> None:
    """Download a checkpoint and what belongs to it into a run directory that has no checkpoint.

    The checkpoint's folder is renamed into its place last: an interrupted restoration is repeated. Raises
    ObjectMissing, ObjectCorrupted, StorageUnavailable, StorageRefused and OSError.
    """
    draft = await asyncio.to_thread(make_draft, run_dir, _RESTORE_PREFIX)
    try:
        await remote.download(f"{CHECKPOINTS}/{name.text}", draft)
        claim = await remote.latest_claim()
        latest_fence = name.fence if claim is None else claim.fence
        await asyncio.to_thread(_move_into_place, run_dir, draft, name, latest_fence)
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


def _move_into_place(run_dir: Path, draft: Path, name: CheckpointName, latest_fence: int) -> None:
    fences = run_dir / FENCES_FOLDER
    fences.mkdir(exist_ok=True)
    for path in fences.glob("*.json"):
        # Without a checkpoint, the drivers of this folder have left no state that their starts lead to.
        if path.stem.isdecimal() and int(path.stem) > name.fence:
            path.unlink()
    restored = draft / _RUN_PART
    for path in [path for path in restored.rglob("*") if path.is_file()]:
        target = run_dir / path.relative_to(restored)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)  # noqa: PTH105 - as in durable_files
        fsync_path(target.parent)
    # The next driver's fence must be higher than all that have been claimed. An interrupted restoration may
    # have created the file.
    with suppress(FileExistsError):
        create_file(fences / str(latest_fence), b"")
    fsync_path(fences)
    checkpoints = run_dir / CHECKPOINTS_FOLDER
    checkpoints.mkdir(exist_ok=True)
    checkpoint = draft / _CHECKPOINT_PART
    CheckpointManifest.model_validate_json((checkpoint / MANIFEST).read_bytes())
    for folder in {checkpoint, *(path.parent for path in checkpoint.rglob("*"))}:
        fsync_path(folder)
    os.rename(checkpoint, checkpoints / name.text)  # noqa: PTH104
    fsync_path(checkpoints)
    fsync_path(run_dir)


def _small_files(run_dir: Path) -> list[Path]:
    """Return the starts of the fences, the history, the record of a parent and the pins."""
    candidates = [run_dir / UNRECORDED_HISTORY_FILE, run_dir / _PARENT_FILE]
    candidates += sorted((run_dir / FENCES_FOLDER).glob("*.json"))
    candidates += sorted((run_dir / HISTORY_FOLDER).glob("*.jsonl"))
    candidates += pin_files(run_dir)
    return [path for path in candidates if path.is_file()]
