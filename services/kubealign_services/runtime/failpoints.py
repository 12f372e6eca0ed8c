"""Failpoints: named places at which a test makes a process fail.

Each is a no-op unless the run directory holds `failpoints.json` when the process starts: a list of objects
with `name`, `action` and optionally `process` (default: any), `hit` (default 1: the first time that the
process gets there) and `seconds` of a stop (default 20). Each object takes effect once; a record in the run
directory keeps a restarted process from failing at the same place again.

    [{"name": "checkpoint-before-rename", "action": "Kill", "process": "driver", "hit": 2}]
"""

import errno
import json
import logging
import os
import signal
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FILE = "failpoints.json"
#: Folder with one empty file for each entry that has taken effect, named by its index.
FIRED_FOLDER = "failpoints.fired"
#: Time for which the action Stop stops the process, unless its entry says otherwise.
STOP_SECONDS = 20.0

log = logging.getLogger(__name__)


class Failpoint(StrEnum):
    """Places at which a process can be made to fail."""

    # The driver's step.
    STEP_BEFORE_TRAIN = "step-before-train"
    STEP_AFTER_TRAIN = "step-after-train"
    HISTORY_BEFORE_APPEND = "history-before-append"
    HISTORY_AFTER_APPEND = "history-after-append"
    RECORD_BEFORE_WRITE = "record-before-write"
    RECORD_AFTER_WRITE = "record-after-write"
    # The start from the checkpoint of another run.
    PARENT_BEFORE_RENAME = "parent-before-rename"
    PARENT_BEFORE_RECORD = "parent-before-record"
    # The driver's checkpoint.
    CHECKPOINT_BEFORE_BEGIN = "checkpoint-before-begin"
    CHECKPOINT_AFTER_BEGIN = "checkpoint-after-begin"
    CHECKPOINT_AFTER_SHARDS = "checkpoint-after-shards"
    CHECKPOINT_BEFORE_RENAME = "checkpoint-before-rename"
    CHECKPOINT_AFTER_RENAME = "checkpoint-after-rename"
    PRUNE_BEFORE_DELETE = "prune-before-delete"
    PRUNE_AFTER_DELETE = "prune-after-delete"
    EXPORT_BEFORE = "export-before"
    EXPORT_AFTER = "export-after"
    RESUME_AFTER_LOAD = "resume-after-load"
    # The commands of trainer and critic, on every rank.
    TRAINER_BEFORE_LOAD = "trainer-before-load"
    TRAINER_BEFORE_STEP = "trainer-before-step"
    TRAINER_AFTER_STEP = "trainer-after-step"
    TRAINER_BEFORE_SAVE = "trainer-before-save"
    TRAINER_AFTER_SAVE = "trainer-after-save"
    TRAINER_BEFORE_EXPORT = "trainer-before-export"
    TRAINER_AFTER_EXPORT = "trainer-after-export"
    # New weights.
    WEIGHTS_BEFORE_PUBLISH = "weights-before-publish"
    WEIGHTS_AFTER_PUBLISH = "weights-after-publish"
    WEIGHTS_BEFORE_APPLY = "weights-before-apply"
    WEIGHTS_AFTER_APPLY = "weights-after-apply"
    # The bus, in every process.
    BUS_BEFORE_PUBLISH = "bus-before-publish"
    BUS_AFTER_PUBLISH = "bus-after-publish"
    BUS_BEFORE_ACK = "bus-before-ack"
    BUS_AFTER_ACK = "bus-after-ack"


class Action(StrEnum):
    """Effect of a failpoint: SIGKILL, SIGSTOP for some seconds, or an OSError."""

    KILL = "Kill"
    STOP = "Stop"
    EIO = "Eio"
    ENOSPC = "Enospc"


@dataclass
class _ArmedFailpoint:
    name: Failpoint
    action: Action
    #: Number of times that the place must still be reached.
    hits_left: int
    stop_seconds: float
    fired: Path


_armed: list[_ArmedFailpoint] = []


def arm_failpoints(run_dir: Path, process: str) -> None:
    """Arm the failpoints of a process. Raises ValueError for an entry that cannot be used."""
    _armed.clear()
    path = run_dir / FILE
    if not path.exists():
        return
    folder = run_dir / FIRED_FOLDER
    folder.mkdir(exist_ok=True)
    for index, entry in enumerate(json.loads(path.read_text())):
        failpoint = _ArmedFailpoint(
            Failpoint(entry["name"]),
            Action(entry["action"]),
            hits_left=int(entry.get("hit", 1)),
            stop_seconds=float(entry.get("seconds", STOP_SECONDS)),
            fired=folder / str(index),
        )
        if entry.get("process", process) == process and not failpoint.fired.exists():
            _armed.append(failpoint)
    log.warning("failpoints are armed", extra={"failpoints": [armed.name for armed in _armed]})


def failpoint(name: Failpoint) -> None:
    """Fail here if this failpoint is armed. Raises OSError."""
    if not _armed:
        return
    for armed in [candidate for candidate in _armed if candidate.name is name]:
        armed.hits_left -= 1
        if armed.hits_left == 0:
            _armed.remove(armed)
            armed.fired.touch()
            _fail(armed)


def _fail(armed: _ArmedFailpoint) -> None:
    log.warning("failpoint reached", extra={"failpoint": armed.name, "action": armed.action})
    match armed.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.STOP:
            wake = f"sleep {armed.stop_seconds}; kill -CONT {os.getpid()}"
            subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        case Action.EIO | Action.ENOSPC:
            number = getattr(errno, armed.action.upper())
            raise OSError(number, os.strerror(number), f"failpoint {armed.name}")
