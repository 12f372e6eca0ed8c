"""Imports of the fork server before it forks, so that its children need not repeat them.

Only the fork server imports this module, with the environment variable KUBEALIGN_FORK_SERVER set to a
`PreloadConfig` as JSON. Imports only: a thread, a channel or a CUDA call before the fork breaks every
child.
"""

import gc
import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from kubealign.local.processes.parent_death import die_with_parent, set_process_name

PRELOAD_VARIABLE = "KUBEALIGN_FORK_SERVER"


@dataclass(frozen=True)
class PreloadConfig:
    """Configuration of the fork server."""

    #: Process id of the runner.
    parent: int
    #: Path of the fork server's log.
    log: str
    #: Path of the file for its process id.
    pid_file: str
    #: Variables set before the imports, as libraries read some of them then. The user's own values win.
    environment: dict[str, str]
    modules: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


#: Process id of the fork server: the parent of every process that it forks.
FORK_SERVER_PID: int | None = None


def _preload(config: PreloadConfig) -> None:
    # Ctrl-C on the terminal is for the runner.
    os.setsid()
    # Files of the job's processes are their owner's only, also in a folder that others may read.
    os.umask(0o077)
    die_with_parent(config.parent)
    set_process_name("ka:fork-server")
    Path(config.pid_file).write_text(str(os.getpid()))
    log = os.open(config.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, value in config.environment.items():
        os.environ.setdefault(name, value)
    # Imported objects stay alive. Garbage collection during the imports would add a seventh to their time.
    gc.disable()
    for module in config.modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - reported by the process that needs the module
            sys.stderr.write(f"{module} could not be imported ahead:\n{traceback.format_exc()}")
    sys.stderr.flush()
    # Frozen, so that collections in the children do not touch and copy these pages.
    gc.collect()
    gc.freeze()
    gc.enable()


if PRELOAD_VARIABLE in os.environ:
    FORK_SERVER_PID = os.getpid()
    _preload(PreloadConfig(**json.loads(os.environ.pop(PRELOAD_VARIABLE))))
